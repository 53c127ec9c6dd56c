#include "kvtransfer/offers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "kvtransfer/wire.h"

namespace pdserve::kvtransfer {

Offers::Offers(const PumpOptions& options, Links* links, TicketLedger* ledger, PumpEvents* events)
    : options_(options),
      limits_(LimitsOf(options)),
      links_(links),
      ledger_(ledger),
      events_(events) {}

void Offers::Offer(const OfferSpec& spec, absl::Time now) {
  auto [at, fresh] = offers_.emplace(spec.ticket, std::make_unique<Held>(Sender(spec, limits_)));
  PD_CHECK(fresh);  // the ledger has seen to it
  offer_deadlines_.Set(spec.ticket, at->second->sender.next_deadline());
  const auto waiting = waiting_.find(spec.ticket);
  if (waiting == waiting_.end()) return;
  const Waiting early = std::move(waiting->second);
  waiting_.erase(waiting);
  waiting_deadlines_.Remove(spec.ticket);
  Start(spec.ticket, early.link, early.fetch, now);
}

void Offers::Apply(const Ticket& ticket, const SenderEvent& event, absl::Time now) {
  const auto found = offers_.find(ticket);
  if (found == offers_.end()) return;
  Held& held = *found->second;
  const LinkId link = held.link;
  Run(ticket, held, held.sender.Apply(event, now));  // may end it
  if (link.value != 0) Fill(link, now);
}

void Offers::EndAll(const absl::Status& reason, absl::Time now) {
  std::vector<Ticket> tickets;
  for (const auto& [ticket, held] : offers_) tickets.push_back(ticket);
  for (const Ticket& ticket : tickets) Apply(ticket, Withdrawn{reason}, now);
}

void Offers::OnFetch(LinkId link, const v1::Fetch& fetch, absl::Time now) {
  const Ticket ticket = TicketFromBytes(fetch.ticket());
  Lane& lane = lanes_[link];
  if (const auto known = lane.fetches.find(fetch.fetch()); known != lane.fetches.end()) {
    if (known->second == ticket) return;  // the same message twice
    return links_->Close(link, absl::InvalidArgumentError("two fetches have the same name"));
  }
  if (ledger_->WasUsed(ticket)) {  // no refusal: there was an offer, whose end the node has told
    return links_->Send(link,
                        CancelMessage(fetch.fetch(), "the ticket was used before", false).control);
  }
  if (const auto found = offers_.find(ticket); found != offers_.end()) {
    if (found->second->link.value != 0) {
      return Refuse(link, fetch.fetch(), "the ticket is in use");
    }
    return Start(ticket, link, fetch, now);
  }
  if (const auto found = waiting_.find(ticket); found != waiting_.end()) {
    const bool same = found->second.link == link && found->second.fetch.fetch() == fetch.fetch();
    if (!same) Refuse(link, fetch.fetch(), "the ticket is in use");
    return;
  }
  if (waiting_.size() >= static_cast<size_t>(options_.max_unknown_fetches)) {
    return Refuse(link, fetch.fetch(), "too many fetches wait for their offer");
  }
  waiting_[ticket] = {link, fetch};
  absl::Time until = now + options_.fetch_wait;
  if (fetch.deadline_ms() > 0)
    until = std::min(until, now + absl::Milliseconds(fetch.deadline_ms()));
  waiting_deadlines_.Set(ticket, until);
}

void Offers::Start(const Ticket& ticket, LinkId link, const v1::Fetch& fetch, absl::Time now) {
  Held& held = *offers_.at(ticket);
  held.link = link;
  held.fetch = fetch.fetch();
  lanes_[link].fetches[fetch.fetch()] = ticket;
  events_->OnOfferFetched(ticket);
  Apply(ticket, Fetched{fetch}, now);
}

bool Offers::OnPeerEvent(LinkId link, uint64_t fetch, const SenderEvent& event, absl::Time now) {
  const auto lane = lanes_.find(link);
  if (lane != lanes_.end()) {
    const auto found = lane->second.fetches.find(fetch);
    if (found != lane->second.fetches.end()) {
      Apply(Ticket(found->second), event, now);
      return true;
    }
  }
  return std::holds_alternative<PeerCancelled>(event) && DropWaiting(link, fetch);
}

bool Offers::DropWaiting(LinkId link, uint64_t fetch) {
  for (const auto& [ticket, waiting] : waiting_) {
    if (waiting.link != link || waiting.fetch.fetch() != fetch) continue;
    waiting_deadlines_.Remove(ticket);
    waiting_.erase(ticket);
    return true;
  }
  return false;
}

void Offers::OnSent(LinkId link, OpId op, const absl::Status& status, absl::Time now) {
  const auto lane = lanes_.find(link);
  if (lane == lanes_.end()) return;
  const auto found = lane->second.in_flight.find(op);
  if (found == lane->second.in_flight.end()) return;  // a message without a payload
  const Ticket ticket = found->second;
  lane->second.in_flight.erase(found);
  Apply(ticket, PieceSent{status}, now);
}

void Offers::OnLinkClosed(LinkId link, const absl::Status& reason, absl::Time now) {
  std::vector<Ticket> tickets;
  for (const auto& [ticket, waiting] : waiting_) {
    if (waiting.link == link) tickets.push_back(ticket);
  }
  for (const Ticket& ticket : tickets) {
    waiting_.erase(ticket);
    waiting_deadlines_.Remove(ticket);
  }
  const auto lane = lanes_.find(link);
  if (lane == lanes_.end()) return;
  PD_CHECK(lane->second.in_flight.empty());  // the transport's fence
  const absl::flat_hash_map<uint64_t, Ticket> fetches = lane->second.fetches;
  for (const auto& [fetch, ticket] : fetches) Apply(ticket, LinkLost{reason}, now);
  lanes_.erase(link);
}

void Offers::Tick(absl::Time now) {
  for (const Ticket& ticket : offer_deadlines_.TakeDue(now)) Apply(ticket, TimePassed{}, now);
  for (const Ticket& ticket : waiting_deadlines_.TakeDue(now)) {
    const auto found = waiting_.find(ticket);
    if (found == waiting_.end()) continue;
    Refuse(found->second.link, found->second.fetch.fetch(), "no offer has this ticket");
    waiting_.erase(found);
  }
}

absl::Time Offers::next_deadline() const {
  return std::min(offer_deadlines_.next(), waiting_deadlines_.next());
}

void Offers::Run(const Ticket& ticket, Held& held, Actions actions) {
  offer_deadlines_.Set(ticket, held.sender.next_deadline());
  for (Action& action : actions) {
    if (auto* send = std::get_if<SendControl>(&action)) {
      const OpId op = links_->NewOp();
      if (!send->payload.empty()) lanes_[held.link].in_flight[op] = ticket;
      links_->Send(held.link, send->control, send->payload, op);
    } else if (auto* close = std::get_if<CloseLink>(&action)) {
      links_->Close(held.link, close->reason);
    } else if (auto* end = std::get_if<EndHandOver>(&action)) {
      return End(ticket, end->status);
    }
  }
  TakeTurn(ticket, held);
}

void Offers::End(const Ticket& ticket, const absl::Status& status) {
  const auto found = offers_.find(ticket);
  const std::unique_ptr<Held> held = std::move(found->second);
  offers_.erase(found);
  offer_deadlines_.Remove(ticket);
  if (const auto lane = lanes_.find(held->link); lane != lanes_.end()) {
    lane->second.fetches.erase(held->fetch);
    if (held->in_turn) std::erase(lane->second.turn, ticket);
  }
  ledger_->Leave(Side::kOffer, ticket);
  events_->OnOfferEnded(ticket, status, held->sender.stats());
}

void Offers::TakeTurn(const Ticket& ticket, Held& held) {
  if (held.in_turn || !held.sender.wants_window()) return;
  held.in_turn = true;
  lanes_[held.link].turn.push_back(ticket);
}

// One piece of each hand-over in turn, while the link has room: a long one does not hold up others,
// and a cancel or a heartbeat never has more than the window in front of it.
void Offers::Fill(LinkId link, absl::Time now) {
  while (links_->ready(link)) {
    const auto lane = lanes_.find(link);
    if (lane == lanes_.end() || lane->second.turn.empty() ||
        lane->second.in_flight.size() >= static_cast<size_t>(options_.pieces_in_flight)) {
      return;
    }
    const Ticket ticket = lane->second.turn.front();
    lane->second.turn.pop_front();
    Held& held = *offers_.at(ticket);
    held.in_turn = false;
    Run(ticket, held, held.sender.Apply(WindowOpen{}, now));
  }
}

void Offers::Refuse(LinkId link, uint64_t fetch, const std::string& reason) {
  SendControl send = CancelMessage(fetch, reason, false);
  send.control.mutable_cancel()->set_refuses(true);
  links_->Send(link, send.control);
}

}  // namespace pdserve::kvtransfer
