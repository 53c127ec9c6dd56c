#include "engine/pace.h"

#include <gtest/gtest.h>

namespace pdserve::engine {
namespace {

// A machine whose steps take 2 ms, 0.1 ms for each decode row, 0.25 ms for each token of a prompt.
absl::Duration Took(const Pace::Step& step) {
  return absl::Microseconds(2000 + 100 * step.decode_rows + 250 * step.prompt_tokens);
}

// Steps of `rows`, with and without prompts; the last one's prompt tokens.
int32_t Settle(Pace& pace, int32_t rows, int32_t budget) {
  int32_t tokens = 0;
  for (int i = 0; i < 50; ++i) {
    pace.OnStep({rows, 0}, Took({rows, 0}));
    tokens = pace.PromptTokens(rows, budget);
    pace.OnStep({rows, tokens}, Took({rows, tokens}));
  }
  return tokens;
}

TEST(PaceTest, StepFillsTheTargetAndNoMore) {
  for (const int32_t target_ms : {10, 20, 50}) {
    for (const int32_t rows : {1, 4, 16}) {
      Pace pace(absl::Milliseconds(target_ms));
      const int32_t tokens = Settle(pace, rows, 4096);
      const absl::Duration took = Took({rows, tokens});
      EXPECT_LE(took, absl::Milliseconds(target_ms)) << rows;
      EXPECT_GT(took, absl::Milliseconds(target_ms) * 0.9) << rows;
    }
  }
}

TEST(PaceTest, WithoutATargetTheBudgetIsUsed) {
  Pace pace(absl::ZeroDuration());
  EXPECT_EQ(Settle(pace, 4, 512), 512);
}

TEST(PaceTest, WithoutDecodeRowsTheBudgetIsUsed) {
  Pace pace(absl::Milliseconds(5));
  Settle(pace, 4, 512);
  EXPECT_EQ(pace.PromptTokens(0, 512), 512);
}

TEST(PaceTest, BudgetIsNeverExceeded) {
  Pace pace(absl::Seconds(10));
  EXPECT_EQ(Settle(pace, 4, 100), 100);
  EXPECT_EQ(pace.PromptTokens(4, 7), 7);
  EXPECT_EQ(pace.PromptTokens(4, 0), 0);
}

TEST(PaceTest, PromptsMoveOnThoughTheTargetCannotBeHeld) {
  Pace pace(absl::Milliseconds(1));
  EXPECT_GT(Settle(pace, 8, 512), 0);
}

TEST(PaceTest, AnUnknownMachineIsTriedWithLittle) {
  const Pace pace(absl::Milliseconds(100));
  EXPECT_GT(pace.PromptTokens(4, 4096), 0);
  EXPECT_LE(pace.PromptTokens(4, 4096), 64);
}

TEST(PaceTest, OtherNumbersOfRowsAreGuessedFromTheNearest) {
  Pace pace(absl::Milliseconds(20));
  Settle(pace, 16, 4096);
  const int32_t tokens = pace.PromptTokens(4, 4096);
  EXPECT_LE(Took({4, tokens}), absl::Milliseconds(20));
  EXPECT_GT(Took({4, tokens}), absl::Milliseconds(15));
}

}  // namespace
}  // namespace pdserve::engine
