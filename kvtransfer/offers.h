// The prefill side of a pump: its offers by ticket, the fetches that came before their ticket, and
// whose turn it is on each link. Runs what the senders decide. Owner and thread: the pump.
// Invariant: an offer is in `offers_` until its OnOfferEnded; with a link, in that link's table
// too.
#ifndef PDSERVE_KVTRANSFER_OFFERS_H_
#define PDSERVE_KVTRANSFER_OFFERS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kvtransfer/deadline_queue.h"
#include "kvtransfer/links.h"
#include "kvtransfer/pump.h"
#include "kvtransfer/sender.h"
#include "kvtransfer/ticket_ledger.h"

namespace pdserve::kvtransfer {

class Offers {
 public:
  Offers(const PumpOptions& options, Links* links, TicketLedger* ledger, PumpEvents* events);

  // From the node. Unknown tickets have ended and are ignored.
  void Offer(const OfferSpec& spec, absl::Time now);
  void Apply(const Ticket& ticket, const SenderEvent& event, absl::Time now);
  void EndAll(const absl::Status& reason, absl::Time now);

  // From the peer.
  void OnFetch(LinkId link, const v1::Fetch& fetch, absl::Time now);
  /// A resend, an acknowledgement or a cancel of a hand-over on this link. False: there is none.
  bool OnPeerEvent(LinkId link, uint64_t fetch, const SenderEvent& event, absl::Time now);

  // From the link.
  void OnSent(LinkId link, OpId op, const absl::Status& status, absl::Time now);
  void OnLinkClosed(LinkId link, const absl::Status& reason, absl::Time now);

  void Tick(absl::Time now);
  absl::Time next_deadline() const;

 private:
  struct Held {
    explicit Held(Sender machine) : sender(std::move(machine)) {}
    Sender sender;
    LinkId link;         // value 0: nobody has fetched it
    uint64_t fetch = 0;  // its name on the link
    bool in_turn = false;
  };
  struct Waiting {
    LinkId link;
    v1::Fetch fetch;
  };
  // What a link carries. Pieces go out in turn, one of each hand-over, so many at a time.
  struct Lane {
    absl::flat_hash_map<uint64_t, Ticket> fetches;
    absl::flat_hash_map<OpId, Ticket> in_flight;
    std::deque<Ticket> turn;
  };

  void Run(const Ticket& ticket, Held& held, Actions actions);
  void End(const Ticket& ticket, const absl::Status& status);
  void TakeTurn(const Ticket& ticket, Held& held);
  void Fill(LinkId link, absl::Time now);
  void Start(const Ticket& ticket, LinkId link, const v1::Fetch& fetch, absl::Time now);
  void Refuse(LinkId link, uint64_t fetch, const std::string& reason);
  bool DropWaiting(LinkId link, uint64_t fetch);

  const PumpOptions options_;
  const HandOverLimits limits_;
  Links* const links_;
  TicketLedger* const ledger_;
  PumpEvents* const events_;
  absl::flat_hash_map<Ticket, std::unique_ptr<Held>> offers_;
  absl::flat_hash_map<Ticket, Waiting> waiting_;
  absl::flat_hash_map<LinkId, Lane> lanes_;
  DeadlineQueue<Ticket> offer_deadlines_;
  DeadlineQueue<Ticket> waiting_deadlines_;
};

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_OFFERS_H_
