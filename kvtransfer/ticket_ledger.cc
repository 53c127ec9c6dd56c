#include "kvtransfer/ticket_ledger.h"

namespace pdserve::kvtransfer {

absl::Status TicketLedger::Enter(Side side, const Ticket& ticket) {
  MutexLock lock(&mutex_);
  absl::flat_hash_set<Ticket>& live = Live(side);
  if (live.contains(ticket)) return absl::AlreadyExistsError("the ticket is in use");
  if (side == Side::kOffer && used_.contains(ticket)) {
    return absl::AlreadyExistsError("the ticket was used before");
  }
  if (live.size() >= max_live_) return absl::ResourceExhaustedError("too many hand-overs");
  live.insert(ticket);
  return absl::OkStatus();
}

void TicketLedger::Leave(Side side, const Ticket& ticket) {
  MutexLock lock(&mutex_);
  Live(side).erase(ticket);
  if (side != Side::kOffer || !used_.insert(ticket).second) return;
  used_order_.push_back(ticket);
  if (used_order_.size() > 4 * max_live_) {
    used_.erase(used_order_.front());
    used_order_.pop_front();
  }
}

void TicketLedger::Forget(Side side, const Ticket& ticket) {
  MutexLock lock(&mutex_);
  Live(side).erase(ticket);
}

bool TicketLedger::WasUsed(const Ticket& ticket) const {
  MutexLock lock(&mutex_);
  return used_.contains(ticket);
}

}  // namespace pdserve::kvtransfer
