// What the two state machines of a hand-over (sender.h, receiver.h) ask to be done. They decide;
// the pump does, in order. Plain values; the pump's thread.
#ifndef PDSERVE_KVTRANSFER_HAND_OVER_H_
#define PDSERVE_KVTRANSFER_HAND_OVER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kvtransfer/pump.h"
#include "proto/kv.pb.h"

namespace pdserve::kvtransfer {

/// A message to the peer. One with a payload ends by PieceSent.
struct SendControl {
  v1::Control control;
  std::span<const std::byte> payload;
};
/// The payload of the piece that has just arrived goes here; ends by PieceLanded. Without this
/// action it is thrown away.
struct AcceptPiece {
  uint32_t sequence = 0;
  std::vector<std::span<std::byte>> parts;
};
/// Running receives should end as soon as they can.
struct AbandonReceives {};
/// Nothing else will make the transport let go of our blocks.
struct CloseLink {
  absl::Status reason;
};
/// The last action of a hand-over.
struct EndHandOver {
  absl::Status status;
};

using Action = std::variant<SendControl, AcceptPiece, AbandonReceives, CloseLink, EndHandOver>;
using Actions = std::vector<Action>;

/// Related limits are checked together by CheckPumpOptions.
struct HandOverLimits {
  uint32_t block_bytes = 0;
  uint32_t block_tokens = 0;
  uint64_t piece_bytes = 0;  // at most, but for a single block
  uint32_t pieces_in_flight = 0;
  uint32_t max_state_bytes = 128 << 10;  // of a commit's sampler state
  absl::Duration fence_timeout;          // after the end was decided; then the link is closed
};

/// What the state machines need of a pump's options.
HandOverLimits LimitsOf(const PumpOptions& options);

/// A CancelTransfer that refuses nothing.
SendControl CancelMessage(uint64_t fetch, const std::string& reason, bool acknowledges);

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_HAND_OVER_H_
