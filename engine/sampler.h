// From logits to a token. A pure function: the same logits, settings and position give the same
// token anywhere. Random numbers are a function of (seed, choice, position), so nothing needs to
// travel but those.
#ifndef PDSERVE_ENGINE_SAMPLER_H_
#define PDSERVE_ENGINE_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"

namespace pdserve::engine {

struct SamplingSettings {
  float temperature = 1.0f;  // 0: greedy, ties to the lowest id
  float top_p = 1.0f;        // (0, 1]
  int32_t top_k = 0;         // 0: off
  uint64_t seed = 0;
  uint32_t choice = 0;
};

/// Reusable scratch of one sampling thread.
struct SamplerScratch {
  std::vector<uint32_t> order;
  std::vector<float> weights;
};

/// `position` is the index of the sampled token among the generation's output tokens.
/// Order: temperature, top-k, top-p, draw. Non-finite logits are never chosen while a finite one
/// is there. logits: [vocab], not empty.
TokenId Sample(std::span<const float> logits, const SamplingSettings& settings, uint64_t position,
               SamplerScratch& scratch);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_SAMPLER_H_
