#include "decode/role.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/cache_layout.h"

namespace pdserve::decode {
namespace {

using engine::AttemptKey;
using engine::Outcome;
using engine::Owner;

// The peer is told the deadline in whole milliseconds from receipt: it may be over there first.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(20);

// Waiting attempts, and as many that lost their blocks, that are looked up in the prefix cache on
// one turn; those behind count as new.
constexpr size_t kLookUps = 32;

}  // namespace

Role::Role(RoleOptions options, engine::BlockPool* pool, kvtransfer::Pump* pump,
           engine::AttemptSink* sink)
    : options_(std::move(options)), pool_(pool), sink_(sink), strip_(pool, pump) {}

void Role::Begin(const Request& request, absl::Time now) {
  const absl::Status status = Admit(request, now);
  if (!status.ok()) sink_->Refused(request.generation.key, engine::RefusalOf(status));
}

absl::Status Role::Admit(const Request& request, absl::Time now) {
  auto attempt = std::make_unique<Attempt>();
  ASSIGN_OR_RETURN(attempt->sequence,
                   engine::MakeSequence(request.generation, options_.limits, now));
  ASSIGN_OR_RETURN(const Ticket ticket, engine::MakeTicket(request.ticket));
  if (request.peer_address.empty()) {
    return absl::InvalidArgumentError("the prefill node's transfer address is empty");
  }
  const engine::Sequence& sequence = attempt->sequence;
  const int64_t most = engine::MostCachedTokens(sequence, options_.limits.max_context_tokens);
  if (most > options_.limits.pool_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("prompt and max_tokens need the cache of ", most,
                                                   " tokens, the pool holds ",
                                                   options_.limits.pool_tokens));
  }
  if (attempts_.Find(ticket) != nullptr || strip_.contains(ticket)) {
    return absl::AlreadyExistsError("the ticket is in use");
  }
  attempt->num_blocks =
      engine::BlocksFor(static_cast<int64_t>(sequence.tokens.size()), options_.block_tokens);
  attempt->order = next_order_++;
  attempt->ticket = ticket;
  attempt->source = {ticket, request.peer_address, request.peer_incarnation, sequence.deadline};
  Attempt* added = attempts_.Add(std::move(attempt));
  waiting_.push_back(added);
  sink_->Accepted(request.generation.key);
  EndIfFinished(*added, now);  // a retry after the last token: the client lacks only the end
  return absl::OkStatus();
}

void Role::Adopt(engine::Sequence sequence, const engine::PhaseTimes& times, absl::Time now) {
  auto attempt = std::make_unique<Attempt>();
  attempt->sequence = std::move(sequence);
  attempt->order = next_order_++;
  attempt->times = times;
  attempt->landed = now;
  Run(*attempts_.Add(std::move(attempt)));
}

bool Role::Cancel(const AttemptKey& key) {
  Attempt* attempt = attempts_.Find(key);
  if (attempt == nullptr) return false;
  End(*attempt, Outcome::kCancelled, "");
  return true;
}

absl::Status Role::CheckCommit(const Attempt& attempt,
                               const kvtransfer::CommitRecord& commit) const {
  if (commit.num_tokens != attempt.sequence.tokens.size()) {
    return absl::FailedPreconditionError(absl::StrCat("the commit is about ", commit.num_tokens,
                                                      " tokens, the attempt has ",
                                                      attempt.sequence.tokens.size()));
  }
  if (commit.first_token.value >= static_cast<uint32_t>(options_.limits.vocab_size)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the commit's first token ", commit.first_token.value, " is not in the vocabulary"));
  }
  return absl::OkStatus();
}

void Role::OnFetchEnded(Ticket ticket, const absl::StatusOr<kvtransfer::CommitRecord>& commit,
                        const kvtransfer::TransferStats& stats, absl::Time now) {
  strip_.Ended(ticket);  // the fence has been passed
  stalled_since_.reset();
  Attempt* attempt = attempts_.Find(ticket);
  if (attempt == nullptr || attempt->state != Attempt::State::kLanding) return;
  attempt->times.transfer_bytes = stats.bytes;
  const absl::Status status = commit.ok() ? CheckCommit(*attempt, *commit) : commit.status();
  if (!status.ok()) {
    // Where the prefill node gave the hand-over up, it tells the router itself how the attempt
    // ended: often well, with its first token. Not at the deadline, which both count.
    const bool is_given_up =
        absl::IsAborted(commit.status()) && now + kDeadlineSlack < attempt->sequence.deadline;
    End(*attempt, is_given_up ? Outcome::kCancelled : Outcome::kFailed,
        absl::StrCat("hand-over: ", status.message()));
    return;
  }
  engine::Sequence& sequence = attempt->sequence;
  sequence.computed = static_cast<int32_t>(commit->num_tokens);
  sequence.cached_tokens =
      static_cast<int32_t>(std::min(commit->cached_tokens, commit->num_tokens));
  pool_->Keep(sequence.prefix(sequence.computed), sequence.blocks);
  sequence.tokens.push_back(commit->first_token);
  // Both nodes are told at once, so that what is not the prefill node's time is the hand-over's.
  attempt->landed = now;
  attempt->times.queue = commit->queue_time;
  attempt->times.prefill = commit->prefill_time;
  attempt->times.transfer = std::max(
      now - sequence.arrived - commit->queue_time - commit->prefill_time, absl::ZeroDuration());
  sink_->Token(sequence.key(), static_cast<uint32_t>(sequence.output_tokens() - 1),
               commit->first_token);
  if (!EndIfFinished(*attempt, now)) Run(*attempt);
}

void Role::Run(Attempt& attempt) {
  attempt.state = Attempt::State::kRunning;
  std::erase(landing_, &attempt);
  const auto place =
      std::upper_bound(running_.begin(), running_.end(), &attempt,
                       [](const Attempt* a, const Attempt* b) { return a->order < b->order; });
  running_.insert(place, &attempt);
}

std::vector<RunningView> Role::RunningViews(int32_t free_blocks) const {
  std::vector<RunningView> views;
  views.reserve(running_.size());
  size_t look_ups = kLookUps;
  for (const Attempt* attempt : running_) {
    const engine::Sequence& sequence = attempt->sequence;
    views.push_back({static_cast<int32_t>(sequence.tokens.size()), sequence.computed,
                     static_cast<int32_t>(sequence.blocks.size()), attempt->last_step});
    if (!sequence.blocks.empty() || look_ups == 0) continue;
    --look_ups;
    const engine::PrefixMatch match = pool_->FindPrefix(sequence.reusable());
    views.back().computed = match.blocks * options_.block_tokens;
    views.back().shared_blocks = match.held();
  }
  // No more than one block each: with so many, nobody loses its own.
  if (static_cast<size_t>(free_blocks) < running_.size()) CountShared(views);
  return views;
}

void Role::CountShared(std::vector<RunningView>& views) const {
  absl::flat_hash_map<BlockId, uint32_t> holders;  // of those seen so far
  for (size_t i = running_.size(); i-- > 0;) {
    for (BlockId block : running_[i]->sequence.blocks) {
      if (!pool_->IsHeldOnlyBy(++holders[block], block)) ++views[i].shared_blocks;
    }
  }
}

void Role::LookUpWaiting() {
  for (size_t i = 0; i < waiting_.size(); ++i) {
    Attempt& attempt = *waiting_[i];
    const engine::Sequence& sequence = attempt.sequence;
    const auto tokens = static_cast<int32_t>(sequence.tokens.size());
    attempt.needed_blocks = attempt.num_blocks;
    if (i < kLookUps) attempt.needed_blocks -= pool_->FindPrefix(sequence.prefix(tokens)).held();
  }
}

DecodePlan Role::MakePlan(const engine::Plan& plan) {
  const int32_t free_blocks = std::max(pool_->counts().available() - plan.reserved_blocks, 0);
  const std::vector<RunningView> running = RunningViews(free_blocks);
  LookUpWaiting();
  std::vector<int32_t> waiting;
  waiting.reserve(waiting_.size());
  for (const Attempt* attempt : waiting_) waiting.push_back(attempt->needed_blocks);
  int32_t landing_blocks = 0;
  for (const Attempt* attempt : landing_) landing_blocks += attempt->needed_blocks;
  return PlanDecode({.running = running,
                     .waiting = waiting,
                     .landing = static_cast<int32_t>(landing_.size()),
                     .landing_blocks = landing_blocks,
                     .max_landing_blocks = options_.max_landing_blocks,
                     .free_blocks = free_blocks,
                     .block_tokens = options_.block_tokens,
                     .max_batch = options_.max_batch,
                     .budget_tokens = plan.budget_tokens});
}

void Role::AddWork(absl::Time now, engine::Plan& plan) {
  while (Attempt* expired = attempts_.Expired(now)) {
    End(*expired, Outcome::kFailed, "the attempt's deadline is over");
  }
  ++step_;
  const DecodePlan decode = MakePlan(plan);
  for (size_t i : decode.preempted) Preempt(*running_[i]);
  for (const Row& row : decode.rows) AddRow(*running_[row.running], row, now, plan);
  Land(decode.num_landings);
  plan.reserved_blocks += decode.reserved_blocks;
  BreakStall(!decode.rows.empty(), now);
}

absl::Time Role::NextDeadline() const {
  const absl::Time next = attempts_.NextDeadline();
  return stalled_since_ ? std::min(next, *stalled_since_ + options_.stall_timeout) : next;
}

void Role::BreakStall(bool has_rows, absl::Time now) {
  if (has_rows || landing_.empty() || (waiting_.empty() && running_.empty())) {
    stalled_since_.reset();
    return;
  }
  if (!stalled_since_) stalled_since_ = now;
  if (now < *stalled_since_ + options_.stall_timeout) return;
  stalled_since_.reset();
  const int32_t wanted = waiting_.empty() ? 1 : waiting_.front()->needed_blocks;
  for (int32_t given_up = 0; given_up < wanted && !landing_.empty();) {
    given_up += landing_.back()->needed_blocks;
    End(*landing_.back(), Outcome::kFailed,
        "hand-over: nothing has come while others wait for its blocks");
  }
}

void Role::Preempt(Attempt& attempt) {
  engine::Sequence& sequence = attempt.sequence;
  pool_->Release(sequence.blocks, Owner::kSequence);
  sequence.blocks.clear();
  sequence.computed = 0;
  ++preemptions_;
}

void Role::AddRow(Attempt& attempt, const Row& row, absl::Time now, engine::Plan& plan) {
  engine::Sequence& sequence = attempt.sequence;
  int32_t new_blocks = row.new_blocks;
  if (sequence.blocks.empty()) {  // returns
    const int32_t found = pool_->TakePrefix(sequence.reusable(), sequence.blocks);
    sequence.computed = found * options_.block_tokens;
    new_blocks =
        engine::BlocksFor(static_cast<int64_t>(sequence.tokens.size()), options_.block_tokens) -
        found;
  }
  PD_CHECK(pool_->Allocate(new_blocks, sequence.blocks));
  if (!attempt.decoding_since) {
    attempt.decoding_since = now;
    attempt.times.decode_queue = now - attempt.landed;
  }
  attempt.last_step = step_;
  // More may have been found than was looked up.
  const int32_t num_tokens = std::min(row.num_tokens, sequence.uncomputed());
  plan.entries.push_back({this, &sequence, num_tokens});
  plan.budget_tokens -= num_tokens;
}

void Role::Land(size_t count) {
  const std::vector<Attempt*> landing(waiting_.begin(), waiting_.begin() + count);
  waiting_.erase(waiting_.begin(), waiting_.begin() + count);
  // First all that is found: else one's new blocks could be those that the next has found.
  for (Attempt* attempt : landing) {
    engine::Sequence& sequence = attempt->sequence;
    const auto tokens = static_cast<int32_t>(sequence.tokens.size());
    const int32_t found = pool_->TakePrefix(sequence.prefix(tokens), sequence.blocks);
    if (pool_->has_prefix_cache()) {
      prefix_stats_.Count(sequence.tokens.size(), found * options_.block_tokens);
    }
  }
  for (Attempt* attempt : landing) {
    std::vector<BlockId>& blocks = attempt->sequence.blocks;
    const size_t found = blocks.size();
    PD_CHECK(pool_->Allocate(attempt->num_blocks - static_cast<int32_t>(found), blocks));
    const absl::Status status = strip_.Fetch(attempt->source, blocks, found);
    if (status.ok()) {
      attempt->state = Attempt::State::kLanding;
      landing_.push_back(attempt);
      stalled_since_.reset();
    } else {
      End(*attempt, Outcome::kFailed, absl::StrCat("hand-over: ", status.message()));
    }
  }
}

void Role::OnStep(absl::Time now, std::span<const engine::StepOutput> outputs) {
  for (const engine::StepOutput& output : outputs) {
    if (output.owner != this) continue;
    Attempt* attempt = attempts_.Find(output.sequence->key());
    PD_CHECK(attempt != nullptr);
    engine::Sequence& sequence = attempt->sequence;
    pool_->Keep(sequence.prefix(sequence.computed), sequence.blocks);
    if (!output.sampled) continue;
    ++generated_tokens_;
    sink_->Token(sequence.key(), static_cast<uint32_t>(sequence.output_tokens() - 1), output.token);
    EndIfFinished(*attempt, now);
  }
}

bool Role::EndIfFinished(Attempt& attempt, absl::Time now) {
  const engine::Finish finish =
      CheckFinish(attempt.sequence, {options_.end_tokens, options_.limits.max_context_tokens});
  if (finish == engine::Finish::kNone) return false;
  if (attempt.decoding_since) attempt.times.decode = now - *attempt.decoding_since;
  End(attempt, engine::OutcomeOf(finish), "");
  return true;
}

void Role::End(Attempt& attempt, Outcome outcome, const std::string& error) {
  if (attempt.state == Attempt::State::kLanding) {
    strip_.Cancel(attempt.source.ticket, error.empty() ? "the attempt has ended" : error);
  }
  pool_->Release(attempt.sequence.blocks, Owner::kSequence);
  sink_->Finished(attempt.sequence.key(),
                  {outcome, error, static_cast<uint32_t>(attempt.sequence.output_tokens()),
                   attempt.times, attempt.sequence.cached_prompt_tokens()});
  std::erase(waiting_, &attempt);
  std::erase(landing_, &attempt);
  std::erase(running_, &attempt);
  attempts_.Erase(&attempt);
}

RoleStats Role::stats() const {
  RoleStats stats;
  stats.waiting = static_cast<uint32_t>(waiting_.size());
  stats.decoding = static_cast<uint32_t>(running_.size());
  stats.transferring = static_cast<uint32_t>(attempts_.size() - waiting_.size() - running_.size() +
                                             strip_.num_cancelled());
  stats.preemptions = preemptions_;
  stats.generated_tokens = generated_tokens_;
  stats.prefix = prefix_stats_;
  return stats;
}

}  // namespace pdserve::decode
