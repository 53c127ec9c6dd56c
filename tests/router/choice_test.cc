#include "router/choice.h"

#include <random>

#include "gtest/gtest.h"

namespace pdserve::router {
namespace {

constexpr NodeIndex kPrefill{0};
constexpr NodeIndex kDecode{1};
constexpr NodeIndex kOther{2};

class ChoiceTest : public ::testing::Test {
 protected:
  absl::Time now_ = absl::FromUnixSeconds(100);
  Choice choice_{ChoiceLimits{5, 3, 1000, {TokenId{999}}}, now_};
  uint64_t attempt_ = 0;
  std::vector<ChoiceAction> actions_;

  void Feed(const ChoiceEvent& event) { actions_ = choice_.Advance(event, now_); }
  void Place(NodeIndex prefill = kPrefill, NodeIndex decode = kDecode) {
    Feed(Placed{{AttemptId{++attempt_}, prefill, decode}});
  }
  void Tokens(NodeIndex from, uint32_t first, std::vector<uint32_t> ids) {
    TokensArrived tokens{first, {}};
    for (const uint32_t id : ids) tokens.tokens.push_back(TokenId{id});
    Feed(NodeEvent{AttemptId{attempt_}, from, tokens});
  }
  void Finished(NodeIndex from, LegEnd end, uint32_t output_tokens) {
    LegFinished finished;
    finished.end = end;
    finished.output_tokens = output_tokens;
    Feed(NodeEvent{AttemptId{attempt_}, from, finished});
  }
  void Lost(NodeIndex from) { Feed(NodeEvent{AttemptId{attempt_}, from, LegLost{}}); }

  template <typename Action>
  int Count() const {
    int count = 0;
    for (const ChoiceAction& action : actions_) count += std::holds_alternative<Action>(action);
    return count;
  }
  std::vector<uint32_t> Output() const {
    std::vector<uint32_t> ids;
    for (const TokenId id : choice_.tokens()) ids.push_back(id.value);
    return ids;
  }
};

TEST_F(ChoiceTest, GoesThroughItsStatesAndTimesEach) {
  now_ += absl::Seconds(1);
  Place();
  EXPECT_EQ(Count<StartAttempt>(), 1);
  EXPECT_EQ(choice_.state(), ChoiceState::kPrefilling);
  now_ += absl::Seconds(2);
  Tokens(kPrefill, 0, {7});
  EXPECT_EQ(choice_.state(), ChoiceState::kDecoding);
  EXPECT_EQ(Count<Deliver>(), 1);
  Finished(kPrefill, LegEnd::kHandedOver, 1);
  now_ += absl::Seconds(4);
  Tokens(kDecode, 1, {8, 9});
  Finished(kDecode, LegEnd::kStop, 3);
  EXPECT_EQ(choice_.state(), ChoiceState::kEnded);
  EXPECT_EQ(choice_.ending(), Ending::kStop);
  EXPECT_EQ(Count<End>(), 1);
  EXPECT_EQ(Count<LetGo>(), 0);
  EXPECT_EQ(choice_.time_in(ChoiceState::kPlacing), absl::Seconds(1));
  EXPECT_EQ(choice_.time_in(ChoiceState::kPrefilling), absl::Seconds(2));
  EXPECT_EQ(choice_.time_in(ChoiceState::kDecoding), absl::Seconds(4));
}

TEST_F(ChoiceTest, FirstTokenThatEndsAllCancelsTheDecodeLeg) {
  Place();
  Tokens(kPrefill, 0, {7});
  Finished(kPrefill, LegEnd::kStop, 1);
  ASSERT_EQ(Count<LetGo>(), 1);
  EXPECT_EQ(std::get<LetGo>(actions_[0]).node, kDecode);
  EXPECT_FALSE(std::get<LetGo>(actions_[0]).is_over);
  EXPECT_EQ(choice_.ending(), Ending::kStop);
}

TEST_F(ChoiceTest, DecodeThatEndsFirstLeavesThePrefillLegToItsLastWord) {
  Place();
  Tokens(kPrefill, 0, {7});
  Tokens(kDecode, 0, {7, 8});
  Finished(kDecode, LegEnd::kLength, 2);
  ASSERT_EQ(Count<LetGo>(), 1);
  EXPECT_EQ(std::get<LetGo>(actions_[0]).node, kPrefill);
  EXPECT_TRUE(std::get<LetGo>(actions_[0]).is_over);
}

TEST_F(ChoiceTest, WaitsForTokensBeforeAnEndThatCameEarly) {
  Place();
  Tokens(kDecode, 1, {8});
  EXPECT_EQ(Count<Deliver>(), 0);
  Finished(kDecode, LegEnd::kStop, 2);
  EXPECT_EQ(choice_.state(), ChoiceState::kPrefilling);
  Tokens(kPrefill, 0, {7});
  EXPECT_EQ(choice_.state(), ChoiceState::kEnded);
  EXPECT_EQ(Output(), (std::vector<uint32_t>{7, 8}));
}

TEST_F(ChoiceTest, TokensThatNeverComeAreAFailure) {
  Place();
  Tokens(kDecode, 1, {8});
  Finished(kDecode, LegEnd::kStop, 2);
  Finished(kPrefill, LegEnd::kHandedOver, 1);
  EXPECT_EQ(Count<router::Place>(), 1);
}

TEST_F(ChoiceTest, RetriesElsewhereWithTheTokensSoFar) {
  Place();
  Tokens(kPrefill, 0, {7});
  Tokens(kDecode, 1, {8});
  Tokens(kDecode, 3, {10});
  Lost(kDecode);
  EXPECT_EQ(Count<router::Place>(), 1);
  EXPECT_EQ(Count<LetGo>(), 1);
  EXPECT_EQ(choice_.avoid(), std::vector<NodeIndex>{kDecode});
  EXPECT_EQ(Output(), (std::vector<uint32_t>{7, 8}));
  Place(kPrefill, kOther);
  Tokens(kPrefill, 2, {9});
  Tokens(kOther, 3, {10});
  Finished(kOther, LegEnd::kStop, 4);
  EXPECT_EQ(choice_.ending(), Ending::kStop);
  EXPECT_EQ(Output(), (std::vector<uint32_t>{7, 8, 9, 10}));
}

TEST_F(ChoiceTest, LostPrefillNodeIsOfNoMatterOnceTheOtherDecodes) {
  Place();
  Tokens(kPrefill, 0, {7});
  Tokens(kDecode, 1, {8});
  Lost(kPrefill);
  EXPECT_TRUE(actions_.empty());
  Finished(kDecode, LegEnd::kLength, 2);
  EXPECT_EQ(choice_.ending(), Ending::kLength);
}

TEST_F(ChoiceTest, TheFirstTokenMayEndItWhicheverNodeIsHeardFirst) {
  Place();
  Finished(kDecode, LegEnd::kCancelled, 0);
  EXPECT_EQ(choice_.state(), ChoiceState::kPrefilling);
  Tokens(kPrefill, 0, {1});
  Finished(kPrefill, LegEnd::kStop, 1);
  EXPECT_EQ(choice_.ending(), Ending::kStop);
}

TEST_F(ChoiceTest, ACancelledHandOverFailsWithItsPrefillNode) {
  Place();
  Finished(kDecode, LegEnd::kCancelled, 0);
  Lost(kPrefill);
  EXPECT_EQ(Count<router::Place>(), 1);
}

TEST_F(ChoiceTest, OldAttemptsAreVoid) {
  Place();
  Lost(kPrefill);
  Place(kOther, kDecode);
  --attempt_;
  Tokens(kPrefill, 0, {1});
  Finished(kDecode, LegEnd::kStop, 0);
  EXPECT_EQ(choice_.state(), ChoiceState::kPrefilling);
  EXPECT_TRUE(Output().empty());
}

TEST_F(ChoiceTest, EndsAfterTheLastTry) {
  for (int i = 0; i < 3; ++i) {
    Place();
    Feed(NodeEvent{AttemptId{attempt_}, kDecode, LegRefused{"full", true, absl::Seconds(2)}});
  }
  EXPECT_EQ(choice_.ending(), Ending::kRejected);
  EXPECT_EQ(choice_.retry_after(), absl::Seconds(2));
}

TEST_F(ChoiceTest, AFailureAfterARefusalIsAFailure) {
  Place();
  Feed(NodeEvent{AttemptId{attempt_}, kDecode, LegRefused{"full", true, absl::Seconds(2)}});
  for (int i = 0; i < 2; ++i) {
    Place();
    Lost(kDecode);
  }
  EXPECT_EQ(choice_.ending(), Ending::kFailed);
  EXPECT_EQ(choice_.retry_after(), absl::ZeroDuration());
}

TEST_F(ChoiceTest, ARefusalForGoodIsNotRetried) {
  Place();
  Feed(NodeEvent{AttemptId{attempt_}, kDecode, LegRefused{"never", false}});
  EXPECT_EQ(choice_.ending(), Ending::kRefused);
  ASSERT_EQ(Count<LetGo>(), 1);
}

TEST_F(ChoiceTest, NoPlacementEndsIt) {
  Feed(Unplaceable{"no_node", absl::Seconds(1)});
  EXPECT_EQ(choice_.ending(), Ending::kRejected);
  EXPECT_EQ(choice_.failure(), "no_node");
}

TEST_F(ChoiceTest, LeavingCancelsBothLegsInEveryPhase) {
  Place();
  Feed(Abandoned{});
  EXPECT_EQ(Count<LetGo>(), 2);
  EXPECT_EQ(Count<End>(), 1);
  Feed(Abandoned{});
  EXPECT_TRUE(actions_.empty());
}

TEST_F(ChoiceTest, LosingOnlyTheLastWordIsNoFailure) {
  Place();
  Tokens(kPrefill, 0, {1});
  Tokens(kDecode, 1, {2, 3, 4, 5});
  Lost(kDecode);
  EXPECT_EQ(choice_.ending(), Ending::kLength);
}

TEST_F(ChoiceTest, LosingTheLastWordAfterAnEndTokenEndsInStop) {
  Place();
  Tokens(kPrefill, 0, {1});
  Tokens(kDecode, 1, {2, 999});
  Lost(kDecode);
  EXPECT_EQ(choice_.ending(), Ending::kStop);
  EXPECT_EQ(Count<router::Place>(), 0);
  EXPECT_EQ(Output(), (std::vector<uint32_t>{1, 2, 999}));
}

TEST_F(ChoiceTest, AnEndTokenThatIsIgnoredIsRetriedPast) {
  Choice choice(ChoiceLimits{5, 3, 1000, {}}, now_);
  choice.Advance(Placed{{AttemptId{1}, kPrefill, kPrefill}}, now_);
  choice.Advance(NodeEvent{AttemptId{1}, kPrefill, TokensArrived{0, {TokenId{999}}}}, now_);
  choice.Advance(NodeEvent{AttemptId{1}, kPrefill, LegLost{}}, now_);
  EXPECT_EQ(choice.state(), ChoiceState::kPlacing);
}

TEST_F(ChoiceTest, ATokenOutsideTheVocabularyFailsTheAttempt) {
  Place();
  Tokens(kPrefill, 0, {1000});
  EXPECT_EQ(Count<router::Place>(), 1);
  EXPECT_TRUE(Output().empty());
}

TEST_F(ChoiceTest, TokensBeyondTheLimitAreNotTaken) {
  Place(kPrefill, kPrefill);
  Tokens(kPrefill, 0, {1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(Output().size(), 5u);
  Tokens(kPrefill, 4000000000u, {1});
  EXPECT_EQ(Output().size(), 5u);
}

TEST_F(ChoiceTest, EndsExactlyOnceUnderAnySequenceOfEvents) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    Choice choice(ChoiceLimits{4, 3, 100, {}}, now_);
    uint64_t attempt = 0;
    int ends = 0;
    bool must_place = true;
    for (int step = 0; step < 60; ++step) {
      ChoiceEvent event = Expired{};
      const NodeIndex from{static_cast<uint32_t>(random() % 3)};
      const AttemptId id{attempt - random() % 2};
      if (must_place) {
        const NodeIndex decode{static_cast<uint32_t>(random() % 2)};
        event = random() % 8 == 0 ? ChoiceEvent(Unplaceable{"none"})
                                  : ChoiceEvent(Placed{{AttemptId{++attempt}, kPrefill, decode}});
      } else if (const uint32_t kind = random() % 16; kind < 9) {
        event = NodeEvent{id, from, TokensArrived{uint32_t(random() % 5), {TokenId{1}}}};
      } else if (kind < 13) {
        LegFinished finished;
        finished.end = static_cast<LegEnd>(random() % 5);
        finished.output_tokens = random() % 6;
        event = NodeEvent{id, from, finished};
      } else if (kind < 15) {
        event = NodeEvent{id, from, LegLost{}};
      } else if (random() % 4 == 0) {
        event = Abandoned{};
      }
      must_place = false;
      for (const ChoiceAction& action : choice.Advance(event, now_)) {
        ends += std::holds_alternative<End>(action);
        must_place = must_place || std::holds_alternative<router::Place>(action);
      }
    }
    ASSERT_LE(ends, 1);
    ASSERT_EQ(ends == 1, choice.state() == ChoiceState::kEnded);
    ASSERT_LE(choice.tokens().size(), 4u);
  }
}

}  // namespace
}  // namespace pdserve::router
