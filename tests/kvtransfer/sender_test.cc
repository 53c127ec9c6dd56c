#include "kvtransfer/sender.h"

#include "gtest/gtest.h"
#include "kvtransfer/crc32c.h"
#include "tests/kvtransfer/pump_parts.h"

namespace pdserve::kvtransfer {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
constexpr HandOverLimits kLimits{kBlockBytes, kBlockTokens, 3 * kBlockBytes,
                                 2,           1000,         absl::Seconds(3)};

class SenderTest : public ::testing::Test {
 protected:
  SenderTest() : sender(Spec(8), kLimits) { blocks.Fill(1); }

  static OfferSpec Spec(uint32_t num_blocks) {
    return {TicketOf(1), num_blocks, kStart + absl::Seconds(100)};
  }
  Actions Apply(const SenderEvent& event, absl::Duration at = absl::ZeroDuration()) {
    return sender.Apply(event, kStart + at);
  }
  void Fetch(uint32_t first_token = 0) {
    v1::Fetch fetch;
    fetch.set_fetch(5);
    fetch.set_first_token_needed(first_token);
    EXPECT_TRUE(Apply(Fetched{fetch}).empty());
  }
  // The one message of the actions.
  static v1::Control Sent(const Actions& actions) {
    if (actions.empty() || !std::holds_alternative<SendControl>(actions[0])) return {};
    return std::get<SendControl>(actions[0]).control;
  }
  static bool Ended(const Actions& actions, absl::StatusCode code) {
    if (actions.empty()) return false;
    const auto* end = std::get_if<EndHandOver>(&actions.back());
    return end != nullptr && end->status.code() == code;
  }
  // Sends everything there is, each piece written out at once.
  std::vector<v1::Control> Drain() {
    std::vector<v1::Control> sent;
    while (sender.wants_window()) {
      sent.push_back(Sent(Apply(WindowOpen{})));
      if (sent.back().has_piece()) Apply(PieceSent{});
    }
    return sent;
  }

  Blocks blocks{8, true};
  Sender sender;
};

TEST_F(SenderTest, AdjacentBlocksMergeUpToThePieceSize) {
  Apply(Extended{blocks.All()});
  Fetch();
  const auto sent = Drain();
  ASSERT_EQ(sent.size(), 3u);
  uint32_t next = 0;
  for (size_t i = 0; i < sent.size(); ++i) {
    const v1::Piece& piece = sent[i].piece();
    EXPECT_EQ(piece.fetch(), 5u);
    EXPECT_EQ(piece.sequence(), i);
    EXPECT_EQ(piece.first_block(), next);
    next += piece.num_blocks();
    EXPECT_LE(piece.num_blocks(), 3u);
    EXPECT_EQ(piece.payload_bytes(), piece.num_blocks() * kBlockBytes);
    EXPECT_EQ(piece.payload_crc32c(),
              Crc32c({blocks.spans()[piece.first_block()].data(), piece.payload_bytes()}));
  }
  EXPECT_EQ(next, 8u);
}

TEST_F(SenderTest, BlocksThatLieApartGoAlone) {
  Blocks apart(8, false);
  Apply(Extended{apart.All()});
  Fetch();
  EXPECT_EQ(Drain().size(), 8u);
}

TEST_F(SenderTest, NoMorePiecesAreInFlightThanAllowed) {
  Apply(Extended{blocks.All()});
  Fetch();
  Apply(WindowOpen{});
  Apply(WindowOpen{});
  EXPECT_FALSE(sender.wants_window());
  EXPECT_TRUE(Apply(WindowOpen{}).empty());
  Apply(PieceSent{});
  EXPECT_TRUE(sender.wants_window());
}

TEST_F(SenderTest, TheCommitFollowsTheLastPieceAndOnlyTheAcknowledgementEndsItWell) {
  Fetch();
  Apply(Extended{blocks.All()});
  Apply(Committed{RecordFor(8)});
  const auto sent = Drain();
  ASSERT_EQ(sent.size(), 4u);
  EXPECT_EQ(sent.back().commit().num_pieces(), 3u);
  EXPECT_EQ(sent.back().commit().num_tokens(), RecordFor(8).num_tokens);
  EXPECT_EQ(sender.state(), Sender::State::kAwaitingAcknowledge);
  EXPECT_TRUE(Ended(Apply(Acknowledged{}), absl::StatusCode::kOk));
  EXPECT_EQ(sender.state(), Sender::State::kEnded);
}

TEST_F(SenderTest, AnAcknowledgementBeforeTheCommitFailsIt) {
  Fetch();
  const Actions actions = Apply(Acknowledged{});
  EXPECT_TRUE(Sent(actions).has_cancel());
  EXPECT_TRUE(Ended(actions, absl::StatusCode::kInvalidArgument));
}

TEST_F(SenderTest, TheEndWaitsForEveryPieceInFlight) {
  Apply(Extended{blocks.All()});
  Fetch();
  Apply(WindowOpen{});
  Apply(WindowOpen{});
  const Actions actions = Apply(Withdrawn{absl::CancelledError("left")});
  EXPECT_EQ(Sent(actions).cancel().reason(), "left");
  EXPECT_FALSE(Ended(actions, absl::StatusCode::kCancelled));
  EXPECT_FALSE(sender.wants_window());
  EXPECT_TRUE(Apply(PieceSent{}).empty());
  EXPECT_TRUE(Ended(Apply(PieceSent{}), absl::StatusCode::kCancelled));
  EXPECT_TRUE(Apply(Withdrawn{absl::CancelledError("again")}).empty());
}

TEST_F(SenderTest, APeerThatTakesNothingAfterTheEndLosesItsLink) {
  Apply(Extended{blocks.All()});
  Fetch();
  Apply(WindowOpen{});
  Apply(PeerCancelled{"enough"});
  EXPECT_EQ(sender.next_deadline(), kStart + absl::Seconds(3));
  EXPECT_TRUE(Apply(TimePassed{}, absl::Seconds(2)).empty());
  const Actions actions = Apply(TimePassed{}, absl::Seconds(3));
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<CloseLink>(actions[0]));
  EXPECT_TRUE(
      Ended(Apply(PieceSent{absl::UnavailableError("closed")}), absl::StatusCode::kAborted));
}

TEST_F(SenderTest, ADamagedPieceIsSentAgainOnceUnderItsNumber) {
  Apply(Extended{blocks.All()});
  Fetch();
  Drain();
  EXPECT_TRUE(Apply(ResendAsked{1}).empty());
  const auto sent = Drain();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].piece().sequence(), 1u);
  EXPECT_EQ(sender.stats().resent_pieces, 1u);
  EXPECT_TRUE(Ended(Apply(ResendAsked{1}), absl::StatusCode::kDataLoss));
}

TEST_F(SenderTest, AResendOfAPieceThatNeverWasFailsIt) {
  Fetch();
  EXPECT_TRUE(Ended(Apply(ResendAsked{0}), absl::StatusCode::kInvalidArgument));
}

TEST_F(SenderTest, BlocksBeforeTheFirstNeededTokenAreNotSent) {
  Apply(Extended{blocks.All()});
  Fetch(2 * kBlockTokens + 5);
  Apply(Committed{RecordFor(8)});
  const auto sent = Drain();
  EXPECT_EQ(sent.front().piece().first_block(), 2u);
  EXPECT_EQ(sent.back().commit().num_pieces(), 2u);
}

TEST_F(SenderTest, AFetchFromBeyondTheOfferFailsIt) {
  v1::Fetch fetch;
  fetch.set_first_token_needed(8 * kBlockTokens + 1);
  EXPECT_TRUE(Ended(Apply(Fetched{fetch}), absl::StatusCode::kInvalidArgument));
}

TEST_F(SenderTest, ThePeersSmallerLimitsHold) {
  Apply(Extended{blocks.All()});
  v1::Fetch fetch;
  fetch.set_max_piece_bytes(1);  // at least one block goes
  fetch.set_max_pieces_in_flight(1);
  Apply(Fetched{fetch});
  Apply(WindowOpen{});
  EXPECT_FALSE(sender.wants_window());
  Apply(PieceSent{});
  EXPECT_EQ(Drain().size(), 7u);
}

TEST_F(SenderTest, TheEarlierOfBothDeadlinesEndsIt) {
  v1::Fetch fetch;
  fetch.set_deadline_ms(1000);
  Apply(Fetched{fetch});
  EXPECT_EQ(sender.next_deadline(), kStart + absl::Seconds(1));
  EXPECT_TRUE(Ended(Apply(TimePassed{}, absl::Seconds(1)), absl::StatusCode::kDeadlineExceeded));
}

TEST_F(SenderTest, OurOwnMistakesFailTheOfferInsteadOfTheProcess) {
  Blocks large(1, true, 2 * kBlockBytes);
  EXPECT_TRUE(Ended(Apply(Extended{large.All()}), absl::StatusCode::kInternal));
  sender = Sender(Spec(7), kLimits);
  EXPECT_TRUE(Ended(Apply(Extended{blocks.All()}), absl::StatusCode::kInternal));
  sender = Sender(Spec(8), kLimits);
  EXPECT_TRUE(Ended(Apply(Committed{RecordFor(8)}), absl::StatusCode::kInternal));
  sender = Sender(Spec(8), kLimits);
  Apply(Extended{blocks.All()});
  EXPECT_TRUE(Ended(Apply(Committed{RecordFor(7)}), absl::StatusCode::kInternal));
}

TEST_F(SenderTest, ALostLinkEndsItWithTheLinksReason) {
  Fetch();
  EXPECT_TRUE(
      Ended(Apply(LinkLost{absl::UnavailableError("cut")}), absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace pdserve::kvtransfer
