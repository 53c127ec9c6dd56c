// What the step loop asks of the roles: the next step's work, and what to do with its results.
// All calls on the step loop's thread.
#ifndef PDSERVE_ENGINE_PLANNER_H_
#define PDSERVE_ENGINE_PLANNER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "engine/sequence.h"

namespace pdserve::engine {

class StepClient;

/// Computes tokens [sequence->computed, + num_tokens); samples when that reaches the last token.
struct PlanEntry {
  StepClient* owner = nullptr;
  Sequence* sequence = nullptr;  // valid until its owner's OnStep
  int32_t num_tokens = 0;
};

/// One step: decode rows (num_tokens 1) and prefill chunks under one token budget.
struct Plan {
  int32_t budget_tokens = 0;  // what is left
  /// Free blocks that a client before this one waits for; leave so many untouched. Without it the
  /// small needs of a later client could starve one large need for ever.
  int32_t reserved_blocks = 0;
  std::vector<PlanEntry> entries;
};

/// After the step, sequence->computed has moved on; where it reached the end, `token` was appended
/// to sequence->tokens.
struct StepOutput {
  StepClient* owner = nullptr;
  Sequence* sequence = nullptr;  // only its owner may look at it
  int32_t num_tokens = 0;
  bool sampled = false;
  TokenId token;
};

class StepClient {
 public:
  virtual ~StepClient() = default;
  /// Appends work to `plan` and takes it from the budget. Allocates blocks for what it plans.
  /// Called on every turn of the loop, also on those without a step.
  virtual void AddWork(absl::Time now, Plan& plan) = 0;
  /// The outputs of all clients' entries, in plan order; a client acts on its own.
  virtual void OnStep(absl::Time now, std::span<const StepOutput> outputs) = 0;
  /// When the loop must call AddWork at the latest, though nothing was posted.
  virtual absl::Time NextDeadline() const = 0;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_PLANNER_H_
