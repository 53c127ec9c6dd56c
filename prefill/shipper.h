// Gives an attempt's finished blocks to the pump, and holds them for the transfer until the pump
// has ended the offer. A shipment may outlive its attempt: it then only waits for that end.
// Owner: the prefill role; the step loop's thread.
#ifndef PDSERVE_PREFILL_SHIPPER_H_
#define PDSERVE_PREFILL_SHIPPER_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/ids.h"
#include "engine/cache/block_pool.h"
#include "kvtransfer/pump.h"

namespace pdserve::prefill {

class Shipper {
 public:
  Shipper(engine::BlockPool* pool, kvtransfer::Pump* pump) : pool_(pool), pump_(pump) {}

  /// AlreadyExists: the ticket is in use; else what the pump says.
  absl::Status Offer(const kvtransfer::OfferSpec& spec);
  /// The first `num_finished` of `blocks` are computed; ships those that have not been yet.
  void Ship(Ticket ticket, std::span<const BlockId> blocks, size_t num_finished);
  void Commit(Ticket ticket, const kvtransfer::CommitRecord& record);
  /// No more is wanted; the blocks come back with the pump's event. Harmless when repeated.
  void Withdraw(Ticket ticket, const std::string& reason);
  /// The pump has ended the offer: lets the blocks go.
  void Ended(Ticket ticket);

  size_t num_open() const { return shipments_.size(); }
  size_t num_withdrawn() const { return num_withdrawn_; }

 private:
  struct Shipment {
    std::vector<BlockId> held;  // as Owner::kTransfer, in the attempt's order
    bool withdrawn = false;
  };

  engine::BlockPool* const pool_;
  kvtransfer::Pump* const pump_;
  absl::flat_hash_map<Ticket, Shipment> shipments_;
  size_t num_withdrawn_ = 0;
};

}  // namespace pdserve::prefill

#endif  // PDSERVE_PREFILL_SHIPPER_H_
