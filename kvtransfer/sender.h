// The prefill side of one hand-over as a state machine: no I/O, no threads, no clock of its own.
// Owner: offers.h. It reads the offer's blocks for their checksums only while it makes a piece.
//
//   kOffered --Fetched--> kSending --last block, commit--> kAwaitingAcknowledge --> kEnding
//   any of them --Withdrawn, PeerCancelled, deadline, fault--> kEnding --no piece in flight-->
//   kEnded, with EndHandOver as the last action of all.
#ifndef PDSERVE_KVTRANSFER_SENDER_H_
#define PDSERVE_KVTRANSFER_SENDER_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kvtransfer/hand_over.h"
#include "kvtransfer/pump.h"

namespace pdserve::kvtransfer {

// From the node.
struct Extended {
  std::vector<std::span<const std::byte>> blocks;
};
struct Committed {
  CommitRecord record;
};
struct Withdrawn {
  absl::Status reason;
};
// From the peer.
struct Fetched {
  v1::Fetch fetch;
};
struct ResendAsked {
  uint32_t sequence = 0;
};
struct Acknowledged {};
struct PeerCancelled {
  std::string reason;
  bool refuses = false;  // to a receiver: there never was an offer for it
};
// From the link.
struct WindowOpen {};  // one more piece may go out
struct PieceSent {
  absl::Status status;
};
struct LinkLost {  // after its fence: nothing is in flight
  absl::Status reason;
};
struct TimePassed {};

using SenderEvent = std::variant<Extended, Committed, Withdrawn, Fetched, ResendAsked, Acknowledged,
                                 PeerCancelled, WindowOpen, PieceSent, LinkLost, TimePassed>;

class Sender {
 public:
  enum class State { kOffered, kSending, kAwaitingAcknowledge, kEnding, kEnded };

  Sender(const OfferSpec& spec, const HandOverLimits& limits);

  /// The one transition function.
  Actions Apply(const SenderEvent& event, absl::Time now);

  /// A WindowOpen would send something.
  bool wants_window() const;
  /// When TimePassed is due.
  absl::Time next_deadline() const;
  State state() const { return state_; }
  const TransferStats& stats() const { return stats_; }

 private:
  struct Piece {
    uint32_t first_block = 0;
    uint32_t num_blocks = 0;
    bool resent = false;
  };

  void On(const Extended& event, absl::Time now, Actions& actions);
  void On(const Committed& event, absl::Time now, Actions& actions);
  void On(const Withdrawn& event, absl::Time now, Actions& actions);
  void On(const Fetched& event, absl::Time now, Actions& actions);
  void On(const ResendAsked& event, absl::Time now, Actions& actions);
  void On(const Acknowledged& event, absl::Time now, Actions& actions);
  void On(const PeerCancelled& event, absl::Time now, Actions& actions);
  void On(const WindowOpen& event, absl::Time now, Actions& actions);
  void On(const PieceSent& event, absl::Time now, Actions& actions);
  void On(const LinkLost& event, absl::Time now, Actions& actions);
  void On(const TimePassed& event, absl::Time now, Actions& actions);

  bool commit_due() const;
  Piece NextPiece() const;
  void SendPiece(uint32_t sequence, Actions& actions);
  void SendCommit(const CommitRecord& record, Actions& actions);
  /// Decides how it ends; the peer is told where it does not know yet.
  void Fail(absl::Status status, absl::Time now, Actions& actions);
  void StartEnding(absl::Status status, absl::Time now);

  HandOverLimits limits_;
  uint32_t num_blocks_;
  absl::Time deadline_;
  State state_ = State::kOffered;

  std::vector<std::span<const std::byte>> blocks_;  // so far, [0, blocks_.size())
  std::optional<CommitRecord> record_;
  absl::Time committed_;

  bool fetched_ = false;
  uint64_t fetch_ = 0;
  uint64_t max_piece_bytes_ = 0;
  uint32_t max_in_flight_ = 0;
  uint32_t next_block_ = 0;      // [0, next_block_) was sent or is not needed
  std::vector<Piece> pieces_;    // by sequence
  std::deque<uint32_t> resend_;  // sequences
  uint32_t in_flight_ = 0;

  absl::Status end_;
  absl::Time fence_deadline_;
  absl::Time first_byte_;
  TransferStats stats_;
};

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_SENDER_H_
