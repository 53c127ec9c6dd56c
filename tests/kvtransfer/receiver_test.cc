#include "kvtransfer/receiver.h"

#include "gtest/gtest.h"
#include "kvtransfer/crc32c.h"
#include "tests/kvtransfer/pump_parts.h"

namespace pdserve::kvtransfer {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
constexpr HandOverLimits kLimits{kBlockBytes, kBlockTokens, 3 * kBlockBytes,
                                 2,           1000,         absl::Seconds(3)};

class ReceiverTest : public ::testing::Test {
 protected:
  ReceiverTest() : receiver(Spec(), kLimits) {
    from.Fill(1);
    Apply(LinkReady{5});
  }

  FetchSpec Spec() const {
    return {TicketOf(1), "peer", Incarnation{2}, to.spans(), kStart + absl::Seconds(100)};
  }
  Actions Apply(const ReceiverEvent& event, absl::Duration at = absl::ZeroDuration()) {
    return receiver.Apply(event, kStart + at);
  }
  PieceArrived Piece(uint32_t sequence, uint32_t first, uint32_t count) const {
    PieceArrived arrived;
    arrived.piece.set_fetch(5);
    arrived.piece.set_sequence(sequence);
    arrived.piece.set_first_block(first);
    arrived.piece.set_num_blocks(count);
    arrived.payload_bytes = uint64_t{count} * kBlockBytes;
    arrived.piece.set_payload_bytes(arrived.payload_bytes);
    uint32_t crc = 0;
    for (uint32_t i = first; i < std::min<uint32_t>(first + count, 4); ++i) {
      crc = Crc32c(from.spans()[i], crc);
    }
    arrived.piece.set_payload_crc32c(crc);
    return arrived;
  }
  // The piece arrives and its bytes land where the receiver said, perhaps one of them wrong.
  Actions Land(const PieceArrived& arrived, bool damaged = false) {
    const Actions actions = Apply(arrived);
    if (actions.size() != 1 || !std::holds_alternative<AcceptPiece>(actions[0])) return actions;
    const auto& accept = std::get<AcceptPiece>(actions[0]);
    uint32_t block = arrived.piece.first_block();
    size_t at = 0;
    for (const auto& part : accept.parts) {
      for (std::byte& byte : part) {
        byte = from.spans()[block][at++];
        if (at == kBlockBytes) ++block, at = 0;
      }
    }
    if (damaged) accept.parts[0][100] ^= std::byte{1};
    return Apply(PieceLanded{accept.sequence, absl::OkStatus()});
  }
  static CommitArrived Commit(uint32_t pieces, uint32_t tokens = 4 * kBlockTokens) {
    CommitArrived arrived;
    arrived.commit.set_num_pieces(pieces);
    arrived.commit.set_num_tokens(tokens);
    arrived.commit.set_first_token(42);
    return arrived;
  }
  static v1::Control Sent(const Actions& actions) {
    if (actions.empty() || !std::holds_alternative<SendControl>(actions[0])) return {};
    return std::get<SendControl>(actions[0]).control;
  }
  static bool Ended(const Actions& actions, absl::StatusCode code) {
    if (actions.empty()) return false;
    const auto* end = std::get_if<EndHandOver>(&actions.back());
    return end != nullptr && end->status.code() == code;
  }
  static bool Dropped(const Actions& actions) { return actions.empty(); }

  Blocks from{4, true};
  Blocks to{4, false};
  Receiver receiver;
};

TEST_F(ReceiverTest, TheFetchNamesTicketLimitsAndTimeLeft) {
  receiver = Receiver(Spec(), kLimits);
  const v1::Fetch fetch = Sent(Apply(LinkReady{6}, absl::Seconds(90))).fetch();
  EXPECT_EQ(fetch.fetch(), 6u);
  EXPECT_EQ(fetch.ticket().size(), 16u);
  EXPECT_EQ(fetch.deadline_ms(), 10'000);
  EXPECT_EQ(fetch.max_piece_bytes(), 3u * kBlockBytes);
  EXPECT_EQ(fetch.max_pieces_in_flight(), 2u);
}

TEST_F(ReceiverTest, FullCoverageAndTheCommitEndItWell) {
  EXPECT_TRUE(Land(Piece(0, 0, 3)).empty());
  EXPECT_TRUE(Land(Piece(1, 3, 1)).empty());
  const Actions actions = Apply(Commit(2));
  EXPECT_EQ(Sent(actions).acknowledge().fetch(), 5u);
  EXPECT_TRUE(Ended(actions, absl::StatusCode::kOk));
  EXPECT_TRUE(to.Same(from));
  EXPECT_EQ(receiver.record().first_token, TokenId{42});
}

TEST_F(ReceiverTest, AdjacentDestinationsBecomeOnePart) {
  Blocks together(4, true);
  FetchSpec spec = Spec();
  spec.destinations = together.spans();
  receiver = Receiver(spec, kLimits);
  Apply(LinkReady{5});
  EXPECT_EQ(std::get<AcceptPiece>(Apply(Piece(0, 0, 3))[0]).parts.size(), 1u);
}

TEST_F(ReceiverTest, WhatIsHereAlreadyIsNotAskedForAndHasNoDestination) {
  FetchSpec spec = Spec();
  spec.first_block = 2;
  spec.destinations = {to.spans()[2], to.spans()[3]};
  receiver = Receiver(spec, kLimits);
  EXPECT_EQ(Sent(Apply(LinkReady{5})).fetch().first_token_needed(), 2u * kBlockTokens);
  Land(Piece(0, 2, 2));
  EXPECT_TRUE(Ended(Apply(Commit(1)), absl::StatusCode::kOk));
  EXPECT_EQ(std::memcmp(to.spans()[2].data(), from.spans()[2].data(), kBlockBytes), 0);

  receiver = Receiver(spec, kLimits);
  Apply(LinkReady{5});
  EXPECT_TRUE(Ended(Apply(Piece(0, 1, 2)), absl::StatusCode::kInvalidArgument));
}

TEST_F(ReceiverTest, ACommitIsEnoughWhereAllBlocksAreHere) {
  FetchSpec spec = Spec();
  spec.first_block = 4;
  spec.destinations.clear();
  receiver = Receiver(spec, kLimits);
  Apply(LinkReady{5});
  const Actions actions = Apply(Commit(0));
  EXPECT_EQ(Sent(actions).acknowledge().fetch(), 5u);
  EXPECT_TRUE(Ended(actions, absl::StatusCode::kOk));
}

TEST_F(ReceiverTest, ADamagedPieceIsAskedForOnceMoreAndThenFailsIt) {
  EXPECT_EQ(Sent(Land(Piece(0, 0, 3), true)).resend().sequence(), 0u);
  const Actions actions = Land(Piece(0, 0, 3), true);
  EXPECT_TRUE(Sent(actions).has_cancel());
  EXPECT_TRUE(Ended(actions, absl::StatusCode::kDataLoss));
}

TEST_F(ReceiverTest, ACommitWaitsForThePieceThatIsSentAgain) {
  EXPECT_TRUE(Sent(Land(Piece(0, 0, 4), true)).has_resend());
  EXPECT_TRUE(Apply(Commit(1)).empty());
  EXPECT_TRUE(Ended(Land(Piece(0, 0, 4)), absl::StatusCode::kOk));
  EXPECT_TRUE(to.Same(from));
}

TEST_F(ReceiverTest, APieceThatComesTwiceIsDropped) {
  Land(Piece(0, 0, 3));
  EXPECT_TRUE(Dropped(Apply(Piece(0, 0, 3))));
  EXPECT_TRUE(Dropped(Apply(Piece(0, 1, 3))));
  EXPECT_EQ(receiver.state(), Receiver::State::kFetching);
}

TEST_F(ReceiverTest, APieceThatCannotBeMeantFailsIt) {
  const auto fails = [&](PieceArrived piece, absl::StatusCode code) {
    receiver = Receiver(Spec(), kLimits);
    Apply(LinkReady{5});
    return Ended(Apply(piece), code);
  };
  EXPECT_TRUE(fails(Piece(1, 0, 1), absl::StatusCode::kDataLoss));  // 0 is missing
  EXPECT_TRUE(fails(Piece(0, 0, 5), absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(fails(Piece(0, 4, 1), absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(fails(Piece(0, 0, 0), absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(fails(Piece(0, UINT32_MAX, 2), absl::StatusCode::kInvalidArgument));
  PieceArrived piece = Piece(0, 0, 1);
  piece.payload_bytes -= 1;
  EXPECT_TRUE(fails(piece, absl::StatusCode::kInvalidArgument));
  piece = Piece(0, 0, 1);
  piece.piece.set_num_layers(2);
  EXPECT_TRUE(fails(piece, absl::StatusCode::kUnimplemented));
}

TEST_F(ReceiverTest, ABlockThatCameIsNeverWrittenAgain) {
  Land(Piece(0, 0, 3));
  EXPECT_TRUE(Ended(Apply(Piece(1, 2, 2)), absl::StatusCode::kInvalidArgument));
}

TEST_F(ReceiverTest, ACommitWithWrongCountsFailsIt) {
  const auto fails = [&](const CommitArrived& commit, absl::StatusCode code) {
    receiver = Receiver(Spec(), kLimits);
    Apply(LinkReady{5});
    Land(Piece(0, 0, 4));
    return Ended(Apply(commit), code);
  };
  EXPECT_TRUE(fails(Commit(2), absl::StatusCode::kDataLoss));
  EXPECT_TRUE(fails(Commit(0), absl::StatusCode::kDataLoss));
  EXPECT_TRUE(fails(Commit(1, 3 * kBlockTokens), absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(fails(Commit(1, 4 * kBlockTokens + 1), absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(fails(Commit(1, UINT32_MAX), absl::StatusCode::kInvalidArgument));
}

TEST_F(ReceiverTest, ACommitBeforeAllBlocksFailsIt) {
  Land(Piece(0, 0, 3));
  EXPECT_TRUE(Ended(Apply(Commit(1)), absl::StatusCode::kDataLoss));
}

TEST_F(ReceiverTest, ACancelWaitsForTheReceiveThatRuns) {
  ASSERT_EQ(Apply(Piece(0, 0, 3)).size(), 1u);
  const Actions actions = Apply(CancelAsked{absl::CancelledError("left")});
  ASSERT_EQ(actions.size(), 2u);
  EXPECT_EQ(Sent(actions).cancel().reason(), "left");
  EXPECT_TRUE(std::holds_alternative<AbandonReceives>(actions[1]));
  EXPECT_TRUE(Dropped(Apply(Piece(1, 3, 1))));
  EXPECT_TRUE(Ended(Apply(PieceLanded{0, absl::CancelledError("abandoned")}),
                    absl::StatusCode::kCancelled));
}

TEST_F(ReceiverTest, APayloadThatStallsPastTheEndLosesItsLink) {
  Apply(Piece(0, 0, 3));
  Apply(TimePassed{}, absl::Seconds(100));
  EXPECT_EQ(receiver.state(), Receiver::State::kEnding);
  const Actions actions = Apply(TimePassed{}, absl::Seconds(103));
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<CloseLink>(actions[0]));
  EXPECT_TRUE(Ended(Apply(PieceLanded{0, absl::UnavailableError("closed")}),
                    absl::StatusCode::kDeadlineExceeded));
}

TEST_F(ReceiverTest, ACancelBeforeTheLinkIsReadySaysNothingToThePeer) {
  receiver = Receiver(Spec(), kLimits);
  const Actions actions = Apply(CancelAsked{absl::CancelledError("left")});
  EXPECT_EQ(actions.size(), 1u);
  EXPECT_TRUE(Ended(actions, absl::StatusCode::kCancelled));
  EXPECT_TRUE(Apply(LinkReady{7}).empty());
}

TEST_F(ReceiverTest, NothingAtAllIsAHandOverToo) {
  FetchSpec spec = Spec();
  spec.destinations.clear();
  receiver = Receiver(spec, kLimits);
  Apply(LinkReady{5});
  EXPECT_TRUE(Ended(Apply(Commit(0, 0)), absl::StatusCode::kOk));
}

}  // namespace
}  // namespace pdserve::kvtransfer
