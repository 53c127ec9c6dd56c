#include "kvtransfer/hand_over.h"

namespace pdserve::kvtransfer {

HandOverLimits LimitsOf(const PumpOptions& options) {
  HandOverLimits limits;
  limits.block_bytes = options.block_bytes;
  limits.block_tokens = options.block_tokens;
  limits.piece_bytes = static_cast<uint64_t>(options.piece_bytes);
  limits.pieces_in_flight = static_cast<uint32_t>(options.pieces_in_flight);
  limits.fence_timeout = options.peer_timeout;
  return limits;
}

SendControl CancelMessage(uint64_t fetch, const std::string& reason, bool acknowledges) {
  SendControl send;
  v1::CancelTransfer* cancel = send.control.mutable_cancel();
  cancel->set_fetch(fetch);
  cancel->set_reason(reason);
  cancel->set_acknowledges(acknowledges);
  return send;
}

}  // namespace pdserve::kvtransfer
