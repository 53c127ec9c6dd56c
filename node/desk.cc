#include "node/desk.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace pdserve::node {
namespace {

using engine::AttemptKey;

// An idle node still sets its gauges, and looks over its pool, this often.
constexpr absl::Duration kSlowInterval = absl::Seconds(1);

std::string_view OutcomeLabel(const absl::Status& status) {
  if (status.ok()) return "ok";
  if (absl::IsCancelled(status)) return "cancelled";
  if (absl::IsDeadlineExceeded(status)) return "expired";
  return "failed";
}

}  // namespace

void Desk::Opened(SessionId session) {
  if (draining_) parts_.port->Send(session, DrainingMessage());
  parts_.port->Send(session, LoadMessage(Figures()));
}

bool Desk::Admits(const AttemptKey& key, bool has_role) {
  std::string reason;
  if (!has_role) {
    reason = "this node does not have the role";
  } else if (live_.contains(key)) {
    reason = absl::StrCat("attempt ", key.attempt.value, " is in progress here");
  } else if (draining_) {
    reason = "the node is draining";
  } else if (NumHeld() >= static_cast<size_t>(options_.max_attempts)) {
    reason = "the node holds as many attempts as it may";
  } else {
    return true;
  }
  outbox_.Refused(key, {reason, true, engine::kRetryAfter});  // another node, or id, or time may do
  return false;
}

void Desk::Begin(const prefill::Request& request) {
  if (!Admits(request.generation.key, parts_.prefill != nullptr)) return;
  parts_.prefill->Begin(request, parts_.clock->Now());
}

void Desk::Begin(const decode::Request& request) {
  if (!Admits(request.generation.key, parts_.decode != nullptr)) return;
  parts_.decode->Begin(request, parts_.clock->Now());
}

void Desk::Cancel(const AttemptKey& key) {
  if (parts_.prefill != nullptr && parts_.prefill->Cancel(key)) return;
  if (parts_.decode != nullptr && parts_.decode->Cancel(key)) return;
  engine::Ending ending;
  ending.outcome = engine::Outcome::kCancelled;
  outbox_.Finished(key, ending);
}

void Desk::Lost(SessionId session) {
  std::vector<AttemptKey> lost;
  for (auto it = live_.lower_bound({session, AttemptId{}});
       it != live_.end() && it->session == session; ++it) {
    lost.push_back(*it);
  }
  for (const AttemptKey& key : lost) Cancel(key);
}

void Desk::OnOfferFetched(Ticket ticket) { parts_.prefill->OnOfferFetched(ticket); }

void Desk::OnOfferEnded(Ticket ticket, const absl::Status& status,
                        const kvtransfer::TransferStats& stats) {
  parts_.metrics->Add(Series::kOffersEnded, {options_.node_id, OutcomeLabel(status)}, 1);
  transfer_bytes_ += stats.bytes;
  parts_.prefill->OnOfferEnded(ticket, status, stats, parts_.clock->Now());
}

void Desk::OnFetchEnded(Ticket ticket, const absl::StatusOr<kvtransfer::CommitRecord>& commit,
                        const kvtransfer::TransferStats& stats) {
  parts_.metrics->Add(Series::kFetchesEnded, {options_.node_id, OutcomeLabel(commit.status())}, 1);
  transfer_bytes_ += stats.bytes;
  if (commit.ok()) {
    parts_.metrics->Observe(Series::kTransferTime, {options_.node_id},
                            absl::ToDoubleSeconds(stats.first_to_last_byte));
    parts_.metrics->Observe(Series::kTransferExposed, {options_.node_id},
                            absl::ToDoubleSeconds(stats.exposed));
  }
  parts_.decode->OnFetchEnded(ticket, commit, stats, parts_.clock->Now());
}

void Desk::Drain() {
  if (draining_) return;
  draining_ = true;
  parts_.port->Broadcast(DrainingMessage());
}

void Desk::CancelAll() {
  const std::vector<AttemptKey> all(live_.begin(), live_.end());
  for (const AttemptKey& key : all) Cancel(key);
}

bool Desk::WaitUntilDrained(absl::Duration timeout) {
  const absl::Time end = parts_.clock->Now() + timeout;
  MutexLock lock(&mutex_);
  while (!drained_) {
    const absl::Duration left = end - parts_.clock->Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitFor(mutex_, left);
  }
  return true;
}

void Desk::Accepted(const AttemptKey& key) {
  live_.insert(key);
  pool_unchecked_ = true;
  outbox_.Accepted(key);
}

void Desk::Refused(const AttemptKey& key, const engine::Refusal& refusal) {
  outbox_.Refused(key, refusal);
}

void Desk::Token(const AttemptKey& key, uint32_t index, TokenId token) {
  outbox_.Token(key, index, token);
}

void Desk::Finished(const AttemptKey& key, const engine::Ending& ending) {
  live_.erase(key);
  outbox_.Finished(key, ending);
}

size_t Desk::NumHeld() const {
  return (parts_.prefill != nullptr ? parts_.prefill->load() : 0) +
         (parts_.decode != nullptr ? parts_.decode->load() : 0);
}

LoadFigures Desk::Figures() const {
  LoadFigures figures;
  const engine::PoolCounts counts = parts_.pool->counts();
  figures.capacity_blocks = static_cast<uint32_t>(counts.capacity);
  figures.free_blocks = static_cast<uint32_t>(counts.free);
  figures.cached_blocks = static_cast<uint32_t>(counts.cached);
  figures.sequence_blocks = static_cast<uint32_t>(counts.sequence);
  figures.transfer_blocks = static_cast<uint32_t>(counts.transfer);
  if (parts_.prefill != nullptr) {
    const prefill::RoleStats stats = parts_.prefill->stats();
    figures.waiting += stats.waiting;
    figures.prefilling += stats.prefilling;
    figures.transferring += stats.transferring;
    figures.queued_tokens += stats.queued_tokens;
    figures.prefilled_tokens += stats.prefilled_tokens;
    figures.generated_tokens += stats.generated_tokens;
  }
  if (parts_.decode != nullptr) {
    const decode::RoleStats stats = parts_.decode->stats();
    figures.waiting += stats.waiting;
    figures.transferring += stats.transferring;
    figures.decoding += stats.decoding;
    figures.preemptions += stats.preemptions;
    figures.generated_tokens += stats.generated_tokens;
  }
  figures.transfer_bytes = transfer_bytes_;
  return figures;
}

void Desk::Publish(absl::Time now) {
  const LoadFigures figures = Figures();
  unpublished_ = figures != published_;
  if (unpublished_ && now >= next_publish_) {
    published_ = figures;
    unpublished_ = false;
    next_publish_ = now + options_.load_interval;
    parts_.port->Broadcast(LoadMessage(figures));
    SetGauges(figures, now);
  } else if (now >= next_gauges_) {
    SetGauges(figures, now);
  }
}

void Desk::SetGauges(const LoadFigures& figures, absl::Time now) {
  next_gauges_ = now + kSlowInterval;
  const std::string_view node = options_.node_id;
  Metrics& metrics = *parts_.metrics;
  metrics.Set(Series::kBlocksCapacity, {node}, figures.capacity_blocks);
  metrics.Set(Series::kBlocks, {node, "free"}, figures.free_blocks);
  metrics.Set(Series::kBlocks, {node, "cached"}, figures.cached_blocks);
  metrics.Set(Series::kBlocks, {node, "sequence"}, figures.sequence_blocks);
  metrics.Set(Series::kBlocks, {node, "transfer"}, figures.transfer_blocks);
  metrics.Set(Series::kNodeAttempts, {node, "waiting"}, figures.waiting);
  metrics.Set(Series::kNodeAttempts, {node, "prefilling"}, figures.prefilling);
  metrics.Set(Series::kNodeAttempts, {node, "transferring"}, figures.transferring);
  metrics.Set(Series::kNodeAttempts, {node, "decoding"}, figures.decoding);
  metrics.Set(Series::kQueuedTokens, {node}, static_cast<double>(figures.queued_tokens));
  metrics.Set(Series::kPreemptions, {node}, static_cast<double>(figures.preemptions));
  metrics.Set(Series::kPrefilledTokens, {node}, static_cast<double>(figures.prefilled_tokens));
  metrics.Set(Series::kGeneratedTokens, {node}, static_cast<double>(figures.generated_tokens));
  metrics.Set(Series::kTransferBytes, {node}, static_cast<double>(figures.transfer_bytes));
  metrics.Set(Series::kLastStep, {node}, absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  if (parts_.prefill != nullptr) {
    CountPrefixes("prefill", parts_.prefill->stats().prefix, prefill_counted_);
  }
  if (parts_.decode != nullptr) {
    CountPrefixes("decode", parts_.decode->stats().prefix, decode_counted_);
  }
}

void Desk::CountPrefixes(std::string_view role, const engine::PrefixStats& now,
                         engine::PrefixStats& counted) {
  const std::string_view node = options_.node_id;
  parts_.metrics->Add(Series::kPrefixQueries, {node, role},
                      static_cast<double>(now.query_tokens - counted.query_tokens));
  parts_.metrics->Add(Series::kPrefixHits, {node, role},
                      static_cast<double>(now.hit_tokens - counted.hit_tokens));
  counted = now;
}

void Desk::CheckPoolWhenIdle(absl::Time now) {
  if (!pool_unchecked_ || now < next_pool_check_) return;
  pool_unchecked_ = false;
  next_pool_check_ = now + kSlowInterval;
  const engine::PoolCounts counts = parts_.pool->counts();
  if (parts_.pool->CheckIntegrity() && counts.available() == counts.capacity) return;
  parts_.metrics->Add(Series::kPoolFaults, {options_.node_id}, 1);
  spdlog::error(
      "node {}: idle, but of {} cache blocks {} are free, {} cached, {} sequence, {} transfer",
      options_.node_id, counts.capacity, counts.free, counts.cached, counts.sequence,
      counts.transfer);
}

void Desk::AddWork(absl::Time now, engine::Plan&) {
  outbox_.Flush(*parts_.port);
  Publish(now);
  next_silence_ = parts_.port->DropSilent(now);
  if (!live_.empty() || NumHeld() > 0) return;
  CheckPoolWhenIdle(now);
  if (!draining_) return;
  MutexLock lock(&mutex_);
  drained_ = true;
  changed_.NotifyAll();
}

void Desk::OnStep(absl::Time, std::span<const engine::StepOutput>) { outbox_.Flush(*parts_.port); }

absl::Time Desk::NextDeadline() const {
  absl::Time next = std::min(next_gauges_, next_silence_);
  if (unpublished_) next = std::min(next, next_publish_);
  if (pool_unchecked_ && NumHeld() == 0) next = std::min(next, next_pool_check_);
  return next;
}

}  // namespace pdserve::node
