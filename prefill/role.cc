#include "prefill/role.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "engine/cache_layout.h"

namespace pdserve::prefill {
namespace {

using engine::AttemptKey;
using engine::Outcome;
using engine::Owner;

// Waiting prompts that are looked up in the prefix cache on one turn; those behind count as new.
constexpr int kLookUps = 32;

}  // namespace

Role::Role(RoleOptions options, engine::BlockPool* pool, kvtransfer::Pump* pump,
           engine::AttemptSink* sink)
    : options_(std::move(options)), pool_(pool), sink_(sink), shipper_(pool, pump) {}

absl::Status Role::Check(const Request& request, const engine::Sequence& sequence) const {
  if (request.mode == Mode::kUnknown) return absl::UnimplementedError("the mode is not known");
  if (request.mode == Mode::kHandOver) return absl::OkStatus();
  if (!options_.to_decode) {
    return absl::FailedPreconditionError(
        "this node does not decode, so it can't serve a whole run");
  }
  const int64_t most = engine::MostCachedTokens(sequence, options_.limits.max_context_tokens);
  if (most > options_.limits.pool_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("prompt and max_tokens need the cache of ", most,
                                                   " tokens, the pool holds ",
                                                   options_.limits.pool_tokens));
  }
  return absl::OkStatus();
}

void Role::Begin(const Request& request, absl::Time now) {
  const AttemptKey key = request.generation.key;
  auto sequence = engine::MakeSequence(request.generation, options_.limits, now);
  absl::Status status = sequence.ok() ? Check(request, *sequence) : sequence.status();
  if (status.ok()) {
    auto attempt = std::make_unique<Attempt>();
    attempt->sequence = *std::move(sequence);
    status = Admit(request, std::move(attempt));
  }
  if (!status.ok()) sink_->Refused(key, engine::RefusalOf(status));
}

absl::Status Role::Admit(const Request& request, std::unique_ptr<Attempt> attempt) {
  const AttemptKey key = attempt->sequence.key();
  if (const engine::Finish finish = FinishOf(attempt->sequence); finish != engine::Finish::kNone) {
    sink_->Accepted(key);  // a retry after the last token: the client lacks only the end
    sink_->Finished(key, {engine::OutcomeOf(finish),
                          "",
                          static_cast<uint32_t>(attempt->sequence.output_tokens()),
                          {}});
    return absl::OkStatus();
  }
  const auto tokens = static_cast<int64_t>(attempt->sequence.tokens.size());
  attempt->num_blocks = engine::BlocksFor(tokens, options_.block_tokens);
  if (request.mode == Mode::kHandOver) {
    ASSIGN_OR_RETURN(const Ticket ticket, engine::MakeTicket(request.ticket));
    attempt->ticket = ticket;
    attempt->is_ahead = true;
    RETURN_IF_ERROR(shipper_.Offer(
        {ticket, static_cast<uint32_t>(attempt->num_blocks), attempt->sequence.deadline}));
  }
  queue_.push_back(attempts_.Add(std::move(attempt)));
  sink_->Accepted(key);
  return absl::OkStatus();
}

bool Role::Cancel(const AttemptKey& key) {
  Attempt* attempt = attempts_.Find(key);
  if (attempt == nullptr) return false;
  End(*attempt, Outcome::kCancelled, "");
  return true;
}

void Role::OnOfferFetched(Ticket ticket) {
  Attempt* attempt = attempts_.Find(ticket);
  if (attempt != nullptr) LeaveAhead(*attempt);
}

void Role::OnOfferEnded(Ticket ticket, const absl::Status& status,
                        const kvtransfer::TransferStats& stats, absl::Time now) {
  Attempt* attempt = attempts_.Find(ticket);
  // The fence has been passed: what was withdrawn or cancelled before gives its blocks back here.
  shipper_.Ended(ticket);
  if (attempt == nullptr) return;
  attempt->times.transfer_bytes = stats.bytes;
  if (!status.ok()) {
    End(*attempt, Outcome::kFailed, absl::StrCat("hand-over: ", status.message()));
  } else if (attempt->state != Attempt::State::kTransferring) {
    End(*attempt, Outcome::kFailed, "hand-over: acknowledged before its commit");
  } else {
    attempt->times.transfer = now - attempt->prefilled;
    End(*attempt, Outcome::kHandedOver, "");
  }
}

void Role::LookUp(Attempt& attempt) {
  const engine::PrefixMatch match = pool_->FindPrefix(attempt.sequence.reusable());
  attempt.found_tokens = match.blocks * options_.block_tokens;
  attempt.needed_blocks = attempt.num_blocks - match.held();
}

// What another sequence has computed meanwhile is taken in the place of blocks that are not whole
// yet, and so not shipped: the choices of one prompt, which come together, compute it once.
void Role::CatchUp(Attempt& attempt) {
  engine::Sequence& sequence = attempt.sequence;
  const int32_t found = pool_->FindPrefix(sequence.reusable()).blocks * options_.block_tokens;
  if (found <= sequence.computed) return;
  pool_->Keep(sequence.prefix(found), sequence.blocks);  // knows them all, and swaps
  prefix_stats_.hit_tokens += static_cast<uint64_t>(found - sequence.computed);
  sequence.cached_tokens += found - sequence.computed;
  sequence.computed = found;
}

std::vector<PromptView> Role::Views() {
  for (Attempt* attempt : queue_) {
    if (!attempt->sequence.blocks.empty()) CatchUp(*attempt);
    attempt->needed_blocks = attempt->sequence.blocks.empty() ? attempt->num_blocks : 0;
    attempt->found_tokens = 0;
  }
  int look_ups = kLookUps;
  for (const bool ahead : {false, true}) {  // the planner's order
    for (Attempt* attempt : queue_) {
      if (attempt->needed_blocks == 0 || attempt->is_ahead != ahead) continue;
      if (look_ups-- <= 0) break;
      LookUp(*attempt);
    }
  }
  std::vector<PromptView> views;
  views.reserve(queue_.size());
  for (const Attempt* attempt : queue_) {
    views.push_back({.uncomputed_tokens = attempt->sequence.uncomputed() - attempt->found_tokens,
                     .needed_blocks = attempt->needed_blocks,
                     .is_ahead = attempt->is_ahead});
  }
  return views;
}

// First all that is found, and then what is new: else one's new blocks could be those that the
// next has found.
void Role::GiveBlocks(std::span<const size_t> admitted) {
  for (size_t i : admitted) {
    Attempt& attempt = *queue_[i];
    engine::Sequence& sequence = attempt.sequence;
    const int32_t found = pool_->TakePrefix(sequence.reusable(), sequence.blocks);
    sequence.computed = found * options_.block_tokens;
    sequence.cached_tokens = sequence.computed;
    if (pool_->has_prefix_cache()) {
      prefix_stats_.Count(sequence.tokens.size(), sequence.computed);
    }
  }
  for (size_t i : admitted) {
    Attempt& attempt = *queue_[i];
    std::vector<BlockId>& blocks = attempt.sequence.blocks;
    const size_t found = blocks.size();
    PD_CHECK(pool_->Allocate(attempt.num_blocks - static_cast<int32_t>(found), blocks));
    if (attempt.is_ahead) attempt.ahead_blocks = attempt.needed_blocks;
    ahead_blocks_ += attempt.ahead_blocks;
    if (attempt.ticket) shipper_.Ship(*attempt.ticket, blocks, found);
  }
}

void Role::AddWork(absl::Time now, engine::Plan& plan) {
  while (Attempt* expired = attempts_.Expired(now)) {
    End(*expired, Outcome::kFailed, "the attempt's deadline is over");
  }
  const std::vector<PromptView> views = Views();
  const int32_t free_blocks = std::max(pool_->counts().available() - plan.reserved_blocks, 0);
  const PromptPlan prompts =
      PlanPrompts({.prompts = views,
                   .free_blocks = free_blocks,
                   .budget_tokens = plan.budget_tokens,
                   .ahead_blocks = options_.max_ahead_blocks - ahead_blocks_});
  GiveBlocks(prompts.admitted);
  for (const Chunk& chunk : prompts.chunks) {
    Attempt& attempt = *queue_[chunk.prompt];
    if (attempt.state == Attempt::State::kWaiting) {
      attempt.state = Attempt::State::kPrefilling;
      attempt.started = now;
      attempt.times.queue = now - attempt.sequence.arrived;
    }
    // More may have been found than was looked up.
    const int32_t num_tokens = std::min(chunk.num_tokens, attempt.sequence.uncomputed());
    plan.entries.push_back({this, &attempt.sequence, num_tokens});
    plan.budget_tokens -= num_tokens;
  }
}

void Role::OnStep(absl::Time now, std::span<const engine::StepOutput> outputs) {
  for (const engine::StepOutput& output : outputs) {
    if (output.owner != this) continue;
    Attempt* attempt = attempts_.Find(output.sequence->key());
    PD_CHECK(attempt != nullptr);
    prefilled_tokens_ += static_cast<uint64_t>(output.num_tokens);
    engine::Sequence& sequence = attempt->sequence;
    // Before it is shipped: a block may be exchanged for one that is known already.
    pool_->Keep(sequence.prefix(sequence.computed), sequence.blocks);
    if (attempt->ticket && !output.sampled) {
      shipper_.Ship(*attempt->ticket, sequence.blocks,
                    static_cast<size_t>(sequence.computed / options_.block_tokens));
    }
    if (output.sampled) OnFirstToken(*attempt, output.token, now);
  }
}

void Role::OnFirstToken(Attempt& attempt, TokenId token, absl::Time now) {
  engine::Sequence& sequence = attempt.sequence;
  attempt.prefilled = now;
  attempt.times.prefill = now - attempt.started;
  ++generated_tokens_;
  sink_->Token(sequence.key(), static_cast<uint32_t>(sequence.output_tokens() - 1), token);
  if (const engine::Finish finish = FinishOf(sequence); finish != engine::Finish::kNone) {
    End(attempt, engine::OutcomeOf(finish), "");
  } else if (attempt.ticket) {
    HandOver(attempt, *attempt.ticket, token);
  } else {
    MoveToDecode(attempt);
  }
}

void Role::HandOver(Attempt& attempt, Ticket ticket, TokenId token) {
  engine::Sequence& sequence = attempt.sequence;
  shipper_.Ship(ticket, sequence.blocks, sequence.blocks.size());
  shipper_.Commit(ticket, {.num_tokens = static_cast<uint32_t>(sequence.computed),
                           .first_token = token,
                           .sampler_state = "",
                           .queue_time = attempt.times.queue,
                           .prefill_time = attempt.times.prefill,
                           .cached_tokens = sequence.cached_prompt_tokens()});
  pool_->Release(sequence.blocks, Owner::kSequence);
  sequence.blocks.clear();
  attempt.state = Attempt::State::kTransferring;
  std::erase(queue_, &attempt);
}

void Role::MoveToDecode(Attempt& attempt) {
  engine::Sequence sequence = attempt.sequence;  // its key is still needed to forget the attempt
  const engine::PhaseTimes times = attempt.times;
  attempt.sequence.blocks.clear();
  Forget(attempt);
  options_.to_decode(std::move(sequence), times);
}

void Role::End(Attempt& attempt, Outcome outcome, const std::string& error) {
  if (attempt.ticket) {
    shipper_.Withdraw(*attempt.ticket, error.empty() ? "the attempt has ended" : error);
  }
  pool_->Release(attempt.sequence.blocks, Owner::kSequence);
  attempt.sequence.blocks.clear();
  sink_->Finished(attempt.sequence.key(),
                  {outcome, error, static_cast<uint32_t>(attempt.sequence.output_tokens()),
                   attempt.times, attempt.sequence.cached_prompt_tokens()});
  Forget(attempt);
}

void Role::LeaveAhead(Attempt& attempt) {
  attempt.is_ahead = false;
  ahead_blocks_ -= std::exchange(attempt.ahead_blocks, 0);
}

void Role::Forget(Attempt& attempt) {
  LeaveAhead(attempt);
  std::erase(queue_, &attempt);
  attempts_.Erase(&attempt);
}

RoleStats Role::stats() const {
  RoleStats stats;
  for (const Attempt* attempt : queue_) {
    if (attempt->state == Attempt::State::kWaiting) {
      ++stats.waiting;
    } else {
      ++stats.prefilling;
    }
    stats.queued_tokens +=
        static_cast<uint64_t>(attempt->sequence.uncomputed() - attempt->found_tokens);
  }
  stats.transferring =
      static_cast<uint32_t>(attempts_.size() - queue_.size() + shipper_.num_withdrawn());
  stats.prefilled_tokens = prefilled_tokens_;
  stats.generated_tokens = generated_tokens_;
  stats.prefix = prefix_stats_;
  return stats;
}

}  // namespace pdserve::prefill
