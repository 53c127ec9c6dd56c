// What kvtransfer/transport.h promises, over every listed transport, plain and with messages held
// up by the fault wrapper. One thread polls both ends, but where a test is about two.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "kvtransfer/transport.h"
#include "tests/testing/fault_transport.h"

namespace pdserve::kvtransfer {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);
constexpr std::byte kPoison{0xA5};
constexpr uint64_t kMaxPayload = 24 << 20;

std::vector<std::byte> Pattern(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> data(bytes);
  for (size_t at = 0; at < bytes; at += 8) {
    const uint64_t word = random();
    std::memcpy(data.data() + at, &word, std::min<size_t>(8, bytes - at));
  }
  return data;
}

bool AllPoison(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == kPoison; });
}

// One end: its transport, what it was told, and where it puts payloads.
class End final : public TransportEvents {
 public:
  explicit End(std::unique_ptr<Transport> transport) : transport(std::move(transport)) {}

  void OnAccepted(LinkId link, const std::string&) override { accepted.push_back(link); }
  void OnConnected(LinkId link) override { connected.push_back(link); }
  Destination OnMessage(LinkId link, std::string_view control, uint64_t payload_bytes) override {
    EXPECT_FALSE(closed.contains(link)) << "a message after the end of its link";
    messages.emplace_back(control);
    if (payload_bytes == 0 || !place) return {};
    Destination to = place(payload_bytes);
    if (!to.parts.empty()) placed.push_back(to.op);
    return to;
  }
  void OnProgress(LinkId link) override {
    ++progress;
    if (on_progress) on_progress(link);
  }
  void OnReceived(LinkId link, OpId op, absl::Status status) override {
    EXPECT_FALSE(closed.contains(link)) << "a receive after the end of its link";
    EXPECT_TRUE(received.emplace(op, status).second) << "a receive ended twice";
  }
  void OnSent(LinkId link, OpId op, absl::Status status) override {
    EXPECT_FALSE(closed.contains(link)) << "a send after the end of its link";
    EXPECT_TRUE(sent.emplace(op, status).second) << "a send ended twice";
  }
  void OnClosed(LinkId link, absl::Status reason) override {
    EXPECT_TRUE(closed.emplace(link, reason).second) << "a link ended twice";
  }

  OpId Send(LinkId link, const std::string& control, std::span<const std::byte> payload = {}) {
    Message message;
    message.op = OpId{++next_op};
    message.control = control;
    if (!payload.empty()) message.payload.push_back(payload);
    transport->Send(link, message);
    return message.op;
  }

  std::unique_ptr<Transport> transport;
  std::function<Destination(uint64_t)> place;
  std::function<void(LinkId)> on_progress;
  std::vector<LinkId> accepted, connected;
  std::vector<std::string> messages;
  std::vector<OpId> placed;
  std::map<OpId, absl::Status> received, sent;
  std::map<LinkId, absl::Status> closed;
  int progress = 0;
  uint64_t next_op = 0;
};

class TransportConformance : public ::testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  std::unique_ptr<Transport> Make(TransportOptions options) const {
    const auto& [name, held_up] = GetParam();
    auto made = MakeTransport(name, options);
    EXPECT_TRUE(made.ok()) << made.status();
    if (!held_up) return *std::move(made);
    testing::FaultPlan plan;
    plan.seed = 42;
    plan.delay = 0.5;
    return std::make_unique<testing::FaultTransport>(*std::move(made), plan);
  }

  void SetUp() override { Start({.max_payload_bytes = kMaxPayload}); }

  void Start(const TransportOptions& options) {
    a = std::make_unique<End>(Make(options));
    b = std::make_unique<End>(Make(options));
    auto listening = b->transport->Listen("127.0.0.1:0");
    ASSERT_TRUE(listening.ok()) << listening.status();
    address = *listening;
  }

  // Polls both ends until it holds.
  void Until(const std::function<bool()>& holds) {
    const absl::Time end = absl::Now() + kPatience;
    while (!holds()) {
      ASSERT_LT(absl::Now(), end) << "it never came to hold";
      if (a->transport) a->transport->Poll(a.get(), absl::Milliseconds(1));
      if (b->transport) b->transport->Poll(b.get(), absl::Milliseconds(1));
    }
  }

  void Link() {
    from_a = a->transport->Connect(address);
    Until([&] { return !a->connected.empty() && !b->accepted.empty(); });
    from_b = b->accepted.back();
  }

  std::unique_ptr<End> a, b;
  std::string address;
  LinkId from_a, from_b;
};

TEST_P(TransportConformance, MessagesGoBothWaysInOrder) {
  Link();
  for (int i = 0; i < 100; ++i) {
    a->Send(from_a, "to b " + std::to_string(i));
    b->Send(from_b, "to a " + std::to_string(i));
  }
  Until([&] { return a->messages.size() == 100 && b->messages.size() == 100; });
  Until([&] { return a->sent.size() == 100 && b->sent.size() == 100; });
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(b->messages[i], "to b " + std::to_string(i));
    EXPECT_EQ(a->messages[i], "to a " + std::to_string(i));
  }
  for (const auto& [op, status] : a->sent) EXPECT_TRUE(status.ok()) << status;
}

TEST_P(TransportConformance, APayloadLandsInItsPartsAndNowhereElse) {
  Link();
  const auto payload = Pattern(1'000'003, 1);
  std::vector<std::byte> memory(2'000'000, kPoison);
  const auto all = std::span(memory);
  b->place = [&](uint64_t bytes) -> Destination {
    EXPECT_EQ(bytes, payload.size());
    return {OpId{7},
            {all.subspan(10, 3), all.subspan(1000, 900'000), all.subspan(950'000, 100'000)}};
  };
  Message message{OpId{1}, "two parts", {}};
  message.payload = {std::span(payload).first(123'457), std::span(payload).subspan(123'457)};
  a->transport->Send(from_a, message);
  Until([&] { return b->received.size() == 1 && a->sent.size() == 1; });
  EXPECT_TRUE(b->received.at(OpId{7}).ok());
  EXPECT_TRUE(std::equal(payload.begin(), payload.begin() + 3, memory.begin() + 10));
  EXPECT_TRUE(std::equal(payload.begin() + 3, payload.begin() + 900'003, memory.begin() + 1000));
  EXPECT_TRUE(std::equal(payload.begin() + 900'003, payload.end(), memory.begin() + 950'000));
  EXPECT_TRUE(AllPoison(all.first(10)));
  EXPECT_TRUE(AllPoison(all.subspan(13, 987)));
  EXPECT_TRUE(AllPoison(all.subspan(901'000, 49'000)));
  EXPECT_TRUE(AllPoison(all.subspan(1'050'000)));
  EXPECT_GT(b->progress, 0);
}

TEST_P(TransportConformance, AnUnwantedPayloadIsThrownAwayAndTheNextMessageIsWhole) {
  Link();
  const auto payload = Pattern(3'000'001, 2);
  for (int i = 0; i < 5; ++i) a->Send(from_a, "unwanted", payload);
  a->Send(from_a, "after");
  Until([&] { return b->messages.size() == 6 && a->sent.size() == 6; });
  EXPECT_EQ(b->messages.back(), "after");
  EXPECT_TRUE(b->received.empty());
}

TEST_P(TransportConformance, ManyInFlightEachEndOnceWithTheirOwnBytes) {
  Link();
  constexpr int kCount = 200;
  std::vector<std::vector<std::byte>> payloads, memory;
  for (int i = 0; i < kCount; ++i) {
    payloads.push_back(Pattern(1 + 997 * i, i));
    memory.emplace_back(payloads.back().size());
  }
  size_t next = 0;
  b->place = [&](uint64_t bytes) -> Destination {
    EXPECT_EQ(bytes, memory[next].size());
    return {OpId{next}, {memory[next++]}};
  };
  for (int i = 0; i < kCount; ++i) a->Send(from_a, "piece", payloads[i]);
  Until([&] { return b->received.size() == kCount && a->sent.size() == kCount; });
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(memory[i], payloads[i]) << i;
}

TEST_P(TransportConformance, NoByteLandsAfterTheReceiversFence) {
  Link();
  const auto payload = Pattern(kMaxPayload, 3);
  std::vector<std::byte> memory(payload.size());
  b->place = [&](uint64_t) -> Destination { return {OpId{5}, {memory}}; };
  b->on_progress = [&](LinkId link) { b->transport->Close(link, absl::CancelledError("enough")); };
  a->Send(from_a, "large", payload);
  Until([&] { return b->closed.contains(from_b); });
  EXPECT_EQ(b->received.size(), 1u);
  EXPECT_EQ(b->closed.at(from_b).message(), "enough");
  std::fill(memory.begin(), memory.end(), kPoison);
  Until([&] { return a->closed.contains(from_a); });
  for (int i = 0; i < 20; ++i) Until([polls = 0]() mutable { return polls++ > 0; });
  EXPECT_TRUE(AllPoison(memory));
  EXPECT_EQ(a->sent.size(), 1u);
}

TEST_P(TransportConformance, NothingIsReadAfterTheSendersFence) {
  Link();
  const size_t bytes = 8 << 20;
  std::vector<std::vector<std::byte>> memory;
  b->place = [&](uint64_t size) -> Destination {
    memory.emplace_back(size);
    return {OpId{memory.size() - 1}, {memory.back()}};
  };
  // The peer runs by itself: its copy or its reads are under way while this side closes.
  std::atomic<bool> stop = false;
  std::thread peer([&] {
    while (!stop) b->transport->Poll(b.get(), absl::Milliseconds(10));
  });
  auto payload = Pattern(bytes, 4);
  const auto original = payload;
  for (int i = 0; i < 4; ++i) a->Send(from_a, "piece", payload);
  const absl::Time end = absl::Now() + kPatience;
  const auto poll = [&] { a->transport->Poll(a.get(), absl::Milliseconds(1)); };
  while (a->sent.empty() && absl::Now() < end) poll();
  a->transport->Close(from_a, absl::CancelledError("enough"));
  while (!a->closed.contains(from_a) && absl::Now() < end) poll();
  std::fill(payload.begin(), payload.end(), kPoison);
  EXPECT_EQ(a->sent.size(), 4u);
  stop = true;
  b->transport->Wake();
  peer.join();
  Until([&] { return b->closed.contains(from_b); });
  EXPECT_EQ(b->received.size(), memory.size());
  for (const auto& [op, status] : b->received) {
    EXPECT_TRUE(!status.ok() || memory[op.value] == original);
  }
}

TEST_P(TransportConformance, AnAbandonedReceiveEndsAndTheLinkGoesOn) {
  Link();
  const auto payload = Pattern(kMaxPayload, 5);
  std::vector<std::byte> memory(payload.size());
  b->place = [&](uint64_t) -> Destination { return {OpId{5}, {memory}}; };
  b->on_progress = [&](LinkId link) { b->transport->Abandon(link, OpId{5}); };
  a->Send(from_a, "large", payload);
  a->Send(from_a, "after");
  Until([&] { return b->received.contains(OpId{5}); });
  std::fill(memory.begin(), memory.end(), kPoison);
  Until([&] { return b->messages.size() == 2 && a->sent.size() == 2; });
  EXPECT_EQ(b->messages.back(), "after");
  EXPECT_TRUE(AllPoison(memory));
  EXPECT_TRUE(b->closed.empty());
}

TEST_P(TransportConformance, APeerThatDisappearsEndsTheLinkAndWhatRan) {
  Link();
  const auto payload = Pattern(kMaxPayload, 6);
  for (int i = 0; i < 10; ++i) a->Send(from_a, "piece", payload);
  b->transport.reset();
  Until([&] { return a->closed.contains(from_a); });
  EXPECT_FALSE(a->closed.at(from_a).ok());
  EXPECT_EQ(a->sent.size(), 10u);
}

TEST_P(TransportConformance, NobodyListeningEndsTheLink) {
  b->transport.reset();
  from_a = a->transport->Connect(address);
  Until([&] { return a->closed.contains(from_a); });
  EXPECT_EQ(a->closed.at(from_a).code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(a->connected.empty());
}

TEST_P(TransportConformance, AnAddressThatIsNoneEndsTheLink) {
  from_a = a->transport->Connect("no address at all");
  Until([&] { return a->closed.contains(from_a); });
  EXPECT_FALSE(a->closed.at(from_a).ok());
}

TEST_P(TransportConformance, ALinkClosedWhileItConnectsEndsOnce) {
  for (int i = 0; i < 20; ++i) {
    const LinkId link = a->transport->Connect(address);
    a->transport->Close(link, absl::CancelledError("changed my mind"));
    a->transport->Close(link, absl::CancelledError("again"));
    Until([&] { return a->closed.contains(link); });
    EXPECT_EQ(a->closed.at(link).message(), "changed my mind");
  }
  Until([&] { return b->closed.size() == b->accepted.size(); });
}

TEST_P(TransportConformance, AnAddressInUseIsRefused) {
  auto other = Make({});
  EXPECT_FALSE(other->Listen(address).ok());
}

TEST_P(TransportConformance, AFreedAddressCanBeListenedAtAgain) {
  Link();
  b = std::make_unique<End>(Make({.max_payload_bytes = kMaxPayload}));
  ASSERT_TRUE(b->transport->Listen(address).ok());
  Until([&] { return a->closed.contains(from_a); });
  a->connected.clear();
  Link();
}

TEST_P(TransportConformance, WakeEndsAPollOrTheNextOne) {
  a->transport->Wake();
  a->transport->Poll(a.get(), kPatience);  // hangs if the wake was lost
  std::thread waker([&] { a->transport->Wake(); });
  a->transport->Poll(a.get(), kPatience);
  waker.join();
}

TEST_P(TransportConformance, ASendOnAClosedLinkEndsWithAnError) {
  Link();
  a->transport->Close(from_a, absl::CancelledError("closed"));
  const OpId op = a->Send(from_a, "too late");
  Until([&] { return a->closed.contains(from_a); });
  ASSERT_TRUE(a->sent.contains(op));
  EXPECT_FALSE(a->sent.at(op).ok());
}

TEST_P(TransportConformance, MessagesOverALimitEndTheLink) {
  const auto too_large = Pattern(1001, 7);
  for (const bool in_control : {false, true}) {
    Start({.max_control_bytes = 1000, .max_payload_bytes = 1000});
    Link();
    if (in_control) a->Send(from_a, std::string(1001, 'x'));
    if (!in_control) a->Send(from_a, "x", too_large);
    Until([&] { return b->closed.contains(from_b) && a->closed.contains(from_a); });
    EXPECT_EQ(b->closed.at(from_b).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(b->messages.empty());
    EXPECT_EQ(a->sent.size(), 1u);
  }
}

TEST_P(TransportConformance, LinksOverTheLimitAreClosedAndTheOthersStay) {
  Start({.max_payload_bytes = 1000, .max_inbound_links = 3});
  std::vector<LinkId> links;
  for (int i = 0; i < 6; ++i) links.push_back(a->transport->Connect(address));
  Until([&] { return a->closed.size() == 3 && b->accepted.size() == 3; });
  for (const LinkId link : links) {
    if (!a->closed.contains(link)) a->Send(link, "hello");
  }
  Until([&] { return b->messages.size() == 3; });
}

TEST_P(TransportConformance, APeerThatTakesNothingCannotMakeTheQueueGrow) {
  Start({.max_payload_bytes = 1 << 20, .max_queued_messages = 50});
  Link();
  const auto payload = Pattern(1 << 20, 8);
  for (int i = 0; i < 200; ++i) a->Send(from_a, "piece", payload);
  const absl::Time end = absl::Now() + kPatience;
  while (!a->closed.contains(from_a) && absl::Now() < end) {
    a->transport->Poll(a.get(), absl::Milliseconds(1));  // the peer does not
    a->Send(from_a, "more", payload);
  }
  EXPECT_EQ(a->closed.at(from_a).code(), absl::StatusCode::kResourceExhausted);
}

TEST_P(TransportConformance, EverythingEndsOnceUnderRandomUse) {
  const int seed = ::testing::UnitTest::GetInstance()->random_seed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto payload = Pattern(300'000, 9);
  std::vector<std::byte> memory(payload.size());
  uint64_t next_receive = 0;
  const auto place = [&](uint64_t bytes) -> Destination {
    if (random() % 3 == 0) return {};
    return {OpId{++next_receive}, {std::span(memory).first(bytes)}};
  };
  a->place = b->place = place;
  std::vector<LinkId> links;
  for (int step = 0; step < 2000; ++step) {
    const uint64_t pick = random() % 100;
    if (pick < 3) links.push_back(a->transport->Connect(address));
    if (pick >= 3 && pick < 5 && !links.empty()) {
      a->transport->Close(links[links.size() - 1 - random() % std::min<size_t>(4, links.size())],
                          absl::CancelledError("random"));
    }
    if (pick == 5 && !b->accepted.empty()) {
      b->transport->Close(b->accepted[random() % b->accepted.size()], absl::CancelledError("b"));
    }
    if (pick > 5 && pick < 50 && !links.empty()) {
      const LinkId link = links[links.size() - 1 - random() % std::min<size_t>(4, links.size())];
      if (!a->closed.contains(link)) {
        a->Send(link, "random", std::span(payload).first(random() % payload.size()));
      }
    }
    a->transport->Poll(a.get(), absl::ZeroDuration());
    b->transport->Poll(b.get(), absl::ZeroDuration());
  }
  for (const LinkId link : links) a->transport->Close(link, absl::CancelledError("the end"));
  Until([&] { return a->closed.size() == links.size() && b->closed.size() == b->accepted.size(); });
  EXPECT_EQ(a->sent.size(), a->next_op);
  EXPECT_EQ(b->received.size(), b->placed.size());
}

INSTANTIATE_TEST_SUITE_P(Transports, TransportConformance,
                         ::testing::Combine(::testing::ValuesIn(TransportNames()),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param) +
                                  (std::get<1>(info.param) ? "_held_up" : "");
                         });

}  // namespace
}  // namespace pdserve::kvtransfer
