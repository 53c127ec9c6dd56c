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

/// Computes tokens [sequence->computed, + num_tokens); samples when that reaches the last token.
struct PlanEntry {
  Sequence* sequence = nullptr;
  int32_t num_tokens = 0;
};

/// One step: decode rows (num_tokens 1) and prefill chunks under one token budget.
struct Plan {
  int32_t budget_tokens = 0;  // what is left
  std::vector<PlanEntry> entries;
};

/// After the step, sequence->computed has moved on; where it reached the end, `token` was appended
/// to sequence->tokens.
struct StepOutput {
  Sequence* sequence = nullptr;
  int32_t num_tokens = 0;
  bool sampled = false;
  TokenId token;
};

class StepClient {
 public:
  virtual ~StepClient() = default;
  /// Appends work to `plan` and takes it from the budget. Allocates blocks for what it plans.
  virtual void AddWork(absl::Time now, Plan& plan) = 0;
  /// The outputs of all clients' entries, in plan order; a client acts on its own.
  virtual void OnStep(absl::Time now, std::span<const StepOutput> outputs) = 0;
  /// When the loop must call AddWork at the latest, though nothing was posted.
  virtual absl::Time NextDeadline() const = 0;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_PLANNER_H_
