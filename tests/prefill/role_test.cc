#include "prefill/role.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/testing/fake_clock.h"
#include "tests/testing/rig.h"

namespace pdserve::prefill {
namespace {

using engine::Generation;
using engine::Outcome;
using pdserve::testing::FakeModel;
using pdserve::testing::MakeGeneration;
using pdserve::testing::MakeGenerationLike;
using pdserve::testing::PrefillOf;
using pdserve::testing::TicketOf;

class PrefillRoleTest : public ::testing::Test {
 protected:
  void Begin(const Generation& generation, Mode mode = Mode::kHandOver) {
    rig_.prefill.Begin(PrefillOf(generation, mode), clock_.Now());
  }
  void TurnUntilIdle() {
    for (int i = 0; i < 1000 && rig_.Turn(); ++i) clock_.Advance(absl::Milliseconds(1));
  }
  Outcome OutcomeOf(uint64_t id) {
    EXPECT_TRUE(rig_.sink[id].ending.has_value()) << id;
    return rig_.sink[id].ending ? rig_.sink[id].ending->outcome : Outcome::kFailed;
  }

  pdserve::testing::FakeClock clock_;
  pdserve::testing::FakeFabric fabric_;
  pdserve::testing::Rig rig_{{.pool_blocks = 16}, &fabric_, &clock_};
};

TEST_F(PrefillRoleTest, TheFirstTokenGoesOutBeforeTheHandOverEnds) {
  const Generation generation = MakeGeneration(1, 100, 20);
  Begin(generation);
  TurnUntilIdle();
  EXPECT_EQ(rig_.sink[1].tokens, std::vector<uint32_t>{FakeModel::Continue(generation)[0]});
  EXPECT_FALSE(rig_.sink[1].ending.has_value());
  EXPECT_EQ(rig_.pool->counts().sequence, 0);
  EXPECT_EQ(rig_.pool->counts().transfer, 4);
  rig_.OnOfferEnded(TicketOf(1), absl::OkStatus(), {.bytes = 5});
  EXPECT_EQ(OutcomeOf(1), Outcome::kHandedOver);
  EXPECT_EQ(rig_.sink[1].ending->times.transfer_bytes, 5u);
  EXPECT_TRUE(rig_.AllFree());
}

TEST_F(PrefillRoleTest, BlocksAreShippedWhileThePromptIsComputed) {
  Begin(MakeGeneration(1, 200, 20));
  rig_.Turn();  // 64 tokens: two blocks are complete
  EXPECT_EQ(rig_.prefill.stats().prefilling, 1u);
  rig_.prefill.Cancel(MakeGeneration(1, 1, 1).key);
  EXPECT_EQ(rig_.pool->counts().transfer, 2);
}

TEST_F(PrefillRoleTest, AGenerationThatEndsWithItsFirstTokenIsNotHandedOver) {
  Begin(MakeGeneration(1, 40, 1));
  TurnUntilIdle();
  EXPECT_EQ(OutcomeOf(1), Outcome::kLength);
  fabric_.Run();
  EXPECT_TRUE(rig_.AllFree());
  EXPECT_EQ(fabric_.num_offers(), 0u);
}

TEST_F(PrefillRoleTest, AFirstTokenThatIsTheEndTokenStops) {
  // Find a prompt whose continuation begins with the end token.
  for (uint64_t id = 1; id < 2000; ++id) {
    Generation generation = MakeGeneration(id, 3, 9);
    generation.ignore_eos = false;
    if (FakeModel::Continue(generation)[0] != FakeModel::kEnd) continue;
    Begin(generation);
    TurnUntilIdle();
    EXPECT_EQ(OutcomeOf(id), Outcome::kStop);
    return;
  }
  FAIL() << "no such prompt";
}

TEST_F(PrefillRoleTest, WhatItsEmittedTokensHaveEndedEndsAtOnce) {
  Generation stopped = MakeGeneration(1, 40, 20);
  stopped.ignore_eos = false;
  stopped.emitted = {5, FakeModel::kEnd};
  Generation full = MakeGeneration(2, 40, 3);
  full.emitted = {5, FakeModel::kEnd, 6};
  Generation going_on = MakeGeneration(3, 40, 3);
  going_on.emitted = {5, FakeModel::kEnd};  // ignored
  for (const Generation& generation : {stopped, full, going_on}) Begin(generation);
  EXPECT_EQ(OutcomeOf(1), Outcome::kStop);
  EXPECT_EQ(rig_.sink[1].ending->output_tokens, 2u);
  EXPECT_EQ(OutcomeOf(2), Outcome::kLength);
  EXPECT_EQ(rig_.sink[2].ending->output_tokens, 3u);
  EXPECT_FALSE(rig_.sink[3].ending.has_value());
  for (uint64_t id = 1; id <= 2; ++id) {
    EXPECT_TRUE(rig_.sink[id].accepted);
    EXPECT_TRUE(rig_.sink[id].tokens.empty());
    EXPECT_TRUE(rig_.sink[id].faults.empty());
  }
  EXPECT_EQ(fabric_.num_offers(), 1u);
}

TEST_F(PrefillRoleTest, AFailedOfferFailsTheAttemptInEachPhase) {
  for (int turns = 0; turns < 6; ++turns) {
    const auto id = static_cast<uint64_t>(turns + 1);
    Begin(MakeGeneration(id, 200, 20));
    for (int i = 0; i < turns; ++i) rig_.Turn();
    rig_.pump.Break(TicketOf(id));
    fabric_.Run();
    EXPECT_EQ(OutcomeOf(id), Outcome::kFailed);
    EXPECT_NE(rig_.sink[id].ending->error, "");
    EXPECT_TRUE(rig_.AllFree()) << turns;
  }
}

TEST_F(PrefillRoleTest, ALateOrDoubleEndOfAnOfferIsIgnored) {
  Begin(MakeGeneration(1, 40, 9));
  TurnUntilIdle();
  rig_.OnOfferEnded(TicketOf(1), absl::OkStatus(), {});
  rig_.OnOfferEnded(TicketOf(1), absl::OkStatus(), {});
  rig_.OnOfferEnded(TicketOf(77), absl::OkStatus(), {});
  EXPECT_TRUE(rig_.sink[1].faults.empty());
}

TEST_F(PrefillRoleTest, AnAcknowledgementBeforeTheCommitIsAFailure) {
  Begin(MakeGeneration(1, 200, 9));
  rig_.Turn();
  rig_.OnOfferEnded(TicketOf(1), absl::OkStatus(), {});
  EXPECT_EQ(OutcomeOf(1), Outcome::kFailed);
  EXPECT_TRUE(rig_.AllFree());
}

TEST_F(PrefillRoleTest, WhatCannotBeServedIsRefusedAndNothingIsHeld) {
  const std::vector<std::function<void(Request&)>> spoils = {
      [](Request& r) { r.generation.prompt.clear(); },
      [](Request& r) { r.generation.prompt[0] = FakeModel::kVocab; },
      [](Request& r) { r.generation.prompt.assign(600, 1); },  // more than the pool
      [](Request& r) { r.generation.max_tokens = 0; },
      [](Request& r) { r.generation.emitted = {1, 2, 3, 4, 5, 6}; },
      [](Request& r) { r.generation.sampling.top_p = 0; },
      [](Request& r) { r.ticket = "short"; },
      [](Request& r) {
        r.mode = Mode::kWhole;
        r.generation.max_tokens = 2000;
      },
  };
  for (size_t i = 0; i < spoils.size(); ++i) {
    Request request = PrefillOf(MakeGeneration(i, 10, 5), Mode::kHandOver);
    spoils[i](request);
    rig_.prefill.Begin(request, clock_.Now());
    ASSERT_TRUE(rig_.sink[i].refusal.has_value()) << i;
    EXPECT_FALSE(rig_.sink[i].refusal->retryable) << i;
    EXPECT_NE(rig_.sink[i].refusal->reason, "") << i;
  }
  EXPECT_TRUE(rig_.AllFree());
  EXPECT_EQ(fabric_.num_offers(), 0u);
}

TEST_F(PrefillRoleTest, WhatAnotherAttemptMayHaveIsARefusalForNow) {
  Begin(MakeGeneration(1, 10, 5), Mode::kUnknown);  // a later node may know it
  Begin(MakeGeneration(2, 10, 5));
  Request again = PrefillOf(MakeGeneration(3, 10, 5), Mode::kHandOver);
  again.ticket = pdserve::testing::TicketBytes(2);
  rig_.prefill.Begin(again, clock_.Now());
  for (const uint64_t id : {1, 3}) {
    ASSERT_TRUE(rig_.sink[id].refusal.has_value()) << id;
    EXPECT_TRUE(rig_.sink[id].refusal->retryable) << id;
  }
  EXPECT_TRUE(rig_.sink[2].accepted);
}

TEST_F(PrefillRoleTest, AFullPumpIsARefusalForNow) {
  rig_.pump.RefuseNext(absl::ResourceExhaustedError("full"));
  Begin(MakeGeneration(1, 10, 5));
  ASSERT_TRUE(rig_.sink[1].refusal.has_value());
  EXPECT_TRUE(rig_.sink[1].refusal->retryable);
  EXPECT_GT(rig_.sink[1].refusal->retry_after, absl::ZeroDuration());
}

TEST_F(PrefillRoleTest, ADeadlineEndsAnAttemptInEachPhase) {
  for (int turns = 0; turns < 6; ++turns) {
    const auto id = static_cast<uint64_t>(turns + 1);
    Generation generation = MakeGeneration(id, 200, 20);
    generation.deadline = absl::Seconds(1);
    Begin(generation);
    EXPECT_EQ(rig_.prefill.NextDeadline(), clock_.Now() + absl::Seconds(1));
    for (int i = 0; i < turns; ++i) rig_.Turn();
    clock_.Advance(absl::Seconds(1));
    rig_.Turn();
    EXPECT_EQ(OutcomeOf(id), Outcome::kFailed);
    fabric_.Run();
    EXPECT_TRUE(rig_.AllFree()) << turns;
  }
}

TEST_F(PrefillRoleTest, AShortPromptIsNotStuckBehindLongOnes) {
  for (uint64_t id = 1; id <= 3; ++id) Begin(MakeGeneration(id, 150, 9));
  rig_.Turn();
  Begin(MakeGeneration(4, 20, 9));
  rig_.Turn();
  EXPECT_EQ(rig_.sink[4].tokens.size(), 1u);
}

TEST_F(PrefillRoleTest, AnEarlierClientsReserveIsLeftAlone) {
  engine::Plan plan;
  plan.budget_tokens = 64;
  plan.reserved_blocks = 15;
  Begin(MakeGeneration(1, 40, 9));  // two blocks, one is left
  rig_.prefill.AddWork(clock_.Now(), plan);
  EXPECT_TRUE(plan.entries.empty());
}

TEST_F(PrefillRoleTest, WholeModeGoesOnInTheDecodeRole) {
  const Generation generation = MakeGeneration(1, 100, 30);
  Begin(generation, Mode::kWhole);
  TurnUntilIdle();
  EXPECT_EQ(rig_.sink[1].tokens, FakeModel::Continue(generation));
  EXPECT_EQ(OutcomeOf(1), Outcome::kLength);
  EXPECT_TRUE(rig_.sink[1].faults.empty());
  EXPECT_GT(rig_.sink[1].ending->times.prefill, absl::ZeroDuration() - absl::Nanoseconds(1));
  EXPECT_TRUE(rig_.AllFree());
}

// ---- the prefix cache

TEST_F(PrefillRoleTest, TheChoicesOfOnePromptComputeItOnce) {
  for (uint64_t id = 1; id <= 3; ++id) {
    Generation choice = MakeGenerationLike(1, 150, MakeGeneration(id, 150, 9));
    Begin(choice, Mode::kWhole);
  }
  TurnUntilIdle();
  for (uint64_t id = 1; id <= 3; ++id) {
    const Generation choice = MakeGenerationLike(1, 150, MakeGeneration(id, 150, 9));
    EXPECT_EQ(rig_.sink[id].tokens, FakeModel::Continue(choice)) << id;
  }
  EXPECT_LT(rig_.prefill.stats().prefilled_tokens, 300u);
  EXPECT_EQ(rig_.model.corruptions(), 0);
  EXPECT_TRUE(rig_.AllFree());
  EXPECT_EQ(rig_.pool->counts().cached, 4);
}

TEST_F(PrefillRoleTest, CachedBlocksMakeRoomForANewPrompt) {
  for (uint64_t id = 1; id <= 4; ++id) {
    Begin(MakeGeneration(id, 128, 1));
    TurnUntilIdle();
    fabric_.Run();
  }
  EXPECT_EQ(rig_.pool->counts().free, 0);
  EXPECT_EQ(rig_.pool->counts().cached, 16);
  Begin(MakeGeneration(5, 500, 1));  // all sixteen blocks
  TurnUntilIdle();
  EXPECT_EQ(OutcomeOf(5), Outcome::kLength);
}

TEST_F(PrefillRoleTest, WhatIsHeldAlreadyNeedsNoRoom) {
  Begin(MakeGeneration(1, 300, 20));  // ten blocks of sixteen
  TurnUntilIdle();
  ASSERT_EQ(rig_.pool->counts().transfer, 10);  // its decode node has not come yet
  Begin(MakeGenerationLike(1, 300, MakeGeneration(2, 300, 20)));
  TurnUntilIdle();
  EXPECT_EQ(rig_.sink[2].tokens.size(), 1u);
  EXPECT_EQ(rig_.pool->counts().transfer, 11);
}

TEST_F(PrefillRoleTest, AReusedPrefixIsShippedAtOnce) {
  Begin(MakeGeneration(1, 100, 1));
  TurnUntilIdle();
  Begin(MakeGenerationLike(1, 100, MakeGeneration(2, 400, 20)));
  rig_.Turn();
  rig_.prefill.Cancel(MakeGeneration(2, 1, 1).key);
  EXPECT_EQ(rig_.pool->counts().transfer, 5);  // three found, two computed
}

TEST_F(PrefillRoleTest, AWaitingPromptsQueueIsWhatIsLeftToCompute) {
  Begin(MakeGeneration(1, 500, 20));  // needs the whole pool
  Begin(MakeGenerationLike(1, 400, MakeGeneration(2, 480, 20)));
  for (int i = 0; i < 4; ++i) rig_.Turn();
  EXPECT_EQ(rig_.prefill.stats().waiting, 1u);
  // Of 256 computed tokens the second was looked up when there were 192.
  EXPECT_EQ(rig_.prefill.stats().queued_tokens, 500u - 256u + 480u - 192u);
}

TEST_F(PrefillRoleTest, ACancelledPromptLeavesItsWholeBlocksAndNoMore) {
  const Generation generation = MakeGeneration(1, 200, 20);
  Begin(generation);
  rig_.Turn();  // 64 tokens
  Begin(MakeGeneration(2, 20, 20));
  rig_.Turn();  // the short one, and 44 of the first
  rig_.prefill.Cancel(generation.key);
  fabric_.Run();
  std::vector<TokenId> tokens;
  for (uint32_t id : generation.prompt) tokens.push_back(TokenId{id});
  EXPECT_EQ(rig_.pool->FindPrefix({"", tokens}).blocks, 3);
}

TEST_F(PrefillRoleTest, ANodeWithoutADecodeRoleRefusesWholeMode) {
  Role role({{FakeModel::kVocab, 4096, 512}, {}, 32, nullptr}, rig_.pool.get(), &rig_.pump,
            &rig_.sink);
  role.Begin(PrefillOf(MakeGeneration(1, 10, 5), Mode::kWhole), clock_.Now());
  ASSERT_TRUE(rig_.sink[1].refusal.has_value());
  EXPECT_TRUE(rig_.sink[1].refusal->retryable);  // elsewhere
}

}  // namespace
}  // namespace pdserve::prefill
