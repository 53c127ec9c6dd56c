#include "prefill/shipper.h"

#include <utility>

#include "common/status_macros.h"

namespace pdserve::prefill {

absl::Status Shipper::Offer(const kvtransfer::OfferSpec& spec) {
  if (shipments_.contains(spec.ticket)) {
    return absl::AlreadyExistsError("the ticket is in use");
  }
  RETURN_IF_ERROR(pump_->Offer(spec));
  shipments_.try_emplace(spec.ticket);
  return absl::OkStatus();
}

void Shipper::Ship(Ticket ticket, std::span<const BlockId> blocks, size_t num_finished) {
  const auto found = shipments_.find(ticket);
  if (found == shipments_.end() || found->second.withdrawn) return;
  std::vector<BlockId>& held = found->second.held;
  if (num_finished <= held.size()) return;
  const auto fresh = blocks.subspan(held.size(), num_finished - held.size());
  pool_->Hold(fresh, engine::Owner::kTransfer);
  held.insert(held.end(), fresh.begin(), fresh.end());
  std::vector<std::span<const std::byte>> bytes;
  bytes.reserve(fresh.size());
  for (BlockId block : fresh) bytes.emplace_back(pool_->Address(block));
  pump_->Extend(ticket, std::move(bytes));
}

void Shipper::Commit(Ticket ticket, const kvtransfer::CommitRecord& record) {
  const auto found = shipments_.find(ticket);
  if (found == shipments_.end() || found->second.withdrawn) return;
  pump_->Commit(ticket, record);
}

void Shipper::Withdraw(Ticket ticket, const std::string& reason) {
  const auto found = shipments_.find(ticket);
  if (found == shipments_.end() || found->second.withdrawn) return;
  found->second.withdrawn = true;
  ++num_withdrawn_;
  pump_->Withdraw(ticket, reason);
}

void Shipper::Ended(Ticket ticket) {
  const auto found = shipments_.find(ticket);
  if (found == shipments_.end()) return;
  pool_->Release(found->second.held, engine::Owner::kTransfer);
  if (found->second.withdrawn) --num_withdrawn_;
  shipments_.erase(found);
}

}  // namespace pdserve::prefill
