// Whole nodes in one process: real sessions, real step loops, the real in-process transport, and
// the hash model, whose output is wrong when one byte of a hand-over is.
#include "node/node.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/node/router_end.h"
#include "tests/testing/fake_model.h"
#include "tests/testing/rig.h"

namespace pdserve::testing {
namespace {

using engine::Generation;

struct Spec {
  std::string id = "n";
  bool prefills = true;
  bool decodes = true;
  int32_t blocks = 64;
  int32_t max_attempts = 256;
  size_t mailbox_limit = 65536;
  absl::Duration peer_timeout = absl::Hours(1);  // these routers do not ping
  absl::Duration fetch_wait = absl::Seconds(10);
};

class NodeTest : public ::testing::Test {
 protected:
  std::unique_ptr<node::Node> StartNode(const Spec& spec) {
    node::NodeOptions options;
    options.node_id = spec.id;
    options.prefills = spec.prefills;
    options.decodes = spec.decodes;
    options.kv_pool_bytes =
        int64_t{spec.blocks} * static_cast<int64_t>(model_->card().cache_layout.block_bytes());
    options.max_attempts = spec.max_attempts;
    options.step_loop.mailbox_limit = spec.mailbox_limit;
    options.step_loop.max_step_tokens = 64;
    options.pump.transport = "inproc";
    options.pump.listen = spec.id;
    options.peer_timeout = spec.peer_timeout;
    options.pump.fetch_wait = spec.fetch_wait;
    auto node = node::Node::Start(options, model_, metrics_.get(), &clock_);
    EXPECT_TRUE(node.ok()) << node.status();
    return node.ok() ? *std::move(node) : nullptr;
  }

  void StartPair(Spec spec = {}) {
    spec.id = "p";
    spec.decodes = false;
    p_ = StartNode(spec);
    spec.id = "d";
    spec.decodes = true;
    spec.prefills = false;
    d_ = StartNode(spec);
    to_p_ = Open(*p_);
    to_d_ = Open(*d_);
  }

  static std::unique_ptr<RouterEnd> Open(node::Node& node) {
    auto end = std::make_unique<RouterEnd>(node.InProcessChannel());
    end->Hello();
    EXPECT_TRUE(end->Wait([](const SessionAnswers& a) { return a.hello && a.num_loads > 0; }));
    return end;
  }

  void Split(const Generation& generation) {
    to_p_->Prefill(generation, v1::MODE_HAND_OVER);
    to_d_->Decode(generation, *to_p_->answers().hello);
  }

  static bool AllFree(const SessionAnswers& answers) {
    const v1::Load& load = answers.load;
    return load.free_blocks() + load.cached_blocks() == load.capacity_blocks() &&
           load.waiting() == 0 && load.prefilling() == 0 && load.transferring() == 0 &&
           load.decoding() == 0;
  }
  static void ExpectQuiet(RouterEnd& end) {
    EXPECT_TRUE(end.Wait(AllFree)) << end.answers().load.ShortDebugString();
  }

  void ExpectSplit(const Generation& generation) {
    const uint64_t id = generation.key.attempt.value;
    ASSERT_TRUE(to_d_->WaitFinished(id));
    ASSERT_TRUE(to_p_->WaitFinished(id));
    const AttemptAnswers at_d = to_d_->answers().attempts[id];
    const AttemptAnswers at_p = to_p_->answers().attempts[id];
    const auto want = FakeModel::Continue(generation);
    if (want.size() == 1) return;  // ends on the prefill node
    EXPECT_EQ(at_d.tokens, want) << at_d.finished[0].ShortDebugString();
    EXPECT_EQ(at_d.out_of_order, 0);
    EXPECT_EQ(at_d.finished.size(), 1u);
    EXPECT_EQ(at_d.finished[0].output_tokens(), want.size());
    EXPECT_EQ(at_p.tokens, std::vector<uint32_t>{want[0]});
    EXPECT_EQ(at_p.finished[0].reason(), v1::FINISH_HANDED_OVER);
    EXPECT_GT(at_d.finished[0].times().transfer_bytes(), 0u);
  }

  SystemClock clock_;
  std::unique_ptr<Metrics> metrics_ = Metrics::Create();
  std::shared_ptr<FakeModel> model_ = std::make_shared<FakeModel>();
  std::unique_ptr<node::Node> p_;
  std::unique_ptr<node::Node> d_;
  std::unique_ptr<RouterEnd> to_p_;
  std::unique_ptr<RouterEnd> to_d_;
};

std::vector<Generation> Mixed(uint64_t count) {
  std::vector<Generation> generations;
  for (uint64_t i = 1; i <= count; ++i) {
    generations.push_back(MakeGeneration(i, 1 + 17 * i % 300, 2 + 5 * i % 60));
    generations.back().sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    generations.back().ignore_eos = i % 3 != 0;
  }
  return generations;
}

TEST_F(NodeTest, SplitOutputEqualsWholeOutputTokenForToken) {
  StartPair();
  const auto both = StartNode({.id = "b"});
  const auto to_b = Open(*both);
  const auto generations = Mixed(24);
  for (const Generation& generation : generations) {
    Split(generation);
    to_b->Prefill(generation, v1::MODE_WHOLE);
  }
  for (const Generation& generation : generations) {
    const uint64_t id = generation.key.attempt.value;
    ExpectSplit(generation);
    ASSERT_TRUE(to_b->WaitFinished(id));
    const AttemptAnswers whole = to_b->answers().attempts[id];
    EXPECT_EQ(whole.tokens, FakeModel::Continue(generation));
    // One that ends with its first token ends on the prefill node.
    RouterEnd& last = whole.tokens.size() == 1 ? *to_p_ : *to_d_;
    EXPECT_EQ(whole.finished[0].reason(), last.answers().attempts[id].finished[0].reason());
  }
  ExpectQuiet(*to_p_);
  ExpectQuiet(*to_d_);
  ExpectQuiet(*to_b);
  EXPECT_EQ(model_->corruptions(), 0);
}

TEST_F(NodeTest, TheHelloSaysWhatTheNodeIs) {
  const auto node = StartNode({.id = "n", .decodes = false, .blocks = 10});
  const auto end = Open(*node);
  const v1::NodeHello hello = *end->answers().hello;
  EXPECT_EQ(hello.node_id(), "n");
  EXPECT_TRUE(hello.prefills());
  EXPECT_FALSE(hello.decodes());
  EXPECT_EQ(hello.capacity_blocks(), 10u);
  EXPECT_EQ(hello.max_context_tokens(), 320u);  // the pool is smaller than the model's context
  EXPECT_EQ(hello.text_spec(), model_->card().text_spec);
  EXPECT_NE(hello.incarnation(), 0u);
  EXPECT_EQ(end->answers().load.free_blocks(), 10u);
}

TEST_F(NodeTest, ATextThatTheRouterKnowsIsNotSentAgain) {
  const auto node = StartNode({});
  const std::string digest = Open(*node)->answers().hello->text_sha256();
  RouterEnd end(node->InProcessChannel());
  end.Hello(1, digest);
  ASSERT_TRUE(end.Wait([](const SessionAnswers& a) { return a.hello.has_value(); }));
  EXPECT_EQ(end.answers().hello->text_spec(), "");
}

TEST_F(NodeTest, AnUnknownMajorVersionIsRefusedWithTheReason) {
  const auto node = StartNode({});
  RouterEnd end(node->InProcessChannel());
  end.Hello(2);
  ASSERT_TRUE(end.Wait([](const SessionAnswers& a) { return a.ended; }));
  EXPECT_NE(end.answers().hello->refusal(), "");
}

TEST_F(NodeTest, ASessionWithoutAHelloFirstIsRefused) {
  const auto node = StartNode({});
  RouterEnd end(node->InProcessChannel());
  end.Prefill(MakeGeneration(1, 5, 5), v1::MODE_WHOLE);
  ASSERT_TRUE(end.Wait([](const SessionAnswers& a) { return a.ended; }));
  EXPECT_NE(end.answers().hello->refusal(), "");
  EXPECT_TRUE(end.answers().attempts.empty());
}

TEST_F(NodeTest, APingIsAnswered) {
  const auto node = StartNode({});
  const auto end = Open(*node);
  end->Ping();
  EXPECT_TRUE(end->Wait([](const SessionAnswers& a) { return a.num_pongs == 1; }));
}

TEST_F(NodeTest, ASilentRouterLosesItsSession) {
  const auto node = StartNode({.peer_timeout = absl::Milliseconds(50)});
  const auto end = Open(*node);
  EXPECT_TRUE(end->Wait([](const SessionAnswers& a) { return a.ended; }));
}

TEST_F(NodeTest, ALostSessionCancelsItsAttemptsAndNoOthers) {
  const auto node = StartNode({});
  auto lost = Open(*node);
  const auto other = Open(*node);
  const Generation kept = MakeGeneration(1, 50, 400);
  lost->Prefill(MakeGeneration(1, 50, 1500), v1::MODE_WHOLE);
  lost->Prefill(MakeGeneration(2, 300, 1500), v1::MODE_WHOLE);
  other->Prefill(kept, v1::MODE_WHOLE);
  lost->Wait([](const SessionAnswers& a) { return a.num_token_messages > 0; });
  lost->Kill();
  ASSERT_TRUE(other->WaitFinished(1));
  EXPECT_EQ(other->answers().attempts[1].tokens, FakeModel::Continue(kept));
  ExpectQuiet(*other);
}

TEST_F(NodeTest, AnUnknownAttemptsCancelIsAnswered) {
  const auto node = StartNode({});
  const auto end = Open(*node);
  end->Cancel(77);
  ASSERT_TRUE(end->WaitFinished(77));
  EXPECT_EQ(end->answers().attempts[77].finished[0].reason(), v1::FINISH_CANCELLED);
}

TEST_F(NodeTest, ACancelAtAnyMomentIsAnsweredOnceAndFreesEverything) {
  StartPair();
  std::mt19937_64 random(5);
  for (uint64_t id = 1; id <= 60; ++id) {
    const Generation generation = MakeGeneration(id, 1 + random() % 400, 300);
    Split(generation);
    const int64_t forwards = model_->forwards() + static_cast<int64_t>(random() % 12);
    // Not a wait for a time: for a number of steps, or for the end.
    ASSERT_TRUE(to_d_->Wait([&](const SessionAnswers& a) {
      const auto found = a.attempts.find(id);
      return model_->forwards() >= forwards ||
             (found != a.attempts.end() && !found->second.tokens.empty());
    })) << id;
    to_p_->Cancel(id);
    to_d_->Cancel(id);
  }
  const auto cancelled = [](RouterEnd& end, uint64_t id) {
    return end.Wait([id](const SessionAnswers& a) {
      const auto found = a.attempts.find(id);
      return found != a.attempts.end() && !found->second.finished.empty() &&
             found->second.finished.back().reason() == v1::FINISH_CANCELLED;
    });
  };
  for (uint64_t id = 1; id <= 60; ++id) {
    ASSERT_TRUE(cancelled(*to_p_, id)) << id;
    ASSERT_TRUE(cancelled(*to_d_, id)) << id;
    for (RouterEnd* end : {to_p_.get(), to_d_.get()}) {
      const auto finished = end->answers().attempts[id].finished;
      // The other half's cancel may have ended it before its own, which is answered all the same.
      ASSERT_FALSE(finished.empty());
      EXPECT_EQ(finished.back().reason(), v1::FINISH_CANCELLED);
      EXPECT_LE(finished.size(), 2u);
    }
  }
  ExpectQuiet(*to_p_);
  ExpectQuiet(*to_d_);
  EXPECT_EQ(model_->corruptions(), 0);
}

TEST_F(NodeTest, ADecodeWhosePrefillNeverComesEndsByItsDeadlineWithoutTraffic) {
  StartPair();
  Generation generation = MakeGeneration(1, 50, 20);
  generation.deadline = absl::Milliseconds(100);
  to_d_->Decode(generation, *to_p_->answers().hello);
  ASSERT_TRUE(to_d_->WaitFinished(1));
  EXPECT_EQ(to_d_->answers().attempts[1].finished[0].reason(), v1::FINISH_FAILED);
  ExpectQuiet(*to_d_);
}

TEST_F(NodeTest, ADecodeWhosePrefillNodeKnowsNothingOfItFailsBeforeItsDeadline) {
  StartPair({.fetch_wait = absl::Milliseconds(50)});
  to_d_->Decode(MakeGeneration(1, 50, 20), *to_p_->answers().hello);
  ASSERT_TRUE(to_d_->WaitFinished(1));
  const v1::Finished finished = to_d_->answers().attempts[1].finished[0];
  EXPECT_EQ(finished.reason(), v1::FINISH_FAILED);
  EXPECT_NE(finished.error().find("no offer has this ticket"), std::string::npos);
  ExpectQuiet(*to_d_);
}

TEST_F(NodeTest, ADecodeWhosePrefillHasEndedLeavesTheEndToThePrefillNode) {
  StartPair();
  const Generation generation = MakeGeneration(1, 50, 1);
  to_p_->Prefill(generation, v1::MODE_HAND_OVER);
  ASSERT_TRUE(to_p_->WaitFinished(1));
  EXPECT_EQ(to_p_->answers().attempts[1].finished[0].reason(), v1::FINISH_LENGTH);
  to_d_->Decode(generation, *to_p_->answers().hello);
  ASSERT_TRUE(to_d_->WaitFinished(1));
  EXPECT_EQ(to_d_->answers().attempts[1].finished[0].reason(), v1::FINISH_CANCELLED);
  ExpectQuiet(*to_p_);
  ExpectQuiet(*to_d_);
}

TEST_F(NodeTest, AKeyInUseAndARoleNotHadAreRefused) {
  StartPair();
  to_p_->Prefill(MakeGeneration(1, 300, 10), v1::MODE_HAND_OVER);
  to_p_->Prefill(MakeGeneration(1, 300, 10), v1::MODE_HAND_OVER);
  to_p_->Prefill(MakeGeneration(2, 5, 10), v1::MODE_WHOLE);
  to_d_->Prefill(MakeGeneration(3, 5, 10), v1::MODE_HAND_OVER);
  const auto refused = [](uint64_t id) {
    return [id](const SessionAnswers& a) {
      const auto found = a.attempts.find(id);
      return found != a.attempts.end() && found->second.refused.has_value();
    };
  };
  ASSERT_TRUE(to_p_->Wait(refused(1)));
  ASSERT_TRUE(to_p_->Wait(refused(2)));
  ASSERT_TRUE(to_d_->Wait(refused(3)));
  EXPECT_TRUE(to_d_->answers().attempts[3].refused->retryable());
}

TEST_F(NodeTest, MoreAttemptsThanTheLimitAreRefusedForNow) {
  const auto node = StartNode({.max_attempts = 3});
  const auto end = Open(*node);
  for (uint64_t id = 1; id <= 4; ++id) {
    end->Prefill(MakeGeneration(id, 100, 1900), v1::MODE_WHOLE);
  }
  ASSERT_TRUE(end->Wait([](const SessionAnswers& a) {
    const auto found = a.attempts.find(4);
    return found != a.attempts.end() && found->second.refused;
  }));
  EXPECT_TRUE(end->answers().attempts[4].refused->retryable());
  EXPECT_GT(end->answers().attempts[4].refused->retry_after_ms(), 0);
}

TEST_F(NodeTest, AFullMailboxRefusesRequestsButLosesNoCancel) {
  std::atomic<bool> blocked{false};
  std::promise<void> release;
  std::shared_future<void> released = release.get_future().share();
  model_->on_forward = [&](const engine::Batch&) {
    blocked = true;
    released.wait();
  };
  const auto node = StartNode({.mailbox_limit = 4});
  const auto end = Open(*node);
  for (uint64_t id = 1; id <= 40; ++id) {
    end->Prefill(MakeGeneration(id, 10, 1000), v1::MODE_WHOLE);
  }
  // The first one's step stands still, four more fit in the mailbox, the others can't.
  EXPECT_TRUE(end->Wait([](const SessionAnswers& a) {
    const auto found = a.attempts.find(40);
    return found != a.attempts.end() && found->second.refused && found->second.refused->retryable();
  }));
  for (uint64_t id = 1; id <= 40; ++id) end->Cancel(id);
  end->Ping();
  EXPECT_TRUE(end->Wait([](const SessionAnswers& a) { return a.num_pongs == 1; }));
  release.set_value();
  for (uint64_t id = 1; id <= 40; ++id) EXPECT_TRUE(end->WaitFinished(id)) << id;
  ExpectQuiet(*end);
}

TEST_F(NodeTest, TokensOfAllAttemptsComeInOneMessageAStep) {
  const auto node = StartNode({});
  const auto end = Open(*node);
  for (uint64_t id = 1; id <= 10; ++id) {
    end->Prefill(MakeGeneration(id, 3, 100), v1::MODE_WHOLE);
  }
  for (uint64_t id = 1; id <= 10; ++id) ASSERT_TRUE(end->WaitFinished(id));
  EXPECT_LE(end->answers().num_token_messages, model_->forwards());
  EXPECT_EQ(end->answers().attempts[10].tokens.size(), 100u);
}

TEST_F(NodeTest, ARouterThatDoesNotReadIsDroppedAndTheOthersGoOn) {
  const auto node = StartNode({});
  RouterEnd deaf(node->InProcessChannel(), /*reads=*/false);
  deaf.Hello();
  const auto end = Open(*node);
  bool open = true;
  for (int i = 0; i < 1'000'000 && open; ++i) {
    v1::RouterMessage message;
    message.mutable_prefill()->set_attempt(static_cast<uint64_t>(i));  // refused, with a reason
    open = deaf.Write(message);
  }
  EXPECT_FALSE(open);
  end->Prefill(MakeGeneration(1, 30, 30), v1::MODE_WHOLE);
  EXPECT_TRUE(end->WaitFinished(1));
}

TEST_F(NodeTest, DrainEndsWhatRunsRefusesWhatIsNewAndTellsTheRouters) {
  StartPair();
  const Generation running = MakeGeneration(1, 200, 300);
  Split(running);
  ASSERT_TRUE(to_d_->Wait([](const SessionAnswers& a) { return a.num_token_messages > 0; }));
  EXPECT_TRUE(p_->Drain(absl::Seconds(30)));
  EXPECT_TRUE(d_->Drain(absl::Seconds(30)));
  ExpectSplit(running);
  EXPECT_TRUE(to_p_->Wait([](const SessionAnswers& a) { return a.draining; }));
  to_p_->Prefill(MakeGeneration(2, 5, 5), v1::MODE_HAND_OVER);
  ASSERT_TRUE(to_p_->Wait([](const SessionAnswers& a) {
    const auto found = a.attempts.find(2);
    return found != a.attempts.end() && found->second.refused;
  }));
  EXPECT_TRUE(to_p_->answers().attempts[2].refused->retryable());
  EXPECT_TRUE(Open(*p_)->Wait([](const SessionAnswers& a) { return a.draining; }));
}

TEST_F(NodeTest, DrainDoesNotEndWhileAHandOverIsNotAcknowledged) {
  StartPair();
  to_p_->Prefill(MakeGeneration(1, 50, 20), v1::MODE_HAND_OVER);  // and nobody fetches
  ASSERT_TRUE(to_p_->Wait([](const SessionAnswers& a) { return a.num_token_messages > 0; }));
  EXPECT_FALSE(p_->Drain(absl::Milliseconds(100)));
  to_p_->Cancel(1);
  EXPECT_TRUE(p_->Drain(absl::Seconds(30)));
}

TEST_F(NodeTest, ANodeThatStopsInTheMiddleEndsItsPeersHandOvers) {
  StartPair();
  const auto generations = Mixed(12);
  for (const Generation& generation : generations) Split(generation);
  to_d_->Wait([](const SessionAnswers& a) { return a.num_token_messages > 0; });
  p_.reset();
  for (const Generation& generation : generations) {
    EXPECT_TRUE(to_d_->WaitFinished(generation.key.attempt.value));
  }
  ExpectQuiet(*to_d_);
}

TEST_F(NodeTest, MetricsAreThereBeforeAnyTraffic) {
  const auto node = StartNode({.id = "m"});
  const auto end = Open(*node);
  ASSERT_TRUE(end->Wait([this](const SessionAnswers&) {
    return metrics_->Render().find("pdserve_kv_blocks_capacity{node=\"m\"}") != std::string::npos;
  }));
  const std::string page = metrics_->Render();
  for (const char* want :
       {"pdserve_kv_offers_total{node=\"m\",outcome=\"failed\"} 0",
        "pdserve_kv_fetches_total{node=\"m\",outcome=\"expired\"} 0",
        "pdserve_kv_pool_faults_total{node=\"m\"} 0", "pdserve_transport_info{node=\"m\""}) {
    EXPECT_NE(page.find(want), std::string::npos) << want << "\n" << page;
  }
}

TEST_F(NodeTest, APortInUseIsAnErrorThatNamesIt) {
  node::NodeOptions options;
  options.listen = "127.0.0.1:0";
  options.node_id = "a";
  options.kv_pool_bytes = 1 << 20;
  options.pump.transport = "inproc";
  options.pump.listen = "a";
  const auto first = node::Node::Start(options, model_, metrics_.get(), &clock_);
  ASSERT_TRUE(first.ok()) << first.status();
  options.listen = (*first)->session_address();
  options.pump.listen = "b";
  const auto second = node::Node::Start(options, model_, metrics_.get(), &clock_);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find(options.listen), std::string::npos);
}

}  // namespace
}  // namespace pdserve::testing
