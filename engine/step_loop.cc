#include "engine/step_loop.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace pdserve::engine {
namespace {

// An idle loop turns this often, so that last_turn() tells a waiting loop from a stuck one.
constexpr absl::Duration kLongestWait = absl::Seconds(1);
// A client whose deadline has passed and that still does nothing must not make the loop spin.
constexpr absl::Duration kShortestWait = absl::Milliseconds(1);

Pace::Step MixOf(const Plan& plan) {
  Pace::Step step;
  for (const PlanEntry& entry : plan.entries) {
    const bool decodes = entry.num_tokens == 1 && entry.sequence->output_tokens() > 0;
    (decodes ? step.decode_rows : step.prompt_tokens) += entry.num_tokens;
  }
  return step;
}

}  // namespace

StepLoop::StepLoop(const StepLoopOptions& options, Model* model, BlockPool* pool,
                   std::vector<StepClient*> clients, const Clock* clock)
    : options_(options),
      model_(model),
      pool_(pool),
      clients_(std::move(clients)),
      clock_(clock),
      mailbox_(options.mailbox_limit),
      pace_(options.itl_target) {}

StepLoop::~StepLoop() { Stop(); }

void StepLoop::Start() {
  PD_CHECK(!thread_.joinable());
  last_turn_ns_ = absl::ToUnixNanos(clock_->Now());
  thread_ = std::thread([this] { Run(); });
}

void StepLoop::Stop() {
  mailbox_.Close();
  if (thread_.joinable()) thread_.join();
}

bool StepLoop::Post(Task task) { return mailbox_.Push(std::move(task)); }
bool StepLoop::PostReserved(Task task) { return mailbox_.PushReserved(std::move(task)); }

absl::Time StepLoop::last_turn() const { return absl::FromUnixNanos(last_turn_ns_); }

bool StepLoop::TurnOnce() { return Turn(absl::ZeroDuration()); }

void StepLoop::Run() {
  bool stepped = true;
  while (!mailbox_.closed()) stepped = Turn(stepped ? absl::ZeroDuration() : Patience());
  for (Task& task : mailbox_.TakeAll(absl::ZeroDuration())) task();
}

absl::Duration StepLoop::Patience() const {
  absl::Time next = absl::InfiniteFuture();
  for (const StepClient* client : clients_) next = std::min(next, client->NextDeadline());
  return std::clamp(next - clock_->Now(), kShortestWait, kLongestWait);
}

bool StepLoop::Turn(absl::Duration patience) {
  for (Task& task : mailbox_.TakeAll(patience)) task();
  const absl::Time now = clock_->Now();
  last_turn_ns_ = absl::ToUnixNanos(now);
  Plan plan;
  BuildPlan(now, plan);
  if (plan.entries.empty()) return false;
  const absl::Time start = clock_->Now();
  Execute(plan);
  const absl::Time after = clock_->Now();
  pace_.OnStep(MixOf(plan), after - start);
  for (StepClient* client : clients_) client->OnStep(after, outputs_);
  return true;
}

void StepLoop::BuildPlan(absl::Time now, Plan& plan) {
  plan.budget_tokens = options_.max_step_tokens;
  for (StepClient* client : clients_) {
    // Prompts come last, and to what decode rows there are by then.
    plan.budget_tokens = pace_.PromptTokens(MixOf(plan).decode_rows, plan.budget_tokens);
    client->AddWork(now, plan);
  }
}

void StepLoop::BuildBatch(const Plan& plan) {
  batch_.Clear();
  for (const PlanEntry& entry : plan.entries) {
    const Sequence& sequence = *entry.sequence;
    PD_CHECK(entry.num_tokens >= 1 && entry.num_tokens <= sequence.uncomputed());
    const int32_t end = sequence.computed + entry.num_tokens;
    const int64_t covered =
        static_cast<int64_t>(sequence.blocks.size()) * model_->card().cache_layout.block_tokens;
    PD_CHECK(covered >= end);
    batch_.segments.push_back(
        {batch_.num_rows(), entry.num_tokens, sequence.computed, sequence.blocks});
    batch_.tokens.insert(batch_.tokens.end(), sequence.tokens.begin() + sequence.computed,
                         sequence.tokens.begin() + end);
    if (entry.num_tokens == sequence.uncomputed()) {
      batch_.logit_rows.push_back(batch_.num_rows() - 1);
    }
  }
  PD_CHECK(batch_.num_rows() <= options_.max_step_tokens);
}

void StepLoop::Execute(const Plan& plan) {
  BuildBatch(plan);
  const auto vocab = static_cast<size_t>(model_->card().vocab_size);
  logits_.resize(std::max(logits_.size(), batch_.logit_rows.size() * vocab));
  model_->Forward(batch_, pool_->base(), logits_.data());
  outputs_.clear();
  const float* logits = logits_.data();
  for (const PlanEntry& entry : plan.entries) {
    Sequence& sequence = *entry.sequence;
    StepOutput output{entry.owner, &sequence, entry.num_tokens, false, TokenId{}};
    sequence.computed += entry.num_tokens;
    if (sequence.uncomputed() == 0) {
      output.sampled = true;
      output.token = Sample({logits, vocab}, sequence.sampling,
                            static_cast<uint64_t>(sequence.output_tokens()), scratch_);
      sequence.tokens.push_back(output.token);
      logits += vocab;
    }
    outputs_.push_back(output);
  }
}

}  // namespace pdserve::engine
