#include "tests/testing/fake_pump.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/check.h"

namespace pdserve::testing {

using kvtransfer::TransferStats;

void FakeFabric::Move(Offer& offer, Fetch& fetch) {
  if (fetch.first_block + fetch.destinations.size() != offer.num_blocks) {
    fetch.end = absl::FailedPreconditionError("the number of blocks differs");
  }
  while (!offer.end && !fetch.end && fetch.copied < offer.blocks.size()) {
    const auto from = offer.blocks[fetch.copied];
    const auto to = fetch.destinations[fetch.copied++ - fetch.first_block];
    ++num_copied_blocks_;
    std::copy(from.begin(), from.end(), to.begin());
    if (corrupt_) to[0] ^= std::byte{1};
  }
  if (offer.end || fetch.end) {  // the end of one is the end of the other
    if (!offer.end) offer.end = absl::AbortedError("the decode node has ended the hand-over");
    if (!fetch.end) fetch.end = absl::AbortedError("the prefill node has ended the hand-over");
  } else if (offer.commit && fetch.copied == offer.num_blocks) {
    fetch.commit = offer.commit;
    offer.end = absl::OkStatus();
    fetch.end = absl::OkStatus();
  }
}

void FakeFabric::Run() {
  std::vector<std::function<void()>> events;
  {
    MutexLock lock(&mutex_);
    for (auto& [ticket, fetch] : fetches_) {
      const auto offer = offers_.find(ticket);
      if (offer != offers_.end()) {
        if (!std::exchange(offer->second.is_fetched, true)) {
          events.emplace_back(
              [to = offer->second.pump->events_, ticket = ticket] { to->OnOfferFetched(ticket); });
        }
        Move(offer->second, fetch);
      } else if (used_.contains(ticket) && !fetch.end) {
        fetch.end = absl::AbortedError("the ticket was used before");
      }
    }
    for (auto it = fetches_.begin(); it != fetches_.end();) {
      const auto current = it++;
      const auto& [ticket, fetch] = *current;
      if (!fetch.end) continue;
      absl::StatusOr<kvtransfer::CommitRecord> commit = absl::UnknownError("");
      if (fetch.commit) {
        commit = *fetch.commit;
      } else {
        commit = *fetch.end;
      }
      events.emplace_back([to = fetch.pump->events_, ticket = ticket, commit] {
        to->OnFetchEnded(ticket, commit, TransferStats{.bytes = 1});
      });
      fetches_.erase(current);
    }
    for (auto it = offers_.begin(); it != offers_.end();) {
      const auto current = it++;
      const auto& [ticket, offer] = *current;
      if (!offer.end) continue;
      events.emplace_back([to = offer.pump->events_, ticket = ticket, end = *offer.end] {
        to->OnOfferEnded(ticket, end, TransferStats{.bytes = 1});
      });
      used_.insert(ticket);
      offers_.erase(current);
    }
  }
  for (const auto& event : events) event();
}

void FakePump::Break(Ticket ticket) {
  MutexLock lock(&fabric_->mutex_);
  const auto offer = fabric_->offers_.find(ticket);
  if (offer != fabric_->offers_.end() && offer->second.pump == this) {
    offer->second.end = absl::UnavailableError("the peer is lost");
  }
  const auto fetch = fabric_->fetches_.find(ticket);
  if (fetch != fabric_->fetches_.end() && fetch->second.pump == this) {
    fetch->second.end = absl::UnavailableError("the peer is lost");
  }
}

absl::Status FakePump::Offer(const kvtransfer::OfferSpec& spec) {
  if (!refusal_.ok()) return std::exchange(refusal_, absl::OkStatus());
  MutexLock lock(&fabric_->mutex_);
  PD_CHECK(!fabric_->offers_.contains(spec.ticket));
  fabric_->offers_[spec.ticket] = {this, spec.num_blocks, {}, {}, {}, false};
  return absl::OkStatus();
}

void FakePump::Extend(Ticket ticket, std::vector<std::span<const std::byte>> blocks) {
  MutexLock lock(&fabric_->mutex_);
  const auto found = fabric_->offers_.find(ticket);
  if (found == fabric_->offers_.end()) return;
  FakeFabric::Offer& offer = found->second;
  offer.blocks.insert(offer.blocks.end(), blocks.begin(), blocks.end());
  PD_CHECK(offer.blocks.size() <= offer.num_blocks);
}

void FakePump::Commit(Ticket ticket, const kvtransfer::CommitRecord& record) {
  MutexLock lock(&fabric_->mutex_);
  const auto found = fabric_->offers_.find(ticket);
  if (found == fabric_->offers_.end()) return;
  PD_CHECK(found->second.blocks.size() == found->second.num_blocks);
  found->second.commit = record;
}

void FakePump::Withdraw(Ticket ticket, const std::string& reason) {
  MutexLock lock(&fabric_->mutex_);
  const auto found = fabric_->offers_.find(ticket);
  if (found != fabric_->offers_.end() && !found->second.end) {
    found->second.end = absl::CancelledError(reason);
  }
}

absl::Status FakePump::Fetch(kvtransfer::FetchSpec spec) {
  if (!refusal_.ok()) return std::exchange(refusal_, absl::OkStatus());
  MutexLock lock(&fabric_->mutex_);
  PD_CHECK(!fabric_->fetches_.contains(spec.ticket));
  fabric_->fetches_[spec.ticket] = {
      this, std::move(spec.destinations), spec.first_block, spec.first_block, {}, {}};
  return absl::OkStatus();
}

void FakePump::CancelFetch(Ticket ticket, const std::string& reason) {
  MutexLock lock(&fabric_->mutex_);
  const auto found = fabric_->fetches_.find(ticket);
  if (found != fabric_->fetches_.end() && !found->second.end) {
    found->second.end = absl::CancelledError(reason);
  }
}

}  // namespace pdserve::testing
