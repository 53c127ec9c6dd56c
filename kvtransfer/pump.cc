#include "kvtransfer/pump.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kvtransfer/pump_thread.h"

namespace pdserve::kvtransfer {

absl::Status CheckPumpOptions(const PumpOptions& options) {
  const auto bad = [](const char* what) { return absl::InvalidArgumentError(what); };
  if (options.block_bytes == 0) return bad("block_bytes is 0");
  if (options.block_tokens == 0) return bad("block_tokens is 0");
  if (options.piece_bytes < 1) return bad("piece_bytes is below 1");
  if (options.pieces_in_flight < 1 || options.pieces_in_flight > UINT32_MAX) {
    return bad("pieces_in_flight is below 1 or too large");
  }
  if (options.max_unknown_fetches < 1) return bad("max_unknown_fetches is below 1");
  if (options.max_hand_overs < 1) return bad("max_hand_overs is below 1");
  if (options.heartbeat_interval <= absl::ZeroDuration()) return bad("heartbeat_interval is 0");
  if (options.heartbeat_interval >= options.peer_timeout) {
    return bad("heartbeat_interval is not below peer_timeout");
  }
  return absl::OkStatus();
}

TransportOptions TransportOptionsOf(const PumpOptions& options) {
  TransportOptions transport;
  transport.max_payload_bytes =
      std::max<uint64_t>(static_cast<uint64_t>(options.piece_bytes), options.block_bytes);
  return transport;
}

absl::StatusOr<std::unique_ptr<Pump>> Pump::Start(const PumpOptions& options, PumpEvents* events,
                                                  const Clock* clock) {
  RETURN_IF_ERROR(CheckPumpOptions(options));
  ASSIGN_OR_RETURN(auto transport, MakeTransport(options.transport, TransportOptionsOf(options)));
  ASSIGN_OR_RETURN(const std::string address, transport->Listen(options.listen));
  return std::make_unique<PumpThread>(options, std::move(transport), address, events, clock);
}

}  // namespace pdserve::kvtransfer
