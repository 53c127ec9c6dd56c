// Both roles together, on fakes: what a pair of nodes must do in any order of events.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/testing/fake_clock.h"
#include "tests/testing/rig.h"

namespace pdserve::testing {
namespace {

using engine::Generation;
using engine::Outcome;

class HandOverTest : public ::testing::Test {
 protected:
  void Pair(const RigOptions& options) {
    p_ = std::make_unique<Rig>(options, &fabric_, &clock_);
    d_ = std::make_unique<Rig>(options, &fabric_, &clock_);
  }
  void Begin(const Generation& generation) {
    p_->prefill.Begin(PrefillOf(generation, prefill::Mode::kHandOver), clock_.Now());
    d_->decode.Begin(DecodeOf(generation), clock_.Now());
  }
  void Cancel(const Generation& generation) {
    p_->prefill.Cancel(generation.key);
    d_->decode.Cancel(generation.key);
  }
  void Turn() {
    p_->Turn();
    fabric_.Run();
    d_->Turn();
    fabric_.Run();
    clock_.Advance(absl::Milliseconds(1));
  }
  bool Quiet() const { return p_->AllFree() && d_->AllFree(); }
  void TurnUntilQuiet() {
    for (int i = 0; i < 20000 && !Quiet(); ++i) Turn();
    ASSERT_TRUE(Quiet());
  }
  void ExpectWhole(const Generation& generation) {
    const uint64_t id = generation.key.attempt.value;
    const auto want = FakeModel::Continue(generation);
    const AttemptRecord& record = d_->sink[id];
    ASSERT_TRUE(record.ending.has_value()) << id;
    EXPECT_EQ(record.tokens, want) << id;
    EXPECT_EQ(record.ending->output_tokens, want.size());
    EXPECT_TRUE(record.faults.empty()) << record.faults.front();
    EXPECT_EQ(p_->sink[id].tokens, std::vector<uint32_t>{want[0]});
    EXPECT_EQ(p_->sink[id].ending->outcome, Outcome::kHandedOver);
  }

  FakeClock clock_;
  FakeFabric fabric_;
  std::unique_ptr<Rig> p_;
  std::unique_ptr<Rig> d_;
};

TEST_F(HandOverTest, SplitOutputEqualsWholeOutput) {
  Pair({});
  std::vector<Generation> generations;
  for (uint64_t i = 1; i <= 6; ++i) generations.push_back(MakeGeneration(i, 1 + 31 * i, 20 * i));
  generations[2].sampling.temperature = 1.0f;
  for (const Generation& generation : generations) Begin(generation);
  TurnUntilQuiet();
  for (const Generation& generation : generations) ExpectWhole(generation);
  EXPECT_EQ(p_->model.corruptions() + d_->model.corruptions(), 0);

  for (const Generation& generation : generations) {
    p_->prefill.Begin(PrefillOf(generation, prefill::Mode::kWhole), clock_.Now());
    p_->sink[generation.key.attempt.value] = {};
    p_->sink[generation.key.attempt.value].accepted = true;
  }
  TurnUntilQuiet();
  for (const Generation& generation : generations) {
    EXPECT_EQ(p_->sink[generation.key.attempt.value].tokens, FakeModel::Continue(generation));
  }
}

TEST_F(HandOverTest, EmittedTokensAreForcedAndTheRestFollows) {
  Pair({});
  Generation generation = MakeGeneration(1, 40, 50);
  generation.sampling.temperature = 1.5f;
  const auto whole = FakeModel::Continue(generation);
  generation.emitted.assign(whole.begin(), whole.begin() + 17);
  Begin(generation);
  TurnUntilQuiet();
  EXPECT_EQ(p_->sink[1].first_index, 17u);
  EXPECT_EQ(d_->sink[1].first_index, 17u);
  EXPECT_EQ(d_->sink[1].tokens, std::vector<uint32_t>(whole.begin() + 17, whole.end()));
  EXPECT_EQ(d_->sink[1].ending->output_tokens, whole.size());
}

TEST_F(HandOverTest, ACorruptBlockChangesTheOutputSoTheseTestsCanFail) {
  Pair({});
  const Generation generation = MakeGeneration(1, 40, 30);
  fabric_.Corrupt();
  Begin(generation);
  TurnUntilQuiet();
  EXPECT_GT(d_->model.corruptions(), 0);
  EXPECT_NE(d_->sink[1].tokens, FakeModel::Continue(generation));
}

TEST_F(HandOverTest, ACancelInEachPhaseFreesAllBlocks) {
  for (int turns = 0; turns < 30; ++turns) {
    Pair({.max_step_tokens = 16});
    const Generation generation = MakeGeneration(1, 100, 12);
    Begin(generation);
    for (int i = 0; i < turns; ++i) Turn();
    Cancel(generation);
    Cancel(generation);  // idempotent
    Turn();
    EXPECT_TRUE(Quiet()) << turns;
    for (Rig* rig : {p_.get(), d_.get()}) {
      EXPECT_TRUE(rig->sink[1].ending.has_value()) << turns;
      EXPECT_TRUE(rig->sink[1].faults.empty()) << turns;
    }
  }
}

TEST_F(HandOverTest, PreemptionKeepsTheOutputs) {
  Pair({.pool_blocks = 12, .max_step_tokens = 40});
  std::vector<Generation> generations;
  for (uint64_t i = 1; i <= 8; ++i) {
    generations.push_back(MakeGeneration(i, 40 + i, 250));
    generations.back().sampling.temperature = i % 2 == 0 ? 0.0f : 1.0f;
  }
  for (const Generation& generation : generations) Begin(generation);
  TurnUntilQuiet();
  for (const Generation& generation : generations) ExpectWhole(generation);
  EXPECT_GT(d_->decode.stats().preemptions, 0u);
}

TEST_F(HandOverTest, OppositeOrdersOfArrivalDoNotMakeTheNodesWaitForEachOther) {
  Pair({.pool_blocks = 10, .max_ahead_blocks = 5});
  std::vector<Generation> generations;
  for (uint64_t i = 1; i <= 6; ++i) generations.push_back(MakeGeneration(i, 120, 20));
  for (size_t i = 0; i < 6; ++i) {
    p_->prefill.Begin(PrefillOf(generations[i], prefill::Mode::kHandOver), clock_.Now());
    d_->decode.Begin(DecodeOf(generations[5 - i]), clock_.Now());
  }
  const absl::Time begun = clock_.Now();
  TurnUntilQuiet();
  for (const Generation& generation : generations) ExpectWhole(generation);
  EXPECT_LT(clock_.Now(), begun + absl::Seconds(10));  // by itself, not by stall_timeout
}

// Each prefills for the other and decodes from it, in orders of arrival that differ, in pools that
// are much too small for all.
TEST_F(HandOverTest, TwoNodesOfBothRolesDoNotWaitForEachOther) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Pair({.pool_blocks = 24, .max_ahead_blocks = 6, .max_landing_blocks = 12});
    std::mt19937_64 random(seed);
    std::vector<Generation> generations;
    for (uint64_t i = 1; i <= 40; ++i) {
      const auto length = 1 + random() % 150;
      const auto output = static_cast<uint32_t>(170 - length);
      generations.push_back(
          MakeGenerationLike(random() % 3, random() % 100, MakeGeneration(i, length, output)));
    }
    const auto begin = [&](bool prefills, auto mine) {
      std::vector<Generation> shuffled = generations;
      std::shuffle(shuffled.begin(), shuffled.end(), random);
      for (const Generation& generation : shuffled) {
        Rig& rig = mine(generation.key.attempt.value) ? *p_ : *d_;
        if (prefills) {
          rig.prefill.Begin(PrefillOf(generation, prefill::Mode::kHandOver), clock_.Now());
        } else {
          rig.decode.Begin(DecodeOf(generation), clock_.Now());
        }
      }
    };
    begin(true, [](uint64_t id) { return id % 2 == 0; });
    begin(false, [](uint64_t id) { return id % 2 == 1; });
    const absl::Time begun = clock_.Now();
    TurnUntilQuiet();
    EXPECT_LT(clock_.Now(), begun + absl::Seconds(20));
    for (const Generation& generation : generations) {
      const uint64_t id = generation.key.attempt.value;
      EXPECT_EQ((id % 2 == 0 ? *d_ : *p_).sink[id].tokens, FakeModel::Continue(generation));
    }
  }
}

// ---- the prefix cache

TEST_F(HandOverTest, APromptThatComesAgainIsNeitherComputedNorSentAgain) {
  Pair({});
  const Generation first = MakeGeneration(1, 100, 20);
  const Generation again = MakeGenerationLike(1, 100, MakeGeneration(2, 100, 30));
  Begin(first);
  TurnUntilQuiet();
  EXPECT_EQ(d_->sink[1].ending->cached_tokens, 0u);
  const uint64_t computed = p_->prefill.stats().prefilled_tokens;
  const uint64_t copied = fabric_.num_copied_blocks();
  Begin(again);
  TurnUntilQuiet();
  ExpectWhole(again);
  EXPECT_EQ(p_->prefill.stats().prefilled_tokens - computed, 4u);
  EXPECT_EQ(fabric_.num_copied_blocks() - copied, 1u);
  EXPECT_EQ(p_->sink[2].ending->cached_tokens, 96u);
  EXPECT_EQ(d_->sink[2].ending->cached_tokens, 96u);  // what the other node has found
  EXPECT_EQ(p_->model.corruptions() + d_->model.corruptions(), 0);
  EXPECT_EQ(p_->prefill.stats().prefix.query_tokens, 200u);
  EXPECT_EQ(p_->prefill.stats().prefix.hit_tokens, 96u);
  EXPECT_EQ(d_->decode.stats().prefix.hit_tokens, 96u);
}

TEST_F(HandOverTest, TheLastTokenIsComputedThoughAllBlocksAreThere) {
  Pair({});
  Begin(MakeGeneration(1, 96, 20));
  TurnUntilQuiet();
  const uint64_t copied = fabric_.num_copied_blocks();
  const Generation again = MakeGenerationLike(1, 96, MakeGeneration(2, 96, 30));
  Begin(again);
  TurnUntilQuiet();
  ExpectWhole(again);
  EXPECT_EQ(d_->sink[2].ending->cached_tokens, 64u);
  EXPECT_EQ(fabric_.num_copied_blocks(), copied);  // there it needs no logits: nothing is missing
}

TEST_F(HandOverTest, WhatBeginsAlikeSharesItsWholeBlocks) {
  Pair({});
  Begin(MakeGeneration(1, 100, 20));
  TurnUntilQuiet();
  const Generation other = MakeGenerationLike(1, 70, MakeGeneration(2, 150, 30));
  Begin(other);
  TurnUntilQuiet();
  ExpectWhole(other);
  EXPECT_EQ(d_->sink[2].ending->cached_tokens, 64u);
}

TEST_F(HandOverTest, AChatsNextTurnIsSentWithoutTheBlocksThatWereDecoded) {
  Pair({});
  const Generation first = MakeGeneration(1, 60, 100);
  Begin(first);
  TurnUntilQuiet();
  Generation next = MakeGeneration(2, 10, 20);
  const auto answer = FakeModel::Continue(first);
  next.prompt.insert(next.prompt.begin(), answer.begin(), answer.end());
  next.prompt.insert(next.prompt.begin(), first.prompt.begin(), first.prompt.end());
  const uint64_t copied = fabric_.num_copied_blocks();
  Begin(next);
  TurnUntilQuiet();
  ExpectWhole(next);
  EXPECT_EQ(fabric_.num_copied_blocks() - copied, 2u);  // of six: 159 tokens were computed there
  EXPECT_EQ(d_->sink[2].ending->cached_tokens, 32u);    // and one block where it was prefilled
  EXPECT_EQ(d_->model.corruptions(), 0);
}

TEST_F(HandOverTest, WhatDidNotLandWholeIsNotFound) {
  const Generation generation = MakeGeneration(1, 100, 12);
  std::vector<TokenId> tokens;
  for (uint32_t id : generation.prompt) tokens.push_back(TokenId{id});
  bool has_landed = false;
  for (int turns = 0; turns < 30 && !has_landed; ++turns) {
    Pair({.max_step_tokens = 16});
    Begin(generation);
    for (int i = 0; i < turns; ++i) Turn();
    has_landed = !d_->sink[1].tokens.empty();
    Cancel(generation);
    Turn();
    EXPECT_TRUE(Quiet()) << turns;
    EXPECT_EQ(d_->pool->FindPrefix({"", tokens}).blocks, has_landed ? 3 : 0) << turns;
    EXPECT_EQ(d_->pool->counts().cached, has_landed ? 3 : 0) << turns;
  }
  EXPECT_TRUE(has_landed);
}

TEST_F(HandOverTest, TenantsShareNothing) {
  Pair({});
  Begin(MakeGeneration(1, 100, 20));
  TurnUntilQuiet();
  Generation other = MakeGenerationLike(1, 100, MakeGeneration(2, 100, 20));
  other.cache_salt = "tenant";
  Begin(other);
  TurnUntilQuiet();
  ExpectWhole(other);
  EXPECT_EQ(d_->sink[2].ending->cached_tokens, 0u);
  EXPECT_EQ(d_->decode.stats().prefix.hit_tokens, 0u);
}

TEST_F(HandOverTest, WithoutThePrefixCacheEveryBlockIsFreeAgain) {
  Pair({.prefix_cache = false});
  for (uint64_t id : {1, 2}) {
    Begin(MakeGenerationLike(1, 100, MakeGeneration(id, 100, 20)));
    TurnUntilQuiet();
    EXPECT_EQ(d_->sink[id].ending->cached_tokens, 0u);
  }
  EXPECT_EQ(p_->pool->counts().free, p_->pool->capacity());
  EXPECT_EQ(d_->pool->counts().free, d_->pool->capacity());
}

/// A random life: begins, cancels, lost peers, deadlines, in small pools.
class RandomLife {
 public:
  RandomLife(uint64_t seed, Rig* p, Rig* d, FakeClock* clock)
      : random_(seed), p_(p), d_(d), clock_(clock) {}

  void Act() {
    switch (random_() % 10) {
      case 0:
      case 1:
      case 2:
        Begin();
        break;
      case 3:
        if (const uint64_t id = Pick()) p_->prefill.Cancel(generations_[id].key);
        break;
      case 4:
        if (const uint64_t id = Pick()) d_->decode.Cancel(generations_[id].key);
        break;
      case 5:
        if (const uint64_t id = Pick(); id % 7 == 1) (id % 2 ? p_ : d_)->pump.Break(TicketOf(id));
        break;
      case 6:
        CancelOrphans();
        break;
      default:
        clock_->Advance(absl::Milliseconds(random_() % 3));
    }
  }

  /// What a router does: when one half has ended without success, the other is not wanted.
  void CancelOrphans() {
    for (const auto& [id, generation] : generations_) {
      const auto failed = [](const AttemptRecord& record) {
        return record.refusal || !record.accepted ||
               (record.ending && record.ending->outcome >= Outcome::kCancelled &&
                record.ending->outcome != Outcome::kHandedOver);
      };
      if (whole_.contains(id)) continue;
      if (failed(p_->sink[id])) d_->decode.Cancel(generation.key);
      if (failed(d_->sink[id])) p_->prefill.Cancel(generation.key);
    }
  }

  void Check() {
    for (const auto& [id, generation] : generations_) {
      for (Rig* rig : {p_, d_}) {
        const AttemptRecord& record = rig->sink[id];
        if (!record.accepted && !record.refusal) continue;  // not begun there
        EXPECT_TRUE(record.ended()) << id;
        EXPECT_TRUE(record.faults.empty()) << id << ": " << record.faults.front();
        const auto want = FakeModel::Continue(generation, 512);
        const size_t first = record.first_index.value_or(0);
        ASSERT_LE(first + record.tokens.size(), want.size());
        EXPECT_TRUE(std::equal(record.tokens.begin(), record.tokens.end(), want.begin() + first));
      }
    }
  }

  size_t num_completed() const { return completed_; }
  void CountCompleted() {
    for (const auto& [id, generation] : generations_) {
      for (Rig* rig : {p_, d_}) {
        const auto& ending = rig->sink[id].ending;
        if (!ending) continue;
        if (ending->outcome != Outcome::kStop && ending->outcome != Outcome::kLength) continue;
        EXPECT_EQ(ending->output_tokens, FakeModel::Continue(generation, 512).size()) << id;
        ++completed_;
      }
    }
  }

 private:
  void Begin() {
    const uint64_t id = ++last_;
    Generation generation = MakeGeneration(id, 1 + random_() % 150, 1 + random_() % 60);
    generation = MakeGenerationLike(random_() % 4, random_() % 160, std::move(generation));
    if (random_() % 8 == 0) generation.cache_salt = "tenant";
    generation.ignore_eos = random_() % 2 == 0;
    generation.sampling.temperature = random_() % 2 == 0 ? 0.0f : 0.9f;
    if (random_() % 10 == 0) generation.deadline = absl::Milliseconds(1 + random_() % 50);
    generations_[id] = generation;
    const bool whole = random_() % 4 == 0;
    if (whole) whole_.insert(id);
    const auto mode = whole ? prefill::Mode::kWhole : prefill::Mode::kHandOver;
    if (random_() % 20 != 0) p_->prefill.Begin(PrefillOf(generation, mode), clock_->Now());
    if (!whole && random_() % 20 != 0) d_->decode.Begin(DecodeOf(generation), clock_->Now());
    if (random_() % 20 == 0) p_->pump.RefuseNext(absl::ResourceExhaustedError("full"));
    if (random_() % 20 == 0) d_->pump.RefuseNext(absl::ResourceExhaustedError("full"));
  }
  uint64_t Pick() { return last_ == 0 ? 0 : last_ - std::min<uint64_t>(random_() % 8, last_ - 1); }

  std::mt19937_64 random_;
  Rig* const p_;
  Rig* const d_;
  FakeClock* const clock_;
  std::map<uint64_t, Generation> generations_;
  std::set<uint64_t> whole_;
  uint64_t last_ = 0;
  size_t completed_ = 0;
};

TEST_F(HandOverTest, AThousandRandomOperationsEndWithEveryBlockFree) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Pair({.pool_blocks = 14, .max_context_tokens = 512, .max_step_tokens = 48, .max_batch = 4});
    RandomLife life(seed, p_.get(), d_.get(), &clock_);
    std::mt19937_64 order(seed);
    for (int i = 0; i < 1000; ++i) {
      life.Act();
      for (int k = 0; k < 4; ++k) {
        if (order() % 2) p_->Turn();
        if (order() % 2) d_->Turn();
        if (order() % 3 == 0) fabric_.Run();
      }
      ASSERT_TRUE(p_->pool->CheckIntegrity());
      ASSERT_TRUE(d_->pool->CheckIntegrity());
    }
    for (int i = 0; i < 3000 && !Quiet(); ++i) Turn();
    clock_.Advance(absl::Minutes(11));  // what lost its other half ends by its deadline
    for (int i = 0; i < 10 && !Quiet(); ++i) Turn();
    EXPECT_TRUE(Quiet());
    EXPECT_EQ(fabric_.num_offers() + fabric_.num_fetches(), 0u);
    EXPECT_EQ(p_->model.corruptions() + d_->model.corruptions(), 0);
    life.Check();
    life.CountCompleted();
    EXPECT_GT(life.num_completed(), 20u);
  }
}

}  // namespace
}  // namespace pdserve::testing
