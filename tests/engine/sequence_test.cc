#include "engine/sequence.h"

#include <gtest/gtest.h>

#include <vector>

namespace pdserve::engine {
namespace {

const std::vector<TokenId> kEnds = {TokenId{5}, TokenId{9}};

Sequence Make(std::vector<uint32_t> tokens, int32_t prompt_tokens, int32_t max_tokens) {
  Sequence sequence;
  for (uint32_t token : tokens) sequence.tokens.push_back(TokenId{token});
  sequence.prompt_tokens = prompt_tokens;
  sequence.max_tokens = max_tokens;
  return sequence;
}

TEST(SequenceTest, APromptThatEndsWithAnEndTokenIsNotFinished) {
  EXPECT_EQ(CheckFinish(Make({1, 5}, 2, 4), {kEnds, 100}), Finish::kNone);
}

TEST(SequenceTest, AnEndTokenStops) {
  EXPECT_EQ(CheckFinish(Make({1, 2, 9}, 2, 4), {kEnds, 100}), Finish::kStop);
}

TEST(SequenceTest, AnEndTokenAtTheLimitIsAStop) {
  EXPECT_EQ(CheckFinish(Make({1, 2, 9}, 2, 1), {kEnds, 3}), Finish::kStop);
}

TEST(SequenceTest, AnIgnoredEndTokenDoesNotStop) {
  Sequence sequence = Make({1, 2, 9}, 2, 4);
  sequence.ignore_eos = true;
  EXPECT_EQ(CheckFinish(sequence, {kEnds, 100}), Finish::kNone);
}

TEST(SequenceTest, MaxTokensEndsByLength) {
  EXPECT_EQ(CheckFinish(Make({1, 2, 3}, 2, 1), {kEnds, 100}), Finish::kLength);
  EXPECT_EQ(CheckFinish(Make({1, 2, 3}, 2, 2), {kEnds, 100}), Finish::kNone);
}

TEST(SequenceTest, AFullContextEndsByLength) {
  EXPECT_EQ(CheckFinish(Make({1, 2, 3}, 2, 9), {kEnds, 3}), Finish::kLength);
}

}  // namespace
}  // namespace pdserve::engine
