// One forward pass as plain arrays. Built by the step loop, read by a model; lives for one step.
#ifndef PDSERVE_ENGINE_BATCH_H_
#define PDSERVE_ENGINE_BATCH_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"

namespace pdserve::engine {

/// Consecutive rows of a batch that belong to one sequence, at consecutive positions.
struct BatchSegment {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_position = 0;       // position of first_row in its sequence
  std::span<const BlockId> blocks;  // of the whole sequence; covers first_position + num_rows
};

struct Batch {
  std::vector<TokenId> tokens;         // [rows]
  std::vector<BatchSegment> segments;  // in row order, without gaps
  std::vector<int32_t> logit_rows;     // rows whose logits are wanted, ascending

  int32_t num_rows() const { return static_cast<int32_t>(tokens.size()); }
  void Clear() {
    tokens.clear();
    segments.clear();
    logit_rows.clear();
  }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_BATCH_H_
