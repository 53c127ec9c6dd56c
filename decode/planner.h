// Who decodes in the next step, who gives its blocks up, who may begin to land. Pure.
// The oldest always moves on: it takes blocks from the youngest when the pool is empty, never the
// other way, so there is no deadlock. Who lost its blocks is computed again in chunks, from what
// the decode rows leave of the budget, and before anyone new lands. A landing or a return leaves a
// little room for those that run, else it would be thrown out again at once. What lands waits for
// its prefill node; on a node that prefills too it holds a share of the pool at most, else two such
// nodes could wait for each other.
#ifndef PDSERVE_DECODE_PLANNER_H_
#define PDSERVE_DECODE_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pdserve::decode {

struct RunningView {
  int32_t tokens = 0;
  int32_t computed = 0;
  int32_t blocks = 0;      // 0: lost by preemption
  uint64_t last_step = 0;  // when it last had a row; 0: never
  /// Of its blocks, those that would not be free if it and all younger ones lost theirs. Of one
  /// that has lost them, those that it would find again, held by others.
  int32_t shared_blocks = 0;
};

struct DecodeState {
  std::span<const RunningView> running;  // oldest first
  std::span<const int32_t> waiting;      // free blocks that each needs to land; oldest first
  int32_t landing = 0;                   // attempts whose blocks are arriving
  int32_t landing_blocks = 0;            // theirs
  int32_t max_landing_blocks = 0;        // one alone may have more
  int32_t free_blocks = 0;               // cached ones that nobody holds included
  int32_t block_tokens = 0;
  int32_t max_batch = 0;
  int32_t budget_tokens = 0;
};

struct Row {
  size_t running = 0;      // index into `running`
  int32_t num_tokens = 0;  // at least 1
  int32_t new_blocks = 0;  // of the free ones, that it gets first
};

/// To be carried out in this order: preempted, rows, landings.
struct DecodePlan {
  std::vector<size_t> preempted;  // release their blocks
  std::vector<Row> rows;
  size_t num_landings = 0;      // the first of `waiting` get their blocks
  int32_t reserved_blocks = 0;  // free blocks kept for the next return or landing
};

DecodePlan PlanDecode(const DecodeState& state);

}  // namespace pdserve::decode

#endif  // PDSERVE_DECODE_PLANNER_H_
