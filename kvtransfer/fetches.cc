#include "kvtransfer/fetches.h"

#include <vector>

#include "common/check.h"

namespace pdserve::kvtransfer {

Fetches::Fetches(const PumpOptions& options, Links* links, TicketLedger* ledger, PumpEvents* events)
    : limits_(LimitsOf(options)), links_(links), ledger_(ledger), events_(events) {}

void Fetches::Fetch(FetchSpec spec, absl::Time now) {
  const Ticket ticket = spec.ticket;
  const LinkId link = links_->Dial(spec.peer_address, spec.peer_incarnation, now);
  auto [at, fresh] =
      fetches_.emplace(ticket, std::make_unique<Held>(Receiver(std::move(spec), limits_)));
  PD_CHECK(fresh);  // the ledger has seen to it
  Held& held = *at->second;
  held.link = link;
  held.fetch = next_fetch_++;
  names_[link][held.fetch] = ticket;
  deadlines_.Set(ticket, held.receiver.next_deadline());
  if (links_->ready(link)) Apply(ticket, LinkReady{held.fetch}, now);
}

void Fetches::Apply(const Ticket& ticket, const ReceiverEvent& event, absl::Time now) {
  const auto found = fetches_.find(ticket);
  if (found == fetches_.end()) return;
  Held& held = *found->second;
  Run(ticket, held, held.receiver.Apply(event, now));
}

void Fetches::EndAll(const absl::Status& reason, absl::Time now) {
  std::vector<Ticket> tickets;
  for (const auto& [ticket, held] : fetches_) tickets.push_back(ticket);
  for (const Ticket& ticket : tickets) Apply(ticket, CancelAsked{reason}, now);
}

Fetches::Held* Fetches::Find(LinkId link, uint64_t fetch, Ticket& ticket) {
  const auto names = names_.find(link);
  if (names == names_.end()) return nullptr;
  const auto found = names->second.find(fetch);
  if (found == names->second.end()) return nullptr;
  ticket = found->second;
  return fetches_.at(ticket).get();
}

Destination Fetches::OnPiece(LinkId link, const v1::Piece& piece, uint64_t payload_bytes,
                             absl::Time now) {
  Ticket ticket;
  Held* held = Find(link, piece.fetch(), ticket);
  if (held == nullptr) return {};  // of a hand-over that has ended
  return Run(ticket, *held, held->receiver.Apply(PieceArrived{piece, payload_bytes}, now));
}

bool Fetches::OnPeerEvent(LinkId link, uint64_t fetch, const ReceiverEvent& event, absl::Time now) {
  Ticket ticket;
  Held* held = Find(link, fetch, ticket);
  if (held == nullptr) return false;
  Run(ticket, *held, held->receiver.Apply(event, now));
  return true;
}

void Fetches::OnLinkReady(LinkId link, absl::Time now) {
  const auto names = names_.find(link);
  if (names == names_.end()) return;
  const Names waiting = names->second;
  for (const auto& [fetch, ticket] : waiting) Apply(ticket, LinkReady{fetch}, now);
}

void Fetches::OnReceived(OpId op, const absl::Status& status, absl::Time now) {
  const auto found = landings_.find(op);
  if (found == landings_.end()) return;
  const Landing landing = found->second;
  landings_.erase(found);
  Apply(landing.ticket, PieceLanded{landing.sequence, status}, now);
}

void Fetches::OnLinkClosed(LinkId link, const absl::Status& reason, absl::Time now) {
  const auto names = names_.find(link);
  if (names == names_.end()) return;
  const Names lost = names->second;
  for (const auto& [fetch, ticket] : lost) Apply(ticket, LinkLost{reason}, now);
  names_.erase(link);
}

void Fetches::Tick(absl::Time now) {
  for (const Ticket& ticket : deadlines_.TakeDue(now)) Apply(ticket, TimePassed{}, now);
}

Destination Fetches::Run(const Ticket& ticket, Held& held, Actions actions) {
  Destination destination;
  deadlines_.Set(ticket, held.receiver.next_deadline());
  for (Action& action : actions) {
    if (auto* send = std::get_if<SendControl>(&action)) {
      links_->Send(held.link, send->control);
    } else if (auto* accept = std::get_if<AcceptPiece>(&action)) {
      destination.op = links_->NewOp();
      destination.parts = std::move(accept->parts);
      landings_[destination.op] = {ticket, accept->sequence, held.link};
    } else if (std::holds_alternative<AbandonReceives>(action)) {
      Abandon(ticket);
    } else if (auto* close = std::get_if<CloseLink>(&action)) {
      links_->Close(held.link, close->reason);
    } else if (auto* end = std::get_if<EndHandOver>(&action)) {
      End(ticket, end->status);
    }
  }
  return destination;
}

void Fetches::Abandon(const Ticket& ticket) {
  for (const auto& [op, landing] : landings_) {
    if (landing.ticket == ticket) links_->Abandon(landing.link, op);
  }
}

void Fetches::End(const Ticket& ticket, const absl::Status& status) {
  const auto found = fetches_.find(ticket);
  const std::unique_ptr<Held> held = std::move(found->second);
  fetches_.erase(found);
  deadlines_.Remove(ticket);
  if (const auto names = names_.find(held->link); names != names_.end()) {
    names->second.erase(held->fetch);
  }
  ledger_->Leave(Side::kFetch, ticket);
  const Receiver& receiver = held->receiver;
  if (!status.ok()) return events_->OnFetchEnded(ticket, status, receiver.stats());
  events_->OnFetchEnded(ticket, receiver.record(), receiver.stats());
}

}  // namespace pdserve::kvtransfer
