#include "kvtransfer/sender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvtransfer/crc32c.h"

namespace pdserve::kvtransfer {

Sender::Sender(const OfferSpec& spec, const HandOverLimits& limits)
    : limits_(limits), num_blocks_(spec.num_blocks), deadline_(spec.deadline) {}

Actions Sender::Apply(const SenderEvent& event, absl::Time now) {
  Actions actions;
  if (state_ != State::kEnded) {
    std::visit([&](const auto& e) { On(e, now, actions); }, event);
  }
  if (state_ == State::kEnding && in_flight_ == 0) {
    state_ = State::kEnded;
    actions.emplace_back(EndHandOver{end_});
  }
  return actions;
}

bool Sender::wants_window() const {
  if (state_ != State::kSending && state_ != State::kAwaitingAcknowledge) return false;
  if (commit_due()) return true;
  if (in_flight_ >= max_in_flight_) return false;
  return !resend_.empty() || next_block_ < blocks_.size();
}

bool Sender::commit_due() const {
  return state_ == State::kSending && record_.has_value() && next_block_ == num_blocks_ &&
         resend_.empty();
}

absl::Time Sender::next_deadline() const {
  if (state_ == State::kEnded) return absl::InfiniteFuture();
  return state_ == State::kEnding ? fence_deadline_ : deadline_;
}

void Sender::On(const Extended& event, absl::Time now, Actions& actions) {
  if (state_ == State::kEnding) return;
  if (record_.has_value() || event.blocks.size() > num_blocks_ - blocks_.size()) {
    return Fail(absl::InternalError(absl::StrCat("more than the ", num_blocks_, " blocks offered")),
                now, actions);
  }
  for (const auto& block : event.blocks) {
    if (block.size() != limits_.block_bytes) {
      return Fail(absl::InternalError(absl::StrCat("a block of ", block.size(), " bytes, not ",
                                                   limits_.block_bytes)),
                  now, actions);
    }
    blocks_.push_back(block);
  }
}

void Sender::On(const Committed& event, absl::Time now, Actions& actions) {
  if (state_ == State::kEnding || record_.has_value()) return;
  const CommitRecord& record = event.record;
  const uint64_t tokens_held = uint64_t{num_blocks_} * limits_.block_tokens;
  if (blocks_.size() != num_blocks_) {
    return Fail(absl::InternalError(
                    absl::StrCat("commit after ", blocks_.size(), " of ", num_blocks_, " blocks")),
                now, actions);
  }
  if (record.num_tokens > tokens_held || tokens_held - record.num_tokens >= limits_.block_tokens) {
    return Fail(absl::InternalError(absl::StrCat("commit of ", record.num_tokens, " tokens in ",
                                                 num_blocks_, " blocks")),
                now, actions);
  }
  if (record.sampler_state.size() > limits_.max_state_bytes) {
    return Fail(absl::InternalError(
                    absl::StrCat("a sampler state of ", record.sampler_state.size(), " bytes")),
                now, actions);
  }
  record_ = record;
  committed_ = now;
}

void Sender::On(const Withdrawn& event, absl::Time now, Actions& actions) {
  Fail(event.reason, now, actions);
}

void Sender::On(const Fetched& event, absl::Time now, Actions& actions) {
  if (state_ != State::kOffered) return;
  const v1::Fetch& fetch = event.fetch;
  fetched_ = true;
  fetch_ = fetch.fetch();
  state_ = State::kSending;
  if (fetch.first_token_needed() > uint64_t{num_blocks_} * limits_.block_tokens) {
    return Fail(
        absl::InvalidArgumentError(absl::StrCat("a fetch from token ", fetch.first_token_needed(),
                                                " of ", num_blocks_, " blocks")),
        now, actions);
  }
  // Whole blocks before it are not needed; the one it lies in is.
  next_block_ = fetch.first_token_needed() / limits_.block_tokens;
  max_piece_bytes_ = limits_.piece_bytes;
  if (fetch.max_piece_bytes() > 0) {
    max_piece_bytes_ = std::min<uint64_t>(max_piece_bytes_, fetch.max_piece_bytes());
  }
  max_in_flight_ = limits_.pieces_in_flight;
  if (fetch.max_pieces_in_flight() > 0) {
    max_in_flight_ = std::min(max_in_flight_, fetch.max_pieces_in_flight());
  }
  if (fetch.deadline_ms() > 0) {
    deadline_ = std::min(deadline_, now + absl::Milliseconds(fetch.deadline_ms()));
  }
}

void Sender::On(const ResendAsked& event, absl::Time now, Actions& actions) {
  if (state_ != State::kSending && state_ != State::kAwaitingAcknowledge) return;
  if (event.sequence >= pieces_.size()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat("piece ", event.sequence, " of ",
                                                        pieces_.size(), " was asked for again")),
                now, actions);
  }
  if (std::exchange(pieces_[event.sequence].resent, true)) {
    return Fail(
        absl::DataLossError(absl::StrCat("piece ", event.sequence, " arrived damaged twice")), now,
        actions);
  }
  resend_.push_back(event.sequence);
}

void Sender::On(const Acknowledged&, absl::Time now, Actions& actions) {
  if (state_ == State::kAwaitingAcknowledge && resend_.empty()) {
    stats_.exposed = now - committed_;
    return StartEnding(absl::OkStatus(), now);
  }
  Fail(absl::InvalidArgumentError("the peer has acknowledged what it can't have"), now, actions);
}

void Sender::On(const PeerCancelled& event, absl::Time now, Actions&) {
  if (state_ == State::kEnding) return;
  StartEnding(absl::AbortedError(absl::StrCat("the peer has cancelled: ", event.reason)), now);
}

void Sender::On(const WindowOpen&, absl::Time now, Actions& actions) {
  if (!wants_window()) return;
  if (!resend_.empty()) {
    const uint32_t sequence = resend_.front();
    resend_.pop_front();
    ++stats_.resent_pieces;
    return SendPiece(sequence, actions);
  }
  if (record_.has_value() && commit_due()) return SendCommit(*record_, actions);
  pieces_.push_back(NextPiece());
  next_block_ += pieces_.back().num_blocks;
  if (++stats_.pieces == 1) first_byte_ = now;
  SendPiece(static_cast<uint32_t>(pieces_.size() - 1), actions);
}

void Sender::On(const PieceSent& event, absl::Time now, Actions& actions) {
  --in_flight_;
  if (!event.status.ok()) return Fail(event.status, now, actions);
  stats_.first_to_last_byte = now - first_byte_;
}

void Sender::On(const LinkLost& event, absl::Time now, Actions&) {
  if (state_ == State::kEnding) return;
  StartEnding(event.reason, now);
}

void Sender::On(const TimePassed&, absl::Time now, Actions& actions) {
  if (now < next_deadline()) return;
  if (state_ != State::kEnding) {
    return Fail(absl::DeadlineExceededError(fetched_ ? "the offer's deadline has passed"
                                                     : "nobody has fetched the offer in time"),
                now, actions);
  }
  fence_deadline_ = absl::InfiniteFuture();
  actions.emplace_back(CloseLink{absl::UnavailableError("the peer does not take its pieces")});
}

// A run of blocks that lie side by side in memory: one span on the wire.
Sender::Piece Sender::NextPiece() const {
  Piece piece{next_block_, 1};
  for (size_t next = next_block_ + 1; next < blocks_.size(); ++next) {
    const auto& last = blocks_[next - 1];
    const bool adjacent = last.data() + last.size() == blocks_[next].data();
    if (!adjacent || (uint64_t{piece.num_blocks} + 1) * limits_.block_bytes > max_piece_bytes_) {
      break;
    }
    ++piece.num_blocks;
  }
  return piece;
}

void Sender::SendPiece(uint32_t sequence, Actions& actions) {
  const Piece& piece = pieces_[sequence];
  SendControl send;
  send.payload = {blocks_[piece.first_block].data(),
                  size_t{piece.num_blocks} * limits_.block_bytes};
  v1::Piece* message = send.control.mutable_piece();
  message->set_fetch(fetch_);
  message->set_sequence(sequence);
  message->set_first_block(piece.first_block);
  message->set_num_blocks(piece.num_blocks);
  message->set_payload_bytes(send.payload.size());
  message->set_payload_crc32c(Crc32c(send.payload));
  stats_.bytes += send.payload.size();
  ++in_flight_;
  actions.emplace_back(std::move(send));
}

void Sender::SendCommit(const CommitRecord& record, Actions& actions) {
  SendControl send;
  v1::Commit* commit = send.control.mutable_commit();
  commit->set_fetch(fetch_);
  commit->set_num_tokens(record.num_tokens);
  commit->set_num_pieces(static_cast<uint32_t>(pieces_.size()));
  commit->set_first_token(record.first_token.value);
  commit->set_sampler_state(record.sampler_state);
  commit->set_queue_us(absl::ToInt64Microseconds(record.queue_time));
  commit->set_prefill_us(absl::ToInt64Microseconds(record.prefill_time));
  commit->set_cached_tokens(record.cached_tokens);
  state_ = State::kAwaitingAcknowledge;
  actions.emplace_back(std::move(send));
}

void Sender::Fail(absl::Status status, absl::Time now, Actions& actions) {
  if (state_ == State::kEnding) return;
  if (fetched_) {
    actions.emplace_back(CancelMessage(fetch_, std::string(status.message()), false));
  }
  StartEnding(std::move(status), now);
}

void Sender::StartEnding(absl::Status status, absl::Time now) {
  state_ = State::kEnding;
  end_ = std::move(status);
  fence_deadline_ = now + limits_.fence_timeout;
  resend_.clear();
}

}  // namespace pdserve::kvtransfer
