#include "prefill/planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace pdserve::prefill {
namespace {

int32_t Given(const PromptPlan& plan, size_t prompt) {
  for (const Chunk& chunk : plan.chunks) {
    if (chunk.prompt == prompt) return chunk.num_tokens;
  }
  return 0;
}

TEST(PrefillPlannerTest, OnePromptGetsTheWholeBudget) {
  const std::vector<PromptView> prompts = {{1000, 4}};
  const PromptPlan plan = PlanPrompts({prompts, 4, 256});
  EXPECT_EQ(plan.admitted, std::vector<size_t>{0});
  EXPECT_EQ(Given(plan, 0), 256);
}

TEST(PrefillPlannerTest, AShortPromptIsDoneInOneStepBesideALongOne) {
  const std::vector<PromptView> prompts = {{10000, 0}, {10, 1}};
  const PromptPlan plan = PlanPrompts({prompts, 4, 256});
  EXPECT_EQ(Given(plan, 1), 10);
  EXPECT_EQ(Given(plan, 0), 246);
}

TEST(PrefillPlannerTest, ManyShortPromptsLeaveHalfToTheOldest) {
  std::vector<PromptView> prompts = {{10000, 0}};
  for (int i = 0; i < 100; ++i) prompts.push_back({50, 0});
  EXPECT_GE(Given(PlanPrompts({prompts, 0, 256}), 0), 128);
}

TEST(PrefillPlannerTest, BlocksAreGivenInOrderOfArrivalAndAllAtOnce) {
  const std::vector<PromptView> prompts = {{64, 2}, {320, 10}, {32, 1}, {5, 0}};
  const PromptPlan plan = PlanPrompts({prompts, 4, 256});
  EXPECT_EQ(plan.admitted, std::vector<size_t>{0});  // the small one does not pass the large one
  EXPECT_EQ(Given(plan, 0), 64);
  EXPECT_EQ(Given(plan, 1), 0);
  EXPECT_EQ(Given(plan, 2), 0);
  EXPECT_EQ(Given(plan, 3), 5);
}

TEST(PrefillPlannerTest, ThoseAheadKeepToTheirShare) {
  const std::vector<PromptView> prompts = {{64, 2, true}, {64, 2, true}, {64, 2, true}};
  const PromptPlan plan = PlanPrompts({prompts, 40, 256, 5});
  EXPECT_EQ(plan.admitted, (std::vector<size_t>{0, 1}));
}

TEST(PrefillPlannerTest, ThoseWithAPlaceToGoPassThoseAhead) {
  const std::vector<PromptView> prompts = {{320, 10, true}, {64, 2, true}, {64, 2}, {96, 3}};
  EXPECT_EQ(PlanPrompts({prompts, 5, 256, 40}).admitted, (std::vector<size_t>{2, 3}));
}

TEST(PrefillPlannerTest, ThoseAheadDoNotTakeWhatOneWithAPlaceWaitsFor) {
  const std::vector<PromptView> prompts = {{64, 2, true}, {320, 10}};
  EXPECT_TRUE(PlanPrompts({prompts, 5, 256, 40}).admitted.empty());
}

TEST(PrefillPlannerTest, NoBudgetNoChunks) {
  const std::vector<PromptView> prompts = {{64, 0}};
  EXPECT_TRUE(PlanPrompts({prompts, 4, 0}).chunks.empty());
  EXPECT_TRUE(PlanPrompts({prompts, 4, -3}).chunks.empty());
}

TEST(PrefillPlannerTest, RandomPlansKeepBudgetBlocksAndNeeds) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<PromptView> prompts;
    for (uint64_t i = 0; i < random() % 20; ++i) {
      const auto tokens = static_cast<int32_t>(1 + random() % 500);
      prompts.push_back({tokens, random() % 2 == 0 ? 0 : (tokens + 31) / 32, random() % 2 == 0});
    }
    const auto ahead_blocks = static_cast<int32_t>(random() % 20) - 2;
    const auto free_blocks = static_cast<int32_t>(random() % 40);
    const auto budget = static_cast<int32_t>(random() % 300);
    const PromptPlan plan = PlanPrompts({prompts, free_blocks, budget, ahead_blocks});
    int32_t tokens = 0;
    int64_t ready_tokens = 0;
    std::vector<bool> has_blocks;
    for (const PromptView& view : prompts) has_blocks.push_back(view.needed_blocks == 0);
    int32_t blocks = 0;
    int32_t ahead = 0;
    for (size_t i : plan.admitted) {
      blocks += prompts[i].needed_blocks;
      if (prompts[i].is_ahead) ahead += prompts[i].needed_blocks;
      has_blocks[i] = true;
    }
    EXPECT_LE(blocks, free_blocks);
    EXPECT_LE(ahead, std::max(ahead_blocks, 0));
    for (size_t i = 0; i < prompts.size(); ++i) {
      if (has_blocks[i]) ready_tokens += prompts[i].uncomputed_tokens;
    }
    for (const Chunk& chunk : plan.chunks) {
      EXPECT_TRUE(has_blocks[chunk.prompt]);
      EXPECT_GE(chunk.num_tokens, 1);
      EXPECT_LE(chunk.num_tokens, prompts[chunk.prompt].uncomputed_tokens);
      tokens += chunk.num_tokens;
    }
    EXPECT_EQ(tokens, std::min<int64_t>(budget, ready_tokens));  // no token of the budget is wasted
  }
}

}  // namespace
}  // namespace pdserve::prefill
