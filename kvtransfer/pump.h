// The pump: one thread that owns a transport and drives every hand-over of a node, both ways.
// Calls may come from any thread and are posted to its bounded mailbox; events come on the pump's
// thread and must not block.
//
// The promise others build on: each Offer and each Fetch ends exactly once, by OnOfferEnded or
// OnFetchEnded, whatever happens: success, refusal, cancel, deadline, a lost peer, shutdown. After
// that event no byte of its blocks is read or written by the transport any more: it is the fence.
#ifndef PDSERVE_KVTRANSFER_PUMP_H_
#define PDSERVE_KVTRANSFER_PUMP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"

namespace pdserve::kvtransfer {

/// What ends a hand-over, beside the cache bytes.
struct CommitRecord {
  uint32_t num_tokens = 0;    // whose cache was sent: [0, num_tokens)
  TokenId first_token;        // the token sampled after them
  std::string sampler_state;  // opaque
  absl::Duration queue_time;  // on the prefill node
  absl::Duration prefill_time;
  uint32_t cached_tokens = 0;  // of the prompt: found in the prefill node's prefix cache
};

struct TransferStats {
  uint64_t bytes = 0;
  uint32_t pieces = 0;
  uint32_t resent_pieces = 0;
  absl::Duration first_to_last_byte;
  absl::Duration exposed;  // from commit received (or sent) to the end
};

struct OfferSpec {  // prefill side
  Ticket ticket;
  uint32_t num_blocks = 0;  // of the attempt in all
  absl::Time deadline;
};

struct FetchSpec {  // decode side
  Ticket ticket;
  std::string peer_address;
  Incarnation peer_incarnation;
  std::vector<std::span<std::byte>> destinations;  // one block each, in order
  absl::Time deadline;
  uint32_t first_block = 0;  // where the first destination's belongs; what is before it is here
};

class PumpEvents {
 public:
  virtual ~PumpEvents() = default;
  /// The peer has asked for the offer: it has room for all of its blocks. At most once, and before
  /// the offer's end.
  virtual void OnOfferFetched(Ticket ticket) = 0;
  /// OK: the peer has acknowledged the whole cache.
  virtual void OnOfferEnded(Ticket ticket, absl::Status status, const TransferStats& stats) = 0;
  /// OK: every block is there, checked, and the commit with it. Aborted: the peer had an offer, and
  /// its own OnOfferEnded says how that ended. Anything else: nobody but this end may know of it.
  virtual void OnFetchEnded(Ticket ticket, absl::StatusOr<CommitRecord> commit,
                            const TransferStats& stats) = 0;
};

struct PumpOptions {
  std::string transport = "tcp";  // a name of kvtransfer/transports
  std::string listen = "127.0.0.1:0";
  std::string node_id;
  Incarnation incarnation;
  Fingerprint fingerprint;
  uint32_t block_bytes = 0;
  uint32_t block_tokens = 0;
  int64_t piece_bytes = 4 << 20;
  int64_t pieces_in_flight = 8;
  int64_t max_unknown_fetches = 1024;
  int64_t max_hand_overs = 4096;
  absl::Duration fetch_wait = absl::Seconds(10);
  absl::Duration heartbeat_interval = absl::Milliseconds(500);
  absl::Duration peer_timeout = absl::Seconds(3);
};

class Pump {
 public:
  /// `events` and `clock` outlive the pump.
  static absl::StatusOr<std::unique_ptr<Pump>> Start(const PumpOptions& options, PumpEvents* events,
                                                     const Clock* clock);
  virtual ~Pump() = default;  // ends everything that runs, each with its event, then the thread

  /// Where peers connect to: what `listen` became.
  virtual std::string address() const = 0;

  /// Prefill side. Offer first; then blocks as they are finished, in order; then the commit.
  /// ResourceExhausted: the mailbox or the table is full; then no event follows.
  virtual absl::Status Offer(const OfferSpec& spec) = 0;
  /// The next blocks of the attempt, from where the last call ended; read until OnOfferEnded.
  virtual void Extend(Ticket ticket, std::vector<std::span<const std::byte>> blocks) = 0;
  virtual void Commit(Ticket ticket, const CommitRecord& record) = 0;
  virtual void Withdraw(Ticket ticket, const std::string& reason) = 0;

  /// Decode side.
  virtual absl::Status Fetch(FetchSpec spec) = 0;
  virtual void CancelFetch(Ticket ticket, const std::string& reason) = 0;
};

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_PUMP_H_
