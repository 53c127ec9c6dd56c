#include "engine/generation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

namespace pdserve::engine {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);
constexpr GenerationLimits kLimits{.vocab_size = 100, .max_context_tokens = 16, .pool_tokens = 12};

Generation Good() {
  Generation generation;
  generation.key = {SessionId{1}, AttemptId{2}};
  generation.prompt = {1, 2, 3};
  generation.emitted = {4};
  generation.max_tokens = 5;
  generation.deadline = absl::Seconds(1);
  return generation;
}

TEST(GenerationTest, ASaneOneBecomesASequenceWithNothingComputed) {
  const auto sequence = MakeSequence(Good(), kLimits, kNow);
  ASSERT_TRUE(sequence.ok());
  EXPECT_EQ(sequence->tokens.size(), 4u);
  EXPECT_EQ(sequence->prompt_tokens, 3);
  EXPECT_EQ(sequence->output_tokens(), 1);
  EXPECT_EQ(sequence->computed, 0);
  EXPECT_EQ(sequence->deadline, kNow + absl::Seconds(1));
}

TEST(GenerationTest, WhatIsNotSaneIsRefusedWithItsName) {
  struct Case {
    std::string names;
    std::function<void(Generation&)> spoil;
  };
  const Case cases[] = {
      {"prompt is empty", [](Generation& g) { g.prompt.clear(); }},
      {"prompt_token_ids[1]", [](Generation& g) { g.prompt[1] = 100; }},
      {"prompt_token_ids[0]", [](Generation& g) { g.prompt[0] = 0xffffffff; }},
      {"emitted_token_ids[0]", [](Generation& g) { g.emitted[0] = 100; }},
      {"the context is 16", [](Generation& g) { g.prompt.assign(16, 1), g.emitted.clear(); }},
      {"pool holds 12", [](Generation& g) { g.prompt.assign(12, 1); }},
      {"max_tokens", [](Generation& g) { g.max_tokens = 0; }},
      {"max_tokens is 1", [](Generation& g) { g.emitted = {4, 5}, g.max_tokens = 1; }},
      {"the context is 16", [](Generation& g) { g.prompt.assign(16, 1); }},
      {"the context is 16",
       [](Generation& g) { g.prompt.assign(16, 1), g.emitted = {1}, g.max_tokens = 1; }},
      {"temperature", [](Generation& g) { g.sampling.temperature = -1; }},
      {"temperature", [](Generation& g) { g.sampling.temperature = NAN; }},
      {"temperature", [](Generation& g) { g.sampling.temperature = INFINITY; }},
      {"top_p", [](Generation& g) { g.sampling.top_p = 0; }},
      {"top_p", [](Generation& g) { g.sampling.top_p = 1.5; }},
      {"top_p", [](Generation& g) { g.sampling.top_p = NAN; }},
      {"top_k", [](Generation& g) { g.sampling.top_k = -1; }},
      {"deadline", [](Generation& g) { g.deadline = absl::ZeroDuration(); }},
      {"deadline", [](Generation& g) { g.deadline = absl::Seconds(-5); }},
  };
  for (const Case& spoiled : cases) {
    Generation generation = Good();
    spoiled.spoil(generation);
    const auto sequence = MakeSequence(generation, kLimits, kNow);
    ASSERT_TRUE(absl::IsInvalidArgument(sequence.status())) << spoiled.names;
    EXPECT_NE(sequence.status().message().find(spoiled.names), std::string::npos)
        << sequence.status();
  }
}

TEST(GenerationTest, EmittedTokensMayHaveEndedIt) {
  Generation generation = Good();
  generation.max_tokens = 1;
  ASSERT_TRUE(MakeSequence(generation, kLimits, kNow).ok());
  generation.prompt.assign(12, 1);  // with its last token, which is never computed, above the pool
  const auto by_count = MakeSequence(generation, kLimits, kNow);
  ASSERT_TRUE(by_count.ok()) << by_count.status();
  EXPECT_EQ(CheckFinish(*by_count, {{}, kLimits.max_context_tokens}), Finish::kLength);
  generation.prompt.assign(15, 1);
  generation.max_tokens = 9;
  const auto by_context = MakeSequence(generation, kLimits, kNow);
  ASSERT_TRUE(by_context.ok()) << by_context.status();
  EXPECT_EQ(CheckFinish(*by_context, {{}, kLimits.max_context_tokens}), Finish::kLength);
}

TEST(GenerationTest, HugeLimitsAreCutNotOverflown) {
  Generation generation = Good();
  generation.max_tokens = 0xffffffff;
  generation.deadline = absl::InfiniteDuration();
  const auto sequence = MakeSequence(generation, kLimits, kNow);
  ASSERT_TRUE(sequence.ok());
  EXPECT_EQ(sequence->max_tokens, kLimits.max_context_tokens);
  EXPECT_EQ(sequence->deadline, kNow + kLongestAttempt);
}

TEST(GenerationTest, TheLastTokenNeedsNoCache) {
  const auto sequence = MakeSequence(Good(), kLimits, kNow);
  EXPECT_EQ(MostCachedTokens(*sequence, 16), 7);
  EXPECT_EQ(MostCachedTokens(*sequence, 6), 5);
}

TEST(GenerationTest, OnlyWhatIsAboutTheRequestItselfIsRefusedForGood) {
  const Refusal for_good = RefusalOf(absl::InvalidArgumentError("no"));
  EXPECT_EQ(for_good.reason, "no");
  EXPECT_FALSE(for_good.retryable);
  EXPECT_EQ(for_good.retry_after, absl::ZeroDuration());
  for (const absl::Status& status :
       {absl::ResourceExhaustedError("full"), absl::AlreadyExistsError("in use")}) {
    EXPECT_TRUE(RefusalOf(status).retryable);
    EXPECT_GT(RefusalOf(status).retry_after, absl::ZeroDuration());
  }
}

TEST(GenerationTest, ATicketHas16Bytes) {
  EXPECT_TRUE(MakeTicket(std::string(16, 'x')).ok());
  EXPECT_FALSE(MakeTicket("").ok());
  EXPECT_FALSE(MakeTicket(std::string(17, 'x')).ok());
}

}  // namespace
}  // namespace pdserve::engine
