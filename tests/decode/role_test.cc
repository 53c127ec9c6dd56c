#include "decode/role.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <vector>

#include "tests/testing/fake_clock.h"
#include "tests/testing/rig.h"

namespace pdserve::decode {
namespace {

using engine::Generation;
using engine::Outcome;
using kvtransfer::CommitRecord;
using pdserve::testing::DecodeOf;
using pdserve::testing::FakeModel;
using pdserve::testing::MakeGeneration;
using pdserve::testing::MakeGenerationLike;
using pdserve::testing::TicketOf;

class DecodeRoleTest : public ::testing::Test {
 protected:
  void Begin(const Generation& generation) {
    rig_.decode.Begin(DecodeOf(generation), clock_.Now());
  }
  void End(uint64_t id, absl::StatusOr<CommitRecord> commit) {
    rig_.OnFetchEnded(TicketOf(id), std::move(commit), {.bytes = 3});
  }
  static CommitRecord Commit(uint32_t num_tokens, uint32_t first_token) {
    CommitRecord record;
    record.num_tokens = num_tokens;
    record.first_token = TokenId{first_token};
    record.queue_time = absl::Milliseconds(2);
    record.prefill_time = absl::Milliseconds(3);
    return record;
  }
  Outcome OutcomeOf(uint64_t id) {
    EXPECT_TRUE(rig_.sink[id].ending.has_value()) << id;
    return rig_.sink[id].ending ? rig_.sink[id].ending->outcome : Outcome::kHandedOver;
  }

  pdserve::testing::FakeClock clock_;
  pdserve::testing::FakeFabric fabric_;
  pdserve::testing::Rig rig_{{.pool_blocks = 10}, &fabric_, &clock_};
};

TEST_F(DecodeRoleTest, TheFirstTokenIsRepeatedAndDecodingFollows) {
  Begin(MakeGeneration(1, 40, 3));
  EXPECT_TRUE(rig_.sink[1].accepted);
  EXPECT_FALSE(rig_.Turn());  // lands; nothing to compute yet
  EXPECT_EQ(rig_.decode.stats().transferring, 1u);
  clock_.Advance(absl::Milliseconds(9));
  End(1, Commit(40, 7));
  EXPECT_EQ(rig_.sink[1].tokens, std::vector<uint32_t>{7});
  EXPECT_EQ(rig_.sink[1].first_index, 0u);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(rig_.Turn());
  EXPECT_TRUE(rig_.Turn());
  EXPECT_EQ(OutcomeOf(1), Outcome::kLength);
  const engine::PhaseTimes& times = rig_.sink[1].ending->times;
  EXPECT_EQ(times.queue, absl::Milliseconds(2));
  EXPECT_EQ(times.prefill, absl::Milliseconds(3));
  EXPECT_EQ(times.transfer, absl::Milliseconds(4));
  EXPECT_EQ(times.decode_queue, absl::Milliseconds(1));
  EXPECT_EQ(rig_.sink[1].ending->output_tokens, 3u);
  EXPECT_TRUE(rig_.AllFree());
}

TEST_F(DecodeRoleTest, AFailedFetchFailsTheAttemptWithItsReason) {
  Begin(MakeGeneration(1, 40, 3));
  rig_.Turn();
  End(1, absl::UnavailableError("the peer is lost"));
  EXPECT_EQ(OutcomeOf(1), Outcome::kFailed);
  EXPECT_NE(rig_.sink[1].ending->error.find("the peer is lost"), std::string::npos);
  EXPECT_TRUE(rig_.AllFree());
}

TEST_F(DecodeRoleTest, AHandOverThatThePrefillNodeGaveUpIsNotAFailureHere) {
  Begin(MakeGeneration(1, 40, 3));
  rig_.Turn();
  End(1, absl::AbortedError("the generation ended with its first token"));
  EXPECT_EQ(OutcomeOf(1), Outcome::kCancelled);
  EXPECT_TRUE(rig_.AllFree());
}

TEST_F(DecodeRoleTest, AHandOverGivenUpAtTheDeadlineIsAFailure) {
  Generation generation = MakeGeneration(1, 40, 3);
  generation.deadline = absl::Seconds(1);
  Begin(generation);
  rig_.Turn();
  clock_.Advance(absl::Milliseconds(999));
  End(1, absl::AbortedError("the prefill node's deadline was over first"));
  EXPECT_EQ(OutcomeOf(1), Outcome::kFailed);
}

TEST_F(DecodeRoleTest, AFetchThatThePeerRefusesIsAFailure) {
  Begin(MakeGeneration(1, 40, 3));
  rig_.Turn();
  End(1, absl::UnavailableError("the peer has refused: no offer has this ticket"));
  EXPECT_EQ(OutcomeOf(1), Outcome::kFailed);
  EXPECT_NE(rig_.sink[1].ending->error.find("no offer has this ticket"), std::string::npos);
  EXPECT_TRUE(rig_.AllFree());
}

TEST_F(DecodeRoleTest, ACommitThatDoesNotFitTheAttemptIsAFailure) {
  for (const CommitRecord& commit :
       {Commit(39, 7), Commit(41, 7), Commit(0, 7), Commit(40, FakeModel::kVocab)}) {
    const uint64_t id = rig_.sink.records().size() + 1;
    Begin(MakeGeneration(id, 40, 3));
    rig_.Turn();
    End(id, commit);
    EXPECT_EQ(OutcomeOf(id), Outcome::kFailed);
    EXPECT_TRUE(rig_.sink[id].tokens.empty());
    EXPECT_TRUE(rig_.AllFree());
  }
}

TEST_F(DecodeRoleTest, AFirstTokenThatEndsItIsTheEnd) {
  Generation generation = MakeGeneration(1, 40, 3);
  generation.ignore_eos = false;
  Begin(generation);
  rig_.Turn();
  End(1, Commit(40, FakeModel::kEnd));
  EXPECT_EQ(OutcomeOf(1), Outcome::kStop);
  EXPECT_TRUE(rig_.AllFree());
}

TEST_F(DecodeRoleTest, WhatItsEmittedTokensHaveEndedEndsAtOnce) {
  Generation stopped = MakeGeneration(1, 40, 20);
  stopped.ignore_eos = false;
  stopped.emitted = {5, FakeModel::kEnd};
  Generation full = MakeGeneration(2, 40, 3);
  full.emitted = {5, FakeModel::kEnd, 6};
  Generation going_on = MakeGeneration(3, 40, 3);
  going_on.emitted = {5, FakeModel::kEnd};  // ignored
  for (const Generation& generation : {stopped, full, going_on}) Begin(generation);
  rig_.Turn();
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
  EXPECT_EQ(fabric_.num_fetches(), 1u);
}

TEST_F(DecodeRoleTest, ACancelledLandingGivesItsBlocksBackAfterThePumpsEvent) {
  Begin(MakeGeneration(1, 40, 3));
  rig_.Turn();
  EXPECT_TRUE(rig_.decode.Cancel(MakeGeneration(1, 1, 1).key));
  EXPECT_FALSE(rig_.decode.Cancel(MakeGeneration(1, 1, 1).key));
  EXPECT_EQ(OutcomeOf(1), Outcome::kCancelled);
  EXPECT_EQ(rig_.pool->counts().transfer, 2);
  EXPECT_EQ(rig_.decode.stats().transferring, 1u);
  End(1, Commit(40, 7));  // it had been too late for the pump
  EXPECT_TRUE(rig_.AllFree());
  EXPECT_TRUE(rig_.sink[1].faults.empty());
}

TEST_F(DecodeRoleTest, WithoutBlocksAnAttemptWaitsInOrderUntilItsDeadline) {
  Generation large = MakeGeneration(1, 200, 9);
  Generation second = MakeGeneration(2, 200, 9);
  second.deadline = absl::Seconds(1);
  Begin(large);
  Begin(second);
  Begin(MakeGeneration(3, 10, 9));
  rig_.Turn();
  EXPECT_EQ(rig_.decode.stats().transferring, 1u);
  EXPECT_EQ(rig_.decode.stats().waiting, 2u);
  EXPECT_EQ(rig_.decode.NextDeadline(), clock_.Now() + absl::Seconds(1));
  clock_.Advance(absl::Seconds(1));
  rig_.Turn();
  EXPECT_EQ(OutcomeOf(2), Outcome::kFailed);
  EXPECT_EQ(rig_.decode.stats().transferring, 2u);  // the third has its turn
}

TEST_F(DecodeRoleTest, LandingsThatStandStillGiveWayToWhoWaits) {
  for (uint64_t id = 1; id <= 3; ++id) Begin(MakeGeneration(id, 90, 9));
  Begin(MakeGeneration(4, 90, 9));
  rig_.Turn();
  ASSERT_EQ(rig_.decode.stats().transferring, 3u);
  EXPECT_EQ(rig_.decode.NextDeadline(), clock_.Now() + absl::Seconds(30));
  clock_.Advance(absl::Seconds(20));
  End(1, absl::UnavailableError("the peer is lost"));  // progress of a kind: the fourth lands
  rig_.Turn();
  EXPECT_EQ(rig_.decode.stats().transferring, 3u);
  Begin(MakeGeneration(5, 90, 9));
  rig_.Turn();
  clock_.Advance(absl::Seconds(29));
  rig_.Turn();
  EXPECT_EQ(rig_.decode.stats().waiting, 1u);
  clock_.Advance(absl::Seconds(1));
  rig_.Turn();
  EXPECT_EQ(OutcomeOf(4), Outcome::kFailed);  // the youngest
  EXPECT_FALSE(rig_.sink[2].ending.has_value());
  fabric_.Run();
  rig_.Turn();
  EXPECT_EQ(rig_.decode.stats().waiting, 0u);
}

TEST_F(DecodeRoleTest, LandingsThatStandStillGiveWayToWhoRuns) {
  Begin(MakeGeneration(1, 60, 60));
  rig_.Turn();
  End(1, Commit(60, 7));
  Begin(MakeGeneration(2, 224, 9));  // seven blocks of the eight that are left
  for (int i = 0; i < 100; ++i) rig_.Turn();
  ASSERT_EQ(rig_.decode.stats().transferring, 1u);
  ASSERT_FALSE(rig_.sink[1].ending.has_value());  // it needs a fourth block
  clock_.Advance(absl::Seconds(30));
  rig_.Turn();
  EXPECT_EQ(OutcomeOf(2), Outcome::kFailed);
  fabric_.Run();
  for (int i = 0; i < 100; ++i) rig_.Turn();
  EXPECT_EQ(OutcomeOf(1), Outcome::kLength);
  EXPECT_TRUE(rig_.AllFree());
}

TEST_F(DecodeRoleTest, WhatCannotBeServedIsRefusedAndNothingIsHeld) {
  const std::vector<std::function<void(Request&)>> spoils = {
      [](Request& r) { r.generation.prompt.clear(); },
      [](Request& r) { r.generation.prompt[3] = 1 << 30; },
      [](Request& r) { r.generation.max_tokens = 0; },
      [](Request& r) { r.generation.max_tokens = 400; },  // never fits the pool
      [](Request& r) { r.generation.deadline = absl::ZeroDuration(); },
      [](Request& r) { r.ticket.clear(); },
      [](Request& r) { r.peer_address.clear(); },
  };
  for (size_t i = 0; i < spoils.size(); ++i) {
    Request request = DecodeOf(MakeGeneration(i, 10, 5));
    spoils[i](request);
    rig_.decode.Begin(request, clock_.Now());
    ASSERT_TRUE(rig_.sink[i].refusal.has_value()) << i;
    EXPECT_FALSE(rig_.sink[i].refusal->retryable) << i;
  }
  EXPECT_TRUE(rig_.AllFree());
}

TEST_F(DecodeRoleTest, ATicketInUseIsRefusedEvenAfterItsAttemptHasEnded) {
  Begin(MakeGeneration(1, 40, 3));
  rig_.Turn();
  rig_.decode.Cancel(MakeGeneration(1, 1, 1).key);
  Request again = DecodeOf(MakeGeneration(2, 40, 3));
  again.ticket = pdserve::testing::TicketBytes(1);
  rig_.decode.Begin(again, clock_.Now());
  EXPECT_TRUE(rig_.sink[2].refusal.has_value());
}

TEST_F(DecodeRoleTest, APumpThatRefusesFailsTheAttempt) {
  rig_.pump.RefuseNext(absl::ResourceExhaustedError("full"));
  Begin(MakeGeneration(1, 40, 3));
  rig_.Turn();
  EXPECT_EQ(OutcomeOf(1), Outcome::kFailed);
  EXPECT_TRUE(rig_.AllFree());
}

// ---- the prefix cache

TEST_F(DecodeRoleTest, OnlyWhatIsMissingIsAskedFor) {
  Begin(MakeGeneration(1, 100, 3));
  rig_.Turn();
  End(1, Commit(100, 7));
  Begin(MakeGenerationLike(1, 100, MakeGeneration(2, 150, 3)));
  rig_.Turn();
  EXPECT_EQ(rig_.pool->counts().transfer, 0);  // what lands is the sequence's too
  rig_.decode.Cancel(MakeGeneration(2, 1, 1).key);
  EXPECT_EQ(rig_.pool->counts().transfer, 2);
}

TEST_F(DecodeRoleTest, ALandingThatFailsLeavesNothingToFind) {
  Begin(MakeGeneration(1, 100, 3));
  rig_.Turn();
  End(1, Commit(99, 7));
  EXPECT_EQ(OutcomeOf(1), Outcome::kFailed);
  EXPECT_EQ(rig_.pool->counts().free, rig_.pool->capacity());
}

TEST_F(DecodeRoleTest, MoreCachedTokensThanThePromptHasAreNotBelieved) {
  Begin(MakeGeneration(1, 40, 2));
  rig_.Turn();
  CommitRecord commit = Commit(40, 7);
  commit.cached_tokens = 4'000'000'000;
  End(1, commit);
  rig_.Turn();
  EXPECT_EQ(OutcomeOf(1), Outcome::kLength);
  EXPECT_EQ(rig_.sink[1].ending->cached_tokens, 40u);
}

TEST_F(DecodeRoleTest, WhoLostItsBlocksFindsThemAgain) {
  std::map<bool, int64_t> rows;  // by whether there is a prefix cache
  for (const bool cache : {false, true}) {
    pdserve::testing::FakeFabric fabric;
    pdserve::testing::Rig rig({.pool_blocks = 11, .prefix_cache = cache}, &fabric, &clock_);
    for (const uint32_t id : {1, 2}) {  // eight and seven blocks in the end
      const uint32_t prompt = id == 1 ? 90 : 150;
      rig.decode.Begin(DecodeOf(MakeGeneration(id, prompt, id == 1 ? 150 : 60)), clock_.Now());
      rig.Turn();
      rig.OnFetchEnded(TicketOf(id), Commit(prompt, 7), {});
    }
    rig.model.on_forward = [&](const engine::Batch& batch) { rows[cache] += batch.num_rows(); };
    for (int i = 0; i < 1000 && rig.Turn(); ++i) clock_.Advance(absl::Milliseconds(1));
    for (const uint64_t id : {1, 2}) EXPECT_EQ(rig.sink[id].ending->outcome, Outcome::kLength);
    EXPECT_GT(rig.decode.stats().preemptions, 0u);
    EXPECT_TRUE(rig.AllFree());
  }
  EXPECT_LE(rows[true], rows[false] - 64) << rows[false];
}

TEST_F(DecodeRoleTest, ADeadlineEndsARunningOne) {
  Generation generation = MakeGeneration(1, 40, 200);
  generation.deadline = absl::Seconds(1);
  Begin(generation);
  rig_.Turn();
  End(1, Commit(40, 7));
  rig_.Turn();
  clock_.Advance(absl::Seconds(2));
  EXPECT_FALSE(rig_.Turn());
  EXPECT_EQ(OutcomeOf(1), Outcome::kFailed);
  EXPECT_TRUE(rig_.AllFree());
}

}  // namespace
}  // namespace pdserve::decode
