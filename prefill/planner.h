// Which prompts get blocks, and how the step's tokens are shared among them. Pure.
// Blocks are given to a prompt all at once: a prompt that has begun never waits for memory, so two
// half-done ones can't block each other. First, in order of arrival, to those whose cache has a
// place to go; then to those that are computed ahead of their decode node's room, and never more
// than a share of the pool: else what waits for that room could fill it up, and what the room is
// kept for could never begin. Tokens: half of the budget goes
// to the prompts with the least left to compute, so that a short one does not wait for a long one;
// the rest goes in order of arrival, so that a long one always moves on.
#ifndef PDSERVE_PREFILL_PLANNER_H_
#define PDSERVE_PREFILL_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pdserve::prefill {

struct PromptView {
  int32_t uncomputed_tokens = 0;
  int32_t needed_blocks = 0;  // 0: it has its blocks
  bool is_ahead = false;      // its decode node has not asked for it yet
};

struct PromptState {
  std::span<const PromptView> prompts;  // in order of arrival
  int32_t free_blocks = 0;
  int32_t budget_tokens = 0;
  int32_t ahead_blocks = 0;  // of the free ones, for those ahead
};

struct Chunk {
  size_t prompt = 0;       // index into `prompts`
  int32_t num_tokens = 0;  // at least 1
};

struct PromptPlan {
  std::vector<size_t> admitted;  // get their blocks now; ascending
  std::vector<Chunk> chunks;     // of prompts with blocks; by ascending prompt
};

PromptPlan PlanPrompts(const PromptState& state);

}  // namespace pdserve::prefill

#endif  // PDSERVE_PREFILL_PLANNER_H_
