// Where handed-over blocks arrive: names each destination in the pool, and holds it for the
// transfer until the pump has ended the fetch. A landing may outlive its attempt: it then only
// waits for that end. Owner: the decode role; the step loop's thread.
#ifndef PDSERVE_DECODE_LANDING_H_
#define PDSERVE_DECODE_LANDING_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "engine/cache/block_pool.h"
#include "kvtransfer/pump.h"

namespace pdserve::decode {

/// From whom, and for how long.
struct LandingSource {
  Ticket ticket;
  std::string peer_address;
  Incarnation peer_incarnation;
  absl::Time deadline;
};

class LandingStrip {
 public:
  LandingStrip(engine::BlockPool* pool, kvtransfer::Pump* pump) : pool_(pool), pump_(pump) {}

  /// Asks for what belongs into `blocks`, all of an attempt, from the one at `first` on: those
  /// before it hold their tokens already. A sequence holds them all, and shares none that is asked
  /// for. AlreadyExists: the ticket is in use; else what the pump says. After an error nothing is
  /// held.
  absl::Status Fetch(const LandingSource& source, std::span<const BlockId> blocks, size_t first);
  /// Nobody waits for it any more; the blocks come back with the pump's event. Harmless when
  /// repeated or late.
  void Cancel(Ticket ticket, const std::string& reason);
  /// The pump has ended the fetch: lets the blocks go.
  void Ended(Ticket ticket);

  bool contains(Ticket ticket) const { return landings_.contains(ticket); }
  size_t num_cancelled() const { return num_cancelled_; }

 private:
  struct Landing {
    std::vector<BlockId> held;  // as Owner::kTransfer
    bool cancelled = false;
  };

  engine::BlockPool* const pool_;
  kvtransfer::Pump* const pump_;
  absl::flat_hash_map<Ticket, Landing> landings_;
  size_t num_cancelled_ = 0;
};

}  // namespace pdserve::decode

#endif  // PDSERVE_DECODE_LANDING_H_
