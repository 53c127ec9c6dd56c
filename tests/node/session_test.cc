// The session service alone, over real streams: what a router may say, and in particular what it
// may not. The inbox stands for the node.
#include "node/session.h"

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/node/router_end.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/rig.h"

namespace pdserve::testing {
namespace {

/// What the sessions told the node; breaks of what node/session.h promises are test failures.
class FakeInbox final : public node::Inbox {
 public:
  struct Told {
    int opened = 0;
    int lost = 0;
    std::vector<uint64_t> begun;
    std::vector<std::function<void()>> cancels;
  };

  void Opened(SessionId session) override {
    MutexLock lock(&mutex_);
    EXPECT_EQ(++told_[session.value].opened, 1);
    last_ = session;
    changed_.NotifyAll();
  }
  bool Begin(prefill::Request request) override { return Begin(request.generation.key); }
  bool Begin(decode::Request request) override { return Begin(request.generation.key); }
  void Cancel(engine::AttemptKey key, std::function<void()> done) override {
    if (deals_with_cancels) return done();
    MutexLock lock(&mutex_);
    Live(key.session).cancels.push_back(std::move(done));
    changed_.NotifyAll();
  }
  void Lost(SessionId session) override {
    MutexLock lock(&mutex_);
    EXPECT_EQ(++Live(session).lost, 1);
    changed_.NotifyAll();
  }

  template <typename Ready>
  bool Wait(const Ready& ready) {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    MutexLock lock(&mutex_);
    while (!ready(told_)) {
      if (absl::Now() >= end) return false;
      changed_.WaitFor(mutex_, end - absl::Now());
    }
    return true;
  }
  bool WaitLost(size_t count) {
    return Wait([count](const std::map<uint64_t, Told>& told) {
      size_t lost = 0;
      for (const auto& [id, session] : told) lost += static_cast<size_t>(session.lost);
      return lost >= count;
    });
  }
  std::map<uint64_t, Told> told() {
    MutexLock lock(&mutex_);
    return told_;
  }
  SessionId last() {
    MutexLock lock(&mutex_);
    return last_;
  }

  std::atomic<bool> is_full{false};
  std::atomic<bool> deals_with_cancels{true};

 private:
  bool Begin(const engine::AttemptKey& key) {
    MutexLock lock(&mutex_);
    Told& told = Live(key.session);
    if (is_full) return false;
    told.begun.push_back(key.attempt.value);
    changed_.NotifyAll();
    return true;
  }
  Told& Live(SessionId session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Told& told = told_[session.value];
    EXPECT_TRUE(told.opened == 1 && told.lost == 0) << "session " << session.value;
    return told;
  }

  Mutex mutex_;
  CondVar changed_;
  std::map<uint64_t, Told> told_ ABSL_GUARDED_BY(mutex_);
  SessionId last_ ABSL_GUARDED_BY(mutex_);
};

class SessionTest : public ::testing::Test {
 protected:
  void Start(node::SessionOptions options = {}) {
    options.hello.set_protocol_major(1);
    options.hello.set_node_id("n");
    options.hello.set_max_context_tokens(100);
    service_ = std::make_unique<node::SessionService>(std::move(options), &inbox_, &clock_);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
  }
  ~SessionTest() override {
    service_->Close();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(5));
    // However its sessions have ended, the node has heard of it.
    for (const auto& [id, told] : inbox_.told()) EXPECT_EQ(told.lost, 1) << "session " << id;
  }

  /// Our end of a connection whose other end the server has.
  int Connect() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    EXPECT_EQ(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    grpc::AddInsecureChannelFromFd(server_.get(), ends[0]);
    return ends[1];
  }
  std::shared_ptr<grpc::Channel> Channel() {
    const int end = Connect();
    EXPECT_EQ(fcntl(end, F_SETFL, O_NONBLOCK), 0);
    return grpc::CreateInsecureChannelFromFd("node", end);
  }
  std::unique_ptr<RouterEnd> Open(bool reads = true) {
    const SessionId before = inbox_.last();
    auto end = std::make_unique<RouterEnd>(Channel(), reads);
    end->Hello();
    EXPECT_TRUE(inbox_.Wait([&](const auto& told) {
      return !told.empty() && told.rbegin()->first > before.value &&
             told.rbegin()->second.opened == 1;
    }));
    return end;
  }
  static bool WaitEnded(RouterEnd& end) {
    return end.Wait([](const SessionAnswers& answers) { return answers.ended; });
  }
  static bool WaitPongs(RouterEnd& end, int count) {
    return end.Wait([count](const SessionAnswers& answers) { return answers.num_pongs >= count; });
  }

  FakeClock clock_;
  FakeInbox inbox_;
  std::unique_ptr<node::SessionService> service_;
  std::unique_ptr<grpc::Server> server_;
};

v1::NodeMessage Large() {
  v1::NodeMessage message;
  message.mutable_refused()->set_reason(std::string(10000, 'x'));
  return message;
}

TEST_F(SessionTest, WhateverComesBeforeTheHelloIsRefusedAndTheNodeHearsNothing) {
  Start();
  v1::RouterMessage messages[5];
  messages[0].mutable_prefill()->set_attempt(1);
  messages[1].mutable_decode()->set_attempt(1);
  messages[2].mutable_cancel()->set_attempt(1);
  messages[3].mutable_ping();  // messages[4]: of a kind that is not known here
  for (const v1::RouterMessage& message : messages) {
    RouterEnd end(Channel());
    end.Write(message);
    ASSERT_TRUE(WaitEnded(end)) << message.ShortDebugString();
    ASSERT_TRUE(end.answers().hello.has_value());
    EXPECT_NE(end.answers().hello->refusal(), "");
    EXPECT_EQ(end.answers().num_pongs, 0);
  }
  EXPECT_TRUE(inbox_.told().empty());
}

TEST_F(SessionTest, ASecondHelloAndUnknownKindsChangeNothing) {
  Start();
  const auto end = Open();
  end->Hello();
  end->Hello(/*major=*/99);
  end->Write({});
  end->Ping();
  EXPECT_TRUE(WaitPongs(*end, 1));
  EXPECT_EQ(inbox_.told().size(), 1u);
  EXPECT_FALSE(end->answers().ended);
}

TEST_F(SessionTest, AttemptsInAnyOrderOfIdsReachTheNodeInTheOrderOfTheStream) {
  Start();
  const auto end = Open();
  const std::vector<uint64_t> ids = {9, 0, 9, UINT64_MAX, 3, 0};
  for (const uint64_t id : ids) end->Prefill(MakeGeneration(id, 10, 10), v1::MODE_WHOLE);
  end->Ping();
  ASSERT_TRUE(WaitPongs(*end, 1));
  EXPECT_EQ(inbox_.told().begin()->second.begun, ids);  // what they are worth is the node's to say
}

TEST_F(SessionTest, WhatANodeHasNoRoomForIsRefusedForNow) {
  Start();
  const auto end = Open();
  inbox_.is_full = true;
  end->Prefill(MakeGeneration(1, 10, 10), v1::MODE_WHOLE);
  ASSERT_TRUE(end->Wait([](const SessionAnswers& answers) {
    const auto found = answers.attempts.find(1);
    return found != answers.attempts.end() && found->second.refused;
  }));
  EXPECT_TRUE(end->answers().attempts[1].refused->retryable());
  EXPECT_GT(end->answers().attempts[1].refused->retry_after_ms(), 0);
}

TEST_F(SessionTest, WhatIsLongerThanTheContextIsRefusedBeforeItCostsTheNodeMemory) {
  Start();
  const auto end = Open();
  engine::Generation generation = MakeGeneration(1, 90, 100);
  generation.emitted.assign(12, 1);
  end->Prefill(generation, v1::MODE_WHOLE);
  end->Decode(MakeGeneration(2, 102, 10), {});
  end->Prefill(MakeGeneration(3, 101, 10), v1::MODE_WHOLE);  // the roles decide
  end->Ping();
  ASSERT_TRUE(WaitPongs(*end, 1));
  for (const uint64_t id : {1, 2}) {
    const auto refused = end->answers().attempts[id].refused;
    ASSERT_TRUE(refused.has_value()) << id;
    EXPECT_FALSE(refused->retryable());
    EXPECT_NE(refused->reason().find("102"), std::string::npos);
  }
  EXPECT_EQ(inbox_.told().begin()->second.begun, std::vector<uint64_t>{3});
}

TEST_F(SessionTest, MoreOpenCancelsThanAllowedEndTheSession) {
  Start({.max_open_cancels = 3});
  const auto end = Open();
  for (int i = 0; i < 100; ++i) end->Cancel(1);  // dealt with at once: no matter how many
  end->Ping();
  ASSERT_TRUE(WaitPongs(*end, 1));
  inbox_.deals_with_cancels = false;
  for (uint64_t id = 1; id <= 4; ++id) end->Cancel(id);
  EXPECT_TRUE(WaitEnded(*end));
  ASSERT_TRUE(inbox_.WaitLost(1));
  const auto cancels = inbox_.told().begin()->second.cancels;
  EXPECT_EQ(cancels.size(), 3u);
  for (const auto& done : cancels) done();  // late, of a session that is gone
}

TEST_F(SessionTest, AFloodOfPingsFromARouterThatDoesNotReadEndsItsSessionAlone) {
  Start({.max_outgoing = 100});
  const auto other = Open();
  const auto end = Open(/*reads=*/false);
  // The answers fill the connection's windows first, then the queue.
  std::thread flood([&] {
    v1::RouterMessage ping;
    ping.mutable_ping()->set_sequence(UINT64_MAX);
    while (end->Write(ping)) {
    }
  });
  EXPECT_TRUE(inbox_.WaitLost(1));
  end->Kill();
  flood.join();
  other->Ping();
  EXPECT_TRUE(WaitPongs(*other, 1));
}

TEST_F(SessionTest, ARouterThatDoesNotReadIsDroppedWhenItsQueueIsFull) {
  Start({.max_outgoing = 20});
  const auto other = Open();
  const auto end = Open(/*reads=*/false);
  const SessionId session = inbox_.last();
  for (int i = 0; i < 1000 && inbox_.told()[session.value].lost == 0; ++i) {
    service_->Send(session, Large());
  }
  EXPECT_TRUE(inbox_.WaitLost(1));
  EXPECT_EQ(inbox_.told()[session.value].lost, 1);
  other->Ping();
  EXPECT_TRUE(WaitPongs(*other, 1));
}

TEST_F(SessionTest, ASilentRouterIsDroppedWithOrWithoutAHello) {
  Start({.peer_timeout = absl::Seconds(3)});
  const auto open = Open();
  RouterEnd mute(Channel());
  const auto start = clock_.Now();
  // The stream without a hello is there once the table's next look is not about `open` alone.
  clock_.Advance(absl::Seconds(2));
  open->Ping();
  ASSERT_TRUE(WaitPongs(*open, 1));
  EXPECT_GE(service_->DropSilent(clock_.Now()), start + absl::Seconds(3));
  clock_.Advance(absl::Seconds(3));
  const absl::Time end = absl::Now() + absl::Seconds(30);
  while (!mute.answers().ended && absl::Now() < end) {
    service_->DropSilent(clock_.Now());
    clock_.Advance(absl::Seconds(3));
    std::this_thread::yield();
  }
  EXPECT_TRUE(WaitEnded(mute));
  EXPECT_TRUE(WaitEnded(*open));
  EXPECT_TRUE(inbox_.WaitLost(1));
}

TEST_F(SessionTest, AFullHouseTakesNoMoreSessionsUntilOneLeaves) {
  Start({.max_sessions = 2});
  const auto first = Open();
  auto second = Open();
  RouterEnd third(Channel());
  third.Hello();
  ASSERT_TRUE(WaitEnded(third));
  EXPECT_EQ(inbox_.told().size(), 2u);
  second.reset();
  ASSERT_TRUE(inbox_.WaitLost(1));
  bool opened = false;
  for (int i = 0; i < 1000 && !opened; ++i) {  // the table forgets it a little later
    RouterEnd again(Channel());
    again.Hello();
    opened = again.Wait([](const SessionAnswers& a) { return a.ended || a.hello; }) &&
             again.answers().hello.has_value();
  }
  EXPECT_TRUE(opened);
}

TEST_F(SessionTest, AMessageThatIsNoneEndsItsSessionAlone) {
  Start();
  const auto other = Open();
  grpc::ClientContext context;
  const auto channel = Channel();
  const grpc::internal::RpcMethod method("/pdserve.v1.Node/Session",
                                         grpc::internal::RpcMethod::BIDI_STREAMING, channel);
  const std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>> stream(
      grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
          channel.get(), method, &context));
  v1::RouterMessage hello;
  hello.mutable_hello()->set_protocol_major(1);
  const grpc::Slice whole(hello.SerializeAsString());
  EXPECT_TRUE(stream->Write(grpc::ByteBuffer(&whole, 1)));
  ASSERT_TRUE(inbox_.Wait([](const auto& told) { return told.size() == 2; }));
  v1::RouterMessage prefill;
  prefill.mutable_prefill()->set_ticket(std::string(100, 't'));
  const grpc::Slice half(prefill.SerializeAsString().substr(0, 50));
  EXPECT_TRUE(stream->Write(grpc::ByteBuffer(&half, 1)));
  EXPECT_TRUE(inbox_.WaitLost(1));
  grpc::ByteBuffer answer;
  while (stream->Read(&answer)) {
  }
  EXPECT_FALSE(stream->Finish().ok());
  other->Ping();
  EXPECT_TRUE(WaitPongs(*other, 1));
}

TEST_F(SessionTest, AConnectionThatSpeaksNonsenseHarmsNoOther) {
  Start();
  const auto other = Open();
  std::mt19937_64 random(::testing::UnitTest::GetInstance()->random_seed());
  SCOPED_TRACE(::testing::UnitTest::GetInstance()->random_seed());
  for (int i = 0; i < 50; ++i) {
    const int end = Connect();
    std::string bytes = i % 2 == 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "";
    for (uint64_t n = random() % 200; n > 0; --n) bytes += static_cast<char>(random());
    EXPECT_GE(send(end, bytes.data(), bytes.size(), MSG_NOSIGNAL), 0);
    close(end);
  }
  other->Ping();
  EXPECT_TRUE(WaitPongs(*other, 1));
  EXPECT_FALSE(other->answers().ended);
}

TEST_F(SessionTest, ACloseEndsAllSessionsAndTakesNoNewOnes) {
  Start();
  const auto first = Open();
  const auto second = Open();
  service_->Close();
  EXPECT_TRUE(WaitEnded(*first));
  EXPECT_TRUE(WaitEnded(*second));
  EXPECT_TRUE(inbox_.WaitLost(2));
  RouterEnd late(Channel());
  late.Hello();
  EXPECT_TRUE(WaitEnded(late));
  EXPECT_FALSE(late.answers().hello.has_value());
}

TEST_F(SessionTest, WhateverEndsASessionTheNodeHearsOfItOnceAndOfNothingAfterIt) {
  Start({.max_outgoing = 50});
  constexpr size_t kSessions = 40;
  const int seed = ::testing::UnitTest::GetInstance()->random_seed();
  SCOPED_TRACE(seed);
  std::atomic<bool> running{true};
  std::thread node([&] {  // the step loop's part
    while (running) {
      service_->Broadcast(Large());
      service_->DropSilent(clock_.Now());
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> routers;
  for (size_t r = 0; r < 2; ++r) {
    routers.emplace_back([&, r] {
      std::mt19937_64 random(static_cast<uint64_t>(seed) * 2 + r);
      for (size_t i = 0; i < kSessions / 2; ++i) {
        RouterEnd end(Channel(), /*reads=*/random() % 4 != 0);
        end.Hello();
        for (uint64_t n = random() % 30; n > 0; --n) {
          if (random() % 3 == 0) end.Cancel(n);
          end.Prefill(MakeGeneration(n, random() % 150, 5), v1::MODE_WHOLE);
        }
        if (random() % 2 == 0) end.WritesDone();
        if (random() % 2 == 0) end.Kill();
      }
    });
  }
  for (std::thread& router : routers) router.join();
  running = false;
  node.join();
  service_->Close();  // FakeInbox and the fixture check
}

}  // namespace
}  // namespace pdserve::testing
