#include "kvtransfer/receiver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvtransfer/crc32c.h"
#include "kvtransfer/wire.h"

namespace pdserve::kvtransfer {

Receiver::Receiver(FetchSpec spec, const HandOverLimits& limits)
    : spec_(std::move(spec)),
      limits_(limits),
      blocks_(spec_.first_block, Block::kCovered),
      num_covered_(spec_.first_block) {
  blocks_.resize(spec_.first_block + spec_.destinations.size(), Block::kMissing);
}

Actions Receiver::Apply(const ReceiverEvent& event, absl::Time now) {
  Actions actions;
  if (state_ != State::kEnded) {
    std::visit([&](const auto& e) { On(e, now, actions); }, event);
  }
  if (state_ == State::kEnding && num_landing_ == 0) {
    state_ = State::kEnded;
    actions.emplace_back(EndHandOver{end_});
  }
  return actions;
}

absl::Time Receiver::next_deadline() const {
  if (state_ == State::kEnded) return absl::InfiniteFuture();
  return state_ == State::kEnding ? fence_deadline_ : spec_.deadline;
}

void Receiver::On(const LinkReady& event, absl::Time now, Actions& actions) {
  if (state_ != State::kConnecting) return;
  state_ = State::kFetching;
  fetch_ = event.fetch;
  SendControl send;
  v1::Fetch* fetch = send.control.mutable_fetch();
  fetch->set_ticket(TicketToBytes(spec_.ticket));
  fetch->set_fetch(fetch_);
  fetch->set_first_token_needed(spec_.first_block * limits_.block_tokens);
  fetch->set_max_piece_bytes(static_cast<uint32_t>(std::min<uint64_t>(
      std::max<uint64_t>(limits_.piece_bytes, limits_.block_bytes), UINT32_MAX)));
  fetch->set_max_pieces_in_flight(limits_.pieces_in_flight);
  if (spec_.deadline != absl::InfiniteFuture()) {
    const int64_t left = absl::ToInt64Milliseconds(
        absl::Ceil(std::max(spec_.deadline - now, absl::Milliseconds(1)), absl::Milliseconds(1)));
    fetch->set_deadline_ms(left);
  }
  actions.emplace_back(std::move(send));
}

void Receiver::On(const CancelAsked& event, absl::Time now, Actions& actions) {
  Fail(event.reason, now, actions);
}

void Receiver::On(const PieceArrived& event, absl::Time now, Actions& actions) {
  if (!running()) return;
  const v1::Piece& piece = event.piece;
  if (piece.sequence() < pieces_.size()) {
    Piece& known = pieces_[piece.sequence()];
    const bool same = known.first_block == piece.first_block() &&
                      known.num_blocks == piece.num_blocks() &&
                      event.payload_bytes == uint64_t{known.num_blocks} * limits_.block_bytes;
    // A piece that came twice is dropped: what is checked is not written again.
    if (known.state != PieceState::kResendAsked || !same) return;
    known.state = PieceState::kLandingAgain;
    known.crc32c = piece.payload_crc32c();
    ++stats_.resent_pieces;
    return Accept(piece, actions);
  }
  const absl::Status status = CheckPiece(piece, event.payload_bytes);
  if (!status.ok()) return Fail(status, now, actions);
  if (pieces_.empty()) first_byte_ = now;
  ++stats_.pieces;
  pieces_.push_back({piece.first_block(), piece.num_blocks(), piece.payload_crc32c()});
  Accept(piece, actions);
}

void Receiver::On(const PieceLanded& event, absl::Time now, Actions& actions) {
  --num_landing_;
  if (!running()) return;
  if (!event.status.ok()) return Fail(event.status, now, actions);
  Piece& piece = pieces_[event.sequence];
  stats_.bytes += uint64_t{piece.num_blocks} * limits_.block_bytes;
  stats_.first_to_last_byte = now - first_byte_;
  if (ChecksumOf(piece) != piece.crc32c) return PieceIsBad(event.sequence, now, actions);
  piece.state = PieceState::kChecked;
  for (uint32_t i = 0; i < piece.num_blocks; ++i) {
    blocks_[piece.first_block + i] = Block::kCovered;
  }
  num_covered_ += piece.num_blocks;
  EndIfComplete(now, actions);
}

void Receiver::On(const CommitArrived& event, absl::Time now, Actions& actions) {
  if (state_ != State::kFetching) return;  // a second one changes nothing
  const v1::Commit& commit = event.commit;
  const absl::Status status = CheckCommit(commit);
  if (!status.ok()) return Fail(status, now, actions);
  record_.num_tokens = commit.num_tokens();
  record_.first_token = TokenId{commit.first_token()};
  record_.sampler_state = commit.sampler_state();
  record_.queue_time = absl::Microseconds(commit.queue_us());
  record_.prefill_time = absl::Microseconds(commit.prefill_us());
  record_.cached_tokens = commit.cached_tokens();
  committed_ = now;
  state_ = State::kCommitted;
  EndIfComplete(now, actions);
}

void Receiver::On(const PeerCancelled& event, absl::Time now, Actions& actions) {
  if (!running()) return;
  StartEnding(event.refuses
                  ? absl::UnavailableError(absl::StrCat("the peer has refused: ", event.reason))
                  : absl::AbortedError(absl::StrCat("the peer has cancelled: ", event.reason)),
              now, actions);
}

void Receiver::On(const LinkLost& event, absl::Time now, Actions& actions) {
  if (state_ == State::kEnding) return;
  StartEnding(event.reason, now, actions);
}

void Receiver::On(const TimePassed&, absl::Time now, Actions& actions) {
  if (now < next_deadline()) return;
  if (state_ != State::kEnding) {
    return Fail(absl::DeadlineExceededError("the fetch's deadline has passed"), now, actions);
  }
  fence_deadline_ = absl::InfiniteFuture();
  actions.emplace_back(CloseLink{absl::UnavailableError("a payload has stalled")});
}

absl::Status Receiver::CheckPiece(const v1::Piece& piece, uint64_t payload_bytes) const {
  if (piece.sequence() != pieces_.size()) {
    return absl::DataLossError(
        absl::StrCat("piece ", piece.sequence(), " came, ", pieces_.size(), " is missing"));
  }
  if (state_ == State::kCommitted) {
    return absl::InvalidArgumentError("a new piece came after the commit");
  }
  if (piece.first_layer() != 0 || piece.num_layers() != 0) {
    return absl::UnimplementedError("pieces of layer groups are not taken yet");
  }
  const uint64_t end = uint64_t{piece.first_block()} + piece.num_blocks();
  if (piece.num_blocks() == 0 || end > blocks_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a piece with blocks [", piece.first_block(),
                                                   ", ", end, ") of ", blocks_.size()));
  }
  if (payload_bytes != uint64_t{piece.num_blocks()} * limits_.block_bytes ||
      payload_bytes != piece.payload_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a piece of ", piece.num_blocks(), " blocks with ", payload_bytes, " bytes"));
  }
  for (uint64_t i = piece.first_block(); i < end; ++i) {
    if (blocks_[i] != Block::kMissing) {
      return absl::InvalidArgumentError(absl::StrCat("block ", i, " came twice or uncalled-for"));
    }
  }
  return absl::OkStatus();
}

absl::Status Receiver::CheckCommit(const v1::Commit& commit) const {
  if (commit.num_pieces() != pieces_.size()) {
    return absl::DataLossError(absl::StrCat("the commit speaks of ", commit.num_pieces(),
                                            " pieces, ", pieces_.size(), " have come"));
  }
  const uint64_t blocks =
      (uint64_t{commit.num_tokens()} + limits_.block_tokens - 1) / limits_.block_tokens;
  if (blocks != blocks_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the commit speaks of ", commit.num_tokens(),
                                                   " tokens, the attempt has ", blocks_.size(),
                                                   " blocks"));
  }
  const bool whole = std::none_of(blocks_.begin(), blocks_.end(),
                                  [](Block block) { return block == Block::kMissing; });
  if (!whole) return absl::DataLossError("the commit came before all blocks");
  return absl::OkStatus();
}

void Receiver::Accept(const v1::Piece& piece, Actions& actions) {
  AcceptPiece accept;
  accept.sequence = piece.sequence();
  for (uint32_t i = 0; i < piece.num_blocks(); ++i) {
    const std::span<std::byte> block = DestinationOf(piece.first_block() + i);
    blocks_[piece.first_block() + i] = Block::kLanding;
    if (!accept.parts.empty() &&
        accept.parts.back().data() + accept.parts.back().size() == block.data()) {
      accept.parts.back() = {accept.parts.back().data(), accept.parts.back().size() + block.size()};
    } else {
      accept.parts.push_back(block);
    }
  }
  ++num_landing_;
  actions.emplace_back(std::move(accept));
}

uint32_t Receiver::ChecksumOf(const Piece& piece) const {
  uint32_t crc = 0;
  for (uint32_t i = 0; i < piece.num_blocks; ++i) {
    crc = Crc32c(DestinationOf(piece.first_block + i), crc);
  }
  return crc;
}

void Receiver::PieceIsBad(uint32_t sequence, absl::Time now, Actions& actions) {
  Piece& piece = pieces_[sequence];
  if (piece.state == PieceState::kLandingAgain) {
    return Fail(absl::DataLossError(absl::StrCat("piece ", sequence, " arrived damaged twice")),
                now, actions);
  }
  piece.state = PieceState::kResendAsked;
  SendControl send;
  v1::Resend* resend = send.control.mutable_resend();
  resend->set_fetch(fetch_);
  resend->set_sequence(sequence);
  actions.emplace_back(std::move(send));
}

void Receiver::EndIfComplete(absl::Time now, Actions& actions) {
  if (state_ != State::kCommitted || num_covered_ != blocks_.size()) return;
  SendControl send;
  send.control.mutable_acknowledge()->set_fetch(fetch_);
  actions.emplace_back(std::move(send));
  stats_.exposed = now - committed_;
  StartEnding(absl::OkStatus(), now, actions);
}

void Receiver::Fail(absl::Status status, absl::Time now, Actions& actions) {
  if (state_ == State::kEnding) return;
  if (running()) actions.emplace_back(CancelMessage(fetch_, std::string(status.message()), false));
  StartEnding(std::move(status), now, actions);
}

void Receiver::StartEnding(absl::Status status, absl::Time now, Actions& actions) {
  state_ = State::kEnding;
  end_ = std::move(status);
  fence_deadline_ = now + limits_.fence_timeout;
  if (num_landing_ > 0) actions.emplace_back(AbandonReceives{});
}

}  // namespace pdserve::kvtransfer
