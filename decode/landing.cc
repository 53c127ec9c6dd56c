#include "decode/landing.h"

#include <utility>

#include "common/status_macros.h"

namespace pdserve::decode {

absl::Status LandingStrip::Fetch(const LandingSource& source, std::span<const BlockId> blocks,
                                 size_t first) {
  if (contains(source.ticket)) return absl::AlreadyExistsError("the ticket is in use");
  kvtransfer::FetchSpec spec;
  spec.ticket = source.ticket;
  spec.peer_address = source.peer_address;
  spec.peer_incarnation = source.peer_incarnation;
  spec.deadline = source.deadline;
  spec.first_block = static_cast<uint32_t>(first);
  const std::span<const BlockId> fetched = blocks.subspan(first);
  for (BlockId block : fetched) spec.destinations.push_back(pool_->Address(block));
  RETURN_IF_ERROR(pump_->Fetch(std::move(spec)));
  pool_->Hold(fetched, engine::Owner::kTransfer);
  landings_[source.ticket].held.assign(fetched.begin(), fetched.end());
  return absl::OkStatus();
}

void LandingStrip::Cancel(Ticket ticket, const std::string& reason) {
  const auto found = landings_.find(ticket);
  if (found == landings_.end() || found->second.cancelled) return;
  found->second.cancelled = true;
  ++num_cancelled_;
  pump_->CancelFetch(ticket, reason);
}

void LandingStrip::Ended(Ticket ticket) {
  const auto found = landings_.find(ticket);
  if (found == landings_.end()) return;
  pool_->Release(found->second.held, engine::Owner::kTransfer);
  if (found->second.cancelled) --num_cancelled_;
  landings_.erase(found);
}

}  // namespace pdserve::decode
