#include "kvtransfer/pump_thread.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kvtransfer/wire.h"

namespace pdserve::kvtransfer {
namespace {

// Calls in the mailbox per hand-over; one whose calls find no place is ended.
constexpr size_t kCallsPerHandOver = 16;
// What a peer gives as its reason, in our own errors.
constexpr size_t kReasonBytes = 200;
constexpr int kLastTurns = 100;

const absl::Status& ShuttingDown() {
  static const auto* status = new absl::Status(absl::CancelledError("the node is shutting down"));
  return *status;
}

}  // namespace

PumpThread::PumpThread(const PumpOptions& options, std::unique_ptr<Transport> transport,
                       const std::string& address, PumpEvents* events, const Clock* clock)
    : options_(options),
      address_(address),
      clock_(clock),
      transport_(std::move(transport)),
      ledger_(static_cast<size_t>(options.max_hand_overs)),
      links_(options, transport_.get()),
      offers_(options, &links_, &ledger_, events),
      fetches_(options, &links_, &ledger_, events),
      mailbox_(static_cast<size_t>(options.max_hand_overs) * kCallsPerHandOver),
      thread_([this] { Loop(); }) {}

PumpThread::~PumpThread() {
  mailbox_.Close();
  stopping_ = true;
  transport_->Wake();
  thread_.join();
}

bool PumpThread::Post(Call call) {
  if (!mailbox_.Push(std::move(call))) return false;
  if (!wake_sent_.exchange(true)) transport_->Wake();
  return true;
}

// These calls can't be refused, and can't be lost: without a place the hand-over itself ends.
void PumpThread::PostOrFail(Ticket ticket, Call call) {
  if (Post(std::move(call)) || mailbox_.closed()) return;
  MutexLock lock(&overflow_mutex_);
  if (std::find(overflowed_.begin(), overflowed_.end(), ticket) == overflowed_.end()) {
    overflowed_.push_back(ticket);
  }
}

absl::Status PumpThread::Offer(const OfferSpec& spec) {
  absl::Status entered = ledger_.Enter(Side::kOffer, spec.ticket);
  if (!entered.ok()) return entered;
  if (Post(spec)) return absl::OkStatus();
  ledger_.Forget(Side::kOffer, spec.ticket);
  if (mailbox_.closed()) return ShuttingDown();
  return absl::ResourceExhaustedError("the pump's mailbox is full");
}

void PumpThread::Extend(Ticket ticket, std::vector<std::span<const std::byte>> blocks) {
  PostOrFail(ticket, ToOffer{ticket, Extended{std::move(blocks)}});
}

void PumpThread::Commit(Ticket ticket, const CommitRecord& record) {
  PostOrFail(ticket, ToOffer{ticket, Committed{record}});
}

void PumpThread::Withdraw(Ticket ticket, const std::string& reason) {
  PostOrFail(ticket, ToOffer{ticket, Withdrawn{absl::CancelledError(reason)}});
}

absl::Status PumpThread::Fetch(FetchSpec spec) {
  for (const auto& block : spec.destinations) {
    if (block.size() == options_.block_bytes) continue;
    return absl::InvalidArgumentError(absl::StrCat("a destination of ", block.size(),
                                                   " bytes, blocks have ", options_.block_bytes));
  }
  const Ticket ticket = spec.ticket;
  absl::Status entered = ledger_.Enter(Side::kFetch, ticket);
  if (!entered.ok()) return entered;
  if (Post(std::move(spec))) return absl::OkStatus();
  ledger_.Forget(Side::kFetch, ticket);
  if (mailbox_.closed()) return ShuttingDown();
  return absl::ResourceExhaustedError("the pump's mailbox is full");
}

void PumpThread::CancelFetch(Ticket ticket, const std::string& reason) {
  PostOrFail(ticket, ToFetch{ticket, CancelAsked{absl::CancelledError(reason)}});
}

void PumpThread::Loop() {
  while (!stopping_) {
    const absl::Time now = clock_->Now();
    const absl::Time due =
        std::min({offers_.next_deadline(), fetches_.next_deadline(), links_.next_deadline()});
    Turn(std::max(due - now, absl::ZeroDuration()));
  }
  ShutDown();
}

// Calls, then what the transport has, then time: so a pump that was stopped for long hears what its
// peers have sent meanwhile before it counts their silence.
void PumpThread::Turn(absl::Duration longest) {
  transport_->Poll(this, longest);
  TakeCalls();
  EndOverflowed();
  const absl::Time now = clock_->Now();
  offers_.Tick(now);
  fetches_.Tick(now);
  links_.Tick(now);
}

void PumpThread::TakeCalls() {
  wake_sent_ = false;  // before the taking: what comes after it wakes the next Poll
  for (Call& call : mailbox_.TakeAll(absl::ZeroDuration())) {
    const absl::Time now = clock_->Now();
    if (auto* offer = std::get_if<OfferSpec>(&call)) {
      offers_.Offer(*offer, now);
    } else if (auto* fetch = std::get_if<FetchSpec>(&call)) {
      fetches_.Fetch(std::move(*fetch), now);
    } else if (auto* to_offer = std::get_if<ToOffer>(&call)) {
      offers_.Apply(to_offer->ticket, to_offer->event, now);
    } else if (auto* to_fetch = std::get_if<ToFetch>(&call)) {
      fetches_.Apply(to_fetch->ticket, to_fetch->event, now);
    }
  }
}

void PumpThread::EndOverflowed() {
  std::vector<Ticket> tickets;
  {
    MutexLock lock(&overflow_mutex_);
    tickets.swap(overflowed_);
  }
  const absl::Status full = absl::ResourceExhaustedError("the pump's mailbox is full");
  for (const Ticket& ticket : tickets) {
    offers_.Apply(ticket, Withdrawn{full}, clock_->Now());
    fetches_.Apply(ticket, CancelAsked{full}, clock_->Now());
  }
}

void PumpThread::ShutDown() {
  TakeCalls();
  offers_.EndAll(ShuttingDown(), clock_->Now());
  fetches_.EndAll(ShuttingDown(), clock_->Now());
  // A peer may connect meanwhile, so all are closed each time; one that does so again and again
  // doesn't keep us: what is left then goes with the transport.
  for (int turn = 0; turn < kLastTurns && !links_.empty(); ++turn) {
    links_.CloseAll(ShuttingDown());
    transport_->Poll(this, absl::Milliseconds(100));
  }
}

void PumpThread::OnAccepted(LinkId link, const std::string& peer) {
  links_.OnAccepted(link, peer, clock_->Now());
}

void PumpThread::OnConnected(LinkId link) { links_.OnConnected(link); }

Destination PumpThread::OnMessage(LinkId link, std::string_view bytes, uint64_t payload_bytes) {
  const auto control = ParseControl(bytes);
  if (!control.ok()) {
    links_.Close(link, control.status());
    return {};
  }
  const absl::Time now = clock_->Now();
  if (control->has_hello()) {
    if (links_.OnHello(link, control->hello(), now)) fetches_.OnLinkReady(link, now);
    return {};
  }
  if (!links_.ready(link)) {
    links_.Close(link, absl::InvalidArgumentError("the peer has not said hello"));
    return {};
  }
  links_.OnHeard(link, now);
  if (control->has_cancel()) {
    OnCancel(link, control->cancel());
  } else if (links_.dialled(link)) {
    return FromOfferer(link, *control, payload_bytes);
  } else {
    FromFetcher(link, *control);
  }
  return {};
}

void PumpThread::FromFetcher(LinkId link, const v1::Control& control) {
  const absl::Time now = clock_->Now();
  switch (control.kind_case()) {
    case v1::Control::kFetch:
      return offers_.OnFetch(link, control.fetch(), now);
    case v1::Control::kResend:
      offers_.OnPeerEvent(link, control.resend().fetch(), ResendAsked{control.resend().sequence()},
                          now);
      return;
    case v1::Control::kAcknowledge:
      offers_.OnPeerEvent(link, control.acknowledge().fetch(), Acknowledged{}, now);
      return;
    case v1::Control::kHeartbeat:
    case v1::Control::KIND_NOT_SET:  // of a later minor version
      return;
    default:
      links_.Close(link, absl::InvalidArgumentError("the peer offers over its own link"));
  }
}

Destination PumpThread::FromOfferer(LinkId link, const v1::Control& control,
                                    uint64_t payload_bytes) {
  const absl::Time now = clock_->Now();
  switch (control.kind_case()) {
    case v1::Control::kPiece:
      return fetches_.OnPiece(link, control.piece(), payload_bytes, now);
    case v1::Control::kCommit:
      fetches_.OnPeerEvent(link, control.commit().fetch(), CommitArrived{control.commit()}, now);
      return {};
    case v1::Control::kHeartbeat:
    case v1::Control::KIND_NOT_SET:  // of a later minor version
      return {};
    default:
      links_.Close(link, absl::InvalidArgumentError("the peer fetches over our link"));
      return {};
  }
}

// Acknowledged whether or not there is something left to cancel: it may have ended by itself.
void PumpThread::OnCancel(LinkId link, const v1::CancelTransfer& cancel) {
  if (cancel.acknowledges()) return;
  const PeerCancelled event{absl::CEscape(cancel.reason().substr(0, kReasonBytes)),
                            cancel.refuses()};
  if (links_.dialled(link)) {
    fetches_.OnPeerEvent(link, cancel.fetch(), event, clock_->Now());
  } else {
    offers_.OnPeerEvent(link, cancel.fetch(), event, clock_->Now());
  }
  links_.Send(link, CancelMessage(cancel.fetch(), "", true).control);
}

void PumpThread::OnProgress(LinkId link) { links_.OnHeard(link, clock_->Now()); }

void PumpThread::OnReceived(LinkId, OpId op, absl::Status status) {
  fetches_.OnReceived(op, status, clock_->Now());
}

void PumpThread::OnSent(LinkId link, OpId op, absl::Status status) {
  links_.OnSent(link, op);
  offers_.OnSent(link, op, status, clock_->Now());
}

void PumpThread::OnClosed(LinkId link, absl::Status reason) {
  links_.OnClosed(link, reason);
  offers_.OnLinkClosed(link, reason, clock_->Now());
  fetches_.OnLinkClosed(link, reason, clock_->Now());
}

}  // namespace pdserve::kvtransfer
