#include "engine/step_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_model.h"

namespace pdserve::engine {
namespace {

using pdserve::testing::FakeClock;
using pdserve::testing::FakeModel;

/// Computes one sequence, `chunk` tokens a step, until it has `max_tokens` output tokens.
class OneSequence final : public StepClient {
 public:
  OneSequence(BlockPool* pool, std::vector<uint32_t> prompt, int32_t chunk) : chunk_(chunk) {
    for (uint32_t token : prompt) sequence.tokens.push_back(TokenId{token});
    sequence.prompt_tokens = static_cast<int32_t>(prompt.size());
    sequence.sampling.temperature = 0.0f;
    EXPECT_TRUE(pool->Allocate(8, sequence.blocks));
  }

  void AddWork(absl::Time, Plan& plan) override {
    ++num_calls;
    if (sequence.output_tokens() >= max_tokens) return;
    const int32_t tokens = std::min({chunk_, sequence.uncomputed(), plan.budget_tokens});
    if (tokens == 0) return;
    plan.entries.push_back({this, &sequence, tokens});
    plan.budget_tokens -= tokens;
  }
  void OnStep(absl::Time, std::span<const StepOutput> outputs) override {
    for (const StepOutput& output : outputs) {
      if (output.owner == this && output.sampled) sampled.push_back(output.token.value);
    }
  }
  absl::Time NextDeadline() const override { return deadline; }

  Sequence sequence;
  int32_t max_tokens = 0;
  std::vector<uint32_t> sampled;
  absl::Time deadline = absl::InfiniteFuture();
  std::atomic<int> num_calls{0};

 private:
  const int32_t chunk_;
};

class StepLoopTest : public ::testing::Test {
 protected:
  std::unique_ptr<StepLoop> MakeLoop(std::vector<StepClient*> clients, StepLoopOptions options) {
    return std::make_unique<StepLoop>(options, &model_, pool_.get(), std::move(clients), &clock_);
  }

  FakeModel model_;
  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(
      model_.card().cache_layout.block_bytes(), 64 * model_.card().cache_layout.block_bytes());
  FakeClock clock_;
};

std::vector<uint32_t> Expected(const std::vector<uint32_t>& prompt, uint32_t max_tokens) {
  Generation generation;
  generation.prompt = prompt;
  generation.max_tokens = max_tokens;
  generation.ignore_eos = true;
  generation.sampling.temperature = 0.0f;
  return FakeModel::Continue(generation);
}

TEST_F(StepLoopTest, ChunksOfAnySizeGiveTheSameTokens) {
  const std::vector<uint32_t> prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  for (int32_t chunk : {1, 2, 5, 11}) {
    OneSequence client(pool_.get(), prompt, chunk);
    client.max_tokens = 9;
    auto loop = MakeLoop({&client}, {.max_step_tokens = 16});
    while (loop->TurnOnce()) {
    }
    EXPECT_EQ(client.sampled, Expected(prompt, 9));
    EXPECT_EQ(client.sequence.computed + 1, static_cast<int32_t>(client.sequence.tokens.size()));
  }
}

TEST_F(StepLoopTest, ClientsShareOneBudgetInTheirOrder) {
  OneSequence first(pool_.get(), std::vector<uint32_t>(10, 1), 100);
  OneSequence second(pool_.get(), std::vector<uint32_t>(10, 2), 100);
  first.max_tokens = second.max_tokens = 1;
  auto loop = MakeLoop({&first, &second}, {.max_step_tokens = 16});
  EXPECT_TRUE(loop->TurnOnce());
  EXPECT_EQ(first.sequence.computed, 10);
  EXPECT_EQ(second.sequence.computed, 6);
}

TEST_F(StepLoopTest, PromptsLeaveDecodeRowsTheirTarget) {
  OneSequence decodes(pool_.get(), {1}, 1);
  OneSequence prompt(pool_.get(), std::vector<uint32_t>(100, 2), 100);
  decodes.max_tokens = 5;
  auto loop =
      MakeLoop({&decodes, &prompt}, {.max_step_tokens = 256, .itl_target = absl::Milliseconds(5)});
  EXPECT_TRUE(loop->TurnOnce());  // no decode row yet, only prompts
  prompt.max_tokens = 1;
  EXPECT_TRUE(loop->TurnOnce());
  EXPECT_EQ(decodes.sampled.size(), 2u);
  EXPECT_GT(prompt.sequence.computed, 0);
  EXPECT_LT(prompt.sequence.computed, 100);
}

TEST_F(StepLoopTest, ATaskRunsBeforeTheNextPlan) {
  OneSequence client(pool_.get(), {1, 2}, 8);
  auto loop = MakeLoop({&client}, {});
  EXPECT_FALSE(loop->TurnOnce());
  EXPECT_TRUE(loop->Post([&] { client.max_tokens = 1; }));
  EXPECT_TRUE(loop->TurnOnce());
  EXPECT_EQ(client.sampled, Expected({1, 2}, 1));
}

TEST_F(StepLoopTest, AFullMailboxRefusesButTakesWhatIsReserved) {
  auto loop = MakeLoop({}, {.mailbox_limit = 2});
  std::vector<int> ran;
  EXPECT_TRUE(loop->Post([&] { ran.push_back(1); }));
  EXPECT_TRUE(loop->Post([&] { ran.push_back(2); }));
  EXPECT_FALSE(loop->Post([&] { ran.push_back(3); }));
  EXPECT_TRUE(loop->PostReserved([&] { ran.push_back(4); }));
  loop->TurnOnce();
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 4}));
}

TEST_F(StepLoopTest, StopRunsWhatWasPostedAndThenRefuses) {
  auto loop = MakeLoop({}, {});
  std::atomic<int> ran{0};
  loop->Start();
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(loop->Post([&] { ++ran; }));
  loop->Stop();
  EXPECT_EQ(ran, 100);
  EXPECT_FALSE(loop->Post([&] { ++ran; }));
  EXPECT_FALSE(loop->PostReserved([&] { ++ran; }));
}

TEST_F(StepLoopTest, AnIdleLoopDoesNotSpin) {
  OneSequence client(pool_.get(), {1}, 8);
  auto loop = MakeLoop({&client}, {});
  loop->Start();
  for (int i = 0; i < 10; ++i) {
    std::promise<void> done;
    loop->Post([&] { done.set_value(); });
    done.get_future().wait();
  }
  loop->Stop();
  // One turn for each task, one a second besides, and some slack; a spinning one has thousands.
  EXPECT_LT(client.num_calls, 100);
}

TEST_F(StepLoopTest, ManyThreadsMayPost) {
  OneSequence client(pool_.get(), {1, 2, 3}, 1);
  client.max_tokens = 50;
  auto loop = MakeLoop({&client}, {});
  loop->Start();
  int ran = 0;  // the loop's thread only
  std::vector<std::thread> posters;
  for (int t = 0; t < 4; ++t) {
    posters.emplace_back([&] {
      for (int i = 0; i < 500; ++i) EXPECT_TRUE(loop->Post([&] { ++ran; }));
    });
  }
  for (std::thread& poster : posters) poster.join();
  loop->Stop();
  EXPECT_EQ(ran, 2000);
}

TEST_F(StepLoopTest, LastTurnFollowsTheClock) {
  auto loop = MakeLoop({}, {});
  clock_.Advance(absl::Hours(1));
  loop->TurnOnce();
  EXPECT_EQ(loop->last_turn(), clock_.Now());
}

}  // namespace
}  // namespace pdserve::engine
