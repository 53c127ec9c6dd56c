// Which tickets live, and which were used: the bound on hand-overs, and "good once".
// Owner: the pump. Thread-safe: Offer and Fetch ask on their caller's thread.
#ifndef PDSERVE_KVTRANSFER_TICKET_LEDGER_H_
#define PDSERVE_KVTRANSFER_TICKET_LEDGER_H_

#include <cstddef>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "common/ids.h"
#include "common/mutex.h"

namespace pdserve::kvtransfer {

enum class Side { kOffer, kFetch };

class TicketLedger {
 public:
  /// `max_live` on each side; as many of the used ones are remembered, four times over.
  explicit TicketLedger(size_t max_live) : max_live_(max_live) {}

  /// AlreadyExists: it lives or (offers) was used. ResourceExhausted: too many live.
  absl::Status Enter(Side side, const Ticket& ticket);
  /// It has ended; an offer's ticket counts as used from now on.
  void Leave(Side side, const Ticket& ticket);
  /// It never began.
  void Forget(Side side, const Ticket& ticket);
  /// An offer had this ticket and has ended.
  bool WasUsed(const Ticket& ticket) const;

 private:
  absl::flat_hash_set<Ticket>& Live(Side side) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return side == Side::kOffer ? offers_ : fetches_;
  }

  const size_t max_live_;
  mutable Mutex mutex_;
  absl::flat_hash_set<Ticket> offers_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<Ticket> fetches_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<Ticket> used_ ABSL_GUARDED_BY(mutex_);
  std::deque<Ticket> used_order_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_TICKET_LEDGER_H_
