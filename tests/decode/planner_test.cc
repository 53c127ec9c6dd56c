#include "decode/planner.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace pdserve::decode {
namespace {

DecodeState State(const std::vector<RunningView>& running, const std::vector<int32_t>& waiting,
                  int32_t free_blocks) {
  return {.running = running,
          .waiting = waiting,
          .landing = 0,
          .landing_blocks = 0,
          .max_landing_blocks = 1000,
          .free_blocks = free_blocks,
          .block_tokens = 32,
          .max_batch = 4,
          .budget_tokens = 100};
}

std::map<size_t, Row> Rows(const DecodePlan& plan) {
  std::map<size_t, Row> rows;
  for (const Row& row : plan.rows) rows[row.running] = row;
  return rows;
}

TEST(DecodePlannerTest, EachReadySequenceGetsARowAndGrowsAtABlocksEnd) {
  const std::vector<RunningView> running = {{20, 19, 1, 0}, {33, 32, 1, 0}};
  const auto rows = Rows(PlanDecode(State(running, {}, 5)));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows.at(0).new_blocks, 0);
  EXPECT_EQ(rows.at(1).new_blocks, 1);
}

TEST(DecodePlannerTest, BeyondTheBatchLimitTheyTakeTurns) {
  std::vector<RunningView> running(10, RunningView{20, 19, 1, 0});
  std::map<size_t, int> counts;
  for (uint64_t step = 1; step <= 10; ++step) {
    const DecodePlan plan = PlanDecode(State(running, {}, 5));
    EXPECT_EQ(plan.rows.size(), 4u);
    for (const Row& row : plan.rows) {
      running[row.running].last_step = step;
      ++counts[row.running];
    }
  }
  for (size_t i = 0; i < running.size(); ++i) EXPECT_NEAR(counts[i], 4, 1);
}

TEST(DecodePlannerTest, AnEmptyPoolTakesFromTheYoungest) {
  const std::vector<RunningView> running = {{33, 32, 1, 0}, {20, 19, 1, 0}, {50, 49, 2, 0}};
  const DecodePlan plan = PlanDecode(State(running, {}, 0));
  EXPECT_EQ(plan.preempted, std::vector<size_t>{2});
  const auto rows = Rows(plan);
  EXPECT_EQ(rows.at(0).new_blocks, 1);
  EXPECT_TRUE(rows.contains(1));
  EXPECT_FALSE(rows.contains(2));
}

TEST(DecodePlannerTest, TheYoungestWaitsInsteadOfTakingFromTheOlder) {
  const std::vector<RunningView> running = {{20, 19, 1, 0}, {33, 32, 1, 0}};
  const DecodePlan plan = PlanDecode(State(running, {}, 0));
  EXPECT_TRUE(plan.preempted.empty());
  EXPECT_EQ(plan.rows.size(), 1u);
}

TEST(DecodePlannerTest, WhoLostItsBlocksComesBackInChunksBeforeAnyoneLands) {
  const std::vector<RunningView> running = {{20, 19, 1, 0}, {300, 0, 0, 0}};
  const std::vector<int32_t> waiting = {1};
  const DecodePlan plan = PlanDecode(State(running, waiting, 11));
  const auto rows = Rows(plan);
  EXPECT_EQ(rows.at(1).new_blocks, 10);
  EXPECT_EQ(rows.at(1).num_tokens, 99);
  EXPECT_EQ(plan.num_landings, 0u);  // one block is left, and that is the headroom
}

TEST(DecodePlannerTest, WhileSomeoneWaitsToComeBackNobodyLandsAndTheNeedIsReserved) {
  const std::vector<RunningView> running = {{20, 19, 1, 0}, {300, 0, 0, 0}};
  const std::vector<int32_t> waiting = {1};
  const DecodePlan plan = PlanDecode(State(running, waiting, 9));
  EXPECT_EQ(plan.num_landings, 0u);
  EXPECT_GE(plan.reserved_blocks, 10);
}

TEST(DecodePlannerTest, ARecomputationGoesOnWhereItWas) {
  const std::vector<RunningView> running = {{300, 96, 10, 0}};
  const auto rows = Rows(PlanDecode(State(running, {}, 0)));
  EXPECT_EQ(rows.at(0).num_tokens, 100);
  EXPECT_EQ(rows.at(0).new_blocks, 0);
}

TEST(DecodePlannerTest, LandingsComeInOrderWhileBlocksLast) {
  const std::vector<int32_t> waiting = {3, 3, 9, 1};
  const DecodePlan plan = PlanDecode(State({}, waiting, 10));
  EXPECT_EQ(plan.num_landings, 2u);  // the third does not fit, and the fourth does not pass it
  EXPECT_GE(plan.reserved_blocks, 9);
}

TEST(DecodePlannerTest, AnOnlyOneMayTakeTheWholePool) {
  const std::vector<int32_t> waiting = {10};
  EXPECT_EQ(PlanDecode(State({}, waiting, 10)).num_landings, 1u);
}

TEST(DecodePlannerTest, LandingsKeepToTheirShareAndReserveNothingBeyondIt) {
  const std::vector<int32_t> waiting = {3, 3, 1};
  DecodeState state = State({}, waiting, 100);
  state.landing = 1;
  state.landing_blocks = 4;
  state.max_landing_blocks = 8;
  const DecodePlan plan = PlanDecode(state);
  EXPECT_EQ(plan.num_landings, 1u);
  EXPECT_EQ(plan.reserved_blocks, 0);
}

TEST(DecodePlannerTest, OneLandingAloneMayExceedTheShare) {
  const std::vector<int32_t> waiting = {9, 1};
  DecodeState state = State({}, waiting, 100);
  state.max_landing_blocks = 8;
  EXPECT_EQ(PlanDecode(state).num_landings, 1u);
}

TEST(DecodePlannerTest, WhatIsSharedIsNotSetFree) {
  const std::vector<RunningView> running = {{33, 32, 1, 0}, {90, 89, 3, 0, 0}, {90, 89, 3, 0, 3}};
  EXPECT_EQ(PlanDecode(State(running, {}, 0)).preempted, (std::vector<size_t>{2, 1}));
}

TEST(DecodePlannerTest, WhoComesBackNeedsNoRoomForWhatOthersHold) {
  const std::vector<RunningView> running = {{20, 19, 1, 0}, {300, 288, 0, 0, 9}};
  const DecodePlan plan = PlanDecode(State(running, {}, 2));
  const auto rows = Rows(plan);
  EXPECT_EQ(rows.at(1).new_blocks, 1);
  EXPECT_EQ(rows.at(1).num_tokens, 12);
}

TEST(DecodePlannerTest, NobodyComesBackInAStepThatTakesBlocksAway) {
  const std::vector<RunningView> running = {
      {33, 32, 1, 0}, {300, 288, 0, 0, 9}, {300, 299, 10, 0, 0}};
  const DecodePlan plan = PlanDecode(State(running, {}, 0));
  EXPECT_EQ(plan.preempted, std::vector<size_t>{2});
  EXPECT_EQ(plan.rows.size(), 1u);
  EXPECT_GE(plan.reserved_blocks, 1);
}

TEST(DecodePlannerTest, NoBudgetNoRows) {
  const std::vector<RunningView> running = {{20, 19, 1, 0}, {300, 0, 0, 0}};
  DecodeState state = State(running, {}, 100);
  state.budget_tokens = 0;
  EXPECT_TRUE(PlanDecode(state).rows.empty());
}

}  // namespace
}  // namespace pdserve::decode
