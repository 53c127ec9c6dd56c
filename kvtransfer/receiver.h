// The decode side of one hand-over as a state machine: no I/O, no threads, no clock of its own.
// Owner: fetches.h. Every destination is chosen here; a block counts as covered once its piece's
// checksum was right, and is never written again after that. Blocks before the spec's first one
// are covered from the start, and have no destination.
//
//   kConnecting --LinkReady--> kFetching --CommitArrived--> kCommitted --all covered--> kEnding
//   any of them --CancelAsked, PeerCancelled, deadline, fault--> kEnding --no receive running-->
//   kEnded, with EndHandOver as the last action of all.
#ifndef PDSERVE_KVTRANSFER_RECEIVER_H_
#define PDSERVE_KVTRANSFER_RECEIVER_H_

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kvtransfer/hand_over.h"
#include "kvtransfer/pump.h"
#include "kvtransfer/sender.h"  // events that both sides have

namespace pdserve::kvtransfer {

struct LinkReady {
  uint64_t fetch = 0;  // names the hand-over on the link
};
struct CancelAsked {
  absl::Status reason;
};
struct PieceArrived {
  v1::Piece piece;
  uint64_t payload_bytes = 0;  // what the transport says
};
struct PieceLanded {
  uint32_t sequence = 0;
  absl::Status status;
};
struct CommitArrived {
  v1::Commit commit;
};

using ReceiverEvent = std::variant<LinkReady, CancelAsked, PieceArrived, PieceLanded, CommitArrived,
                                   PeerCancelled, LinkLost, TimePassed>;

class Receiver {
 public:
  enum class State { kConnecting, kFetching, kCommitted, kEnding, kEnded };

  Receiver(FetchSpec spec, const HandOverLimits& limits);

  /// The one transition function.
  Actions Apply(const ReceiverEvent& event, absl::Time now);

  /// When TimePassed is due.
  absl::Time next_deadline() const;
  State state() const { return state_; }
  const TransferStats& stats() const { return stats_; }
  /// Valid after EndHandOver with OK.
  const CommitRecord& record() const { return record_; }

 private:
  enum class Block : uint8_t { kMissing, kLanding, kCovered };
  enum class PieceState : uint8_t { kLanding, kResendAsked, kLandingAgain, kChecked };
  struct Piece {
    uint32_t first_block = 0;
    uint32_t num_blocks = 0;
    uint32_t crc32c = 0;
    PieceState state = PieceState::kLanding;
  };

  void On(const LinkReady& event, absl::Time now, Actions& actions);
  void On(const CancelAsked& event, absl::Time now, Actions& actions);
  void On(const PieceArrived& event, absl::Time now, Actions& actions);
  void On(const PieceLanded& event, absl::Time now, Actions& actions);
  void On(const CommitArrived& event, absl::Time now, Actions& actions);
  void On(const PeerCancelled& event, absl::Time now, Actions& actions);
  void On(const LinkLost& event, absl::Time now, Actions& actions);
  void On(const TimePassed& event, absl::Time now, Actions& actions);

  /// InvalidArgument, DataLoss or Unimplemented: a piece that can't be meant.
  absl::Status CheckPiece(const v1::Piece& piece, uint64_t payload_bytes) const;
  absl::Status CheckCommit(const v1::Commit& commit) const;
  void Accept(const v1::Piece& piece, Actions& actions);
  uint32_t ChecksumOf(const Piece& piece) const;
  void PieceIsBad(uint32_t sequence, absl::Time now, Actions& actions);
  void EndIfComplete(absl::Time now, Actions& actions);
  /// Decides how it ends; the peer is told where it does not know yet.
  void Fail(absl::Status status, absl::Time now, Actions& actions);
  void StartEnding(absl::Status status, absl::Time now, Actions& actions);
  std::span<std::byte> DestinationOf(uint32_t block) const {
    return spec_.destinations[block - spec_.first_block];
  }
  bool running() const { return state_ == State::kFetching || state_ == State::kCommitted; }

  FetchSpec spec_;
  HandOverLimits limits_;
  State state_ = State::kConnecting;
  uint64_t fetch_ = 0;

  std::vector<Block> blocks_;  // [first_block + destinations], of the attempt
  std::vector<Piece> pieces_;  // by sequence
  size_t num_covered_ = 0;
  uint32_t num_landing_ = 0;  // receives that run
  CommitRecord record_;
  absl::Time committed_;

  absl::Status end_;
  absl::Time fence_deadline_;
  absl::Time first_byte_;
  TransferStats stats_;
};

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_RECEIVER_H_
