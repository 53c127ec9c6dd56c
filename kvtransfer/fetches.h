// The decode side of a pump: its fetches by ticket and by their name on a link. Runs what the
// receivers decide. Owner and thread: the pump.
// Invariant: a fetch is in `fetches_` until its OnFetchEnded, and until then in its link's table.
#ifndef PDSERVE_KVTRANSFER_FETCHES_H_
#define PDSERVE_KVTRANSFER_FETCHES_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kvtransfer/deadline_queue.h"
#include "kvtransfer/links.h"
#include "kvtransfer/pump.h"
#include "kvtransfer/receiver.h"
#include "kvtransfer/ticket_ledger.h"

namespace pdserve::kvtransfer {

class Fetches {
 public:
  Fetches(const PumpOptions& options, Links* links, TicketLedger* ledger, PumpEvents* events);

  // From the node. Unknown tickets have ended and are ignored.
  void Fetch(FetchSpec spec, absl::Time now);
  void Apply(const Ticket& ticket, const ReceiverEvent& event, absl::Time now);
  void EndAll(const absl::Status& reason, absl::Time now);

  // From the peer.
  /// Where the payload goes; nowhere if it belongs to nothing that runs.
  Destination OnPiece(LinkId link, const v1::Piece& piece, uint64_t payload_bytes, absl::Time now);
  /// A commit or a cancel of a hand-over on this link. False: there is none.
  bool OnPeerEvent(LinkId link, uint64_t fetch, const ReceiverEvent& event, absl::Time now);

  // From the link.
  void OnLinkReady(LinkId link, absl::Time now);
  void OnReceived(OpId op, const absl::Status& status, absl::Time now);
  void OnLinkClosed(LinkId link, const absl::Status& reason, absl::Time now);

  void Tick(absl::Time now);
  absl::Time next_deadline() const { return deadlines_.next(); }

 private:
  struct Held {
    explicit Held(Receiver machine) : receiver(std::move(machine)) {}
    Receiver receiver;
    LinkId link;
    uint64_t fetch = 0;  // its name on the link
  };
  struct Landing {
    Ticket ticket;
    uint32_t sequence = 0;
    LinkId link;
  };
  using Names = absl::flat_hash_map<uint64_t, Ticket>;

  /// Where to put the piece that has just arrived, if the actions say so.
  Destination Run(const Ticket& ticket, Held& held, Actions actions);
  void Abandon(const Ticket& ticket);
  void End(const Ticket& ticket, const absl::Status& status);
  Held* Find(LinkId link, uint64_t fetch, Ticket& ticket);

  const HandOverLimits limits_;
  Links* const links_;
  TicketLedger* const ledger_;
  PumpEvents* const events_;
  uint64_t next_fetch_ = 1;
  absl::flat_hash_map<Ticket, std::unique_ptr<Held>> fetches_;
  absl::flat_hash_map<LinkId, Names> names_;
  absl::flat_hash_map<OpId, Landing> landings_;  // receives that run: at most a few per link
  DeadlineQueue<Ticket> deadlines_;
};

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_FETCHES_H_
