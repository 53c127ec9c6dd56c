#include "engine/sequence.h"

#include <algorithm>

namespace pdserve::engine {

Finish CheckFinish(const Sequence& sequence, const FinishLimits& limits) {
  if (sequence.output_tokens() <= 0) return Finish::kNone;
  if (!sequence.ignore_eos && std::binary_search(limits.end_tokens.begin(), limits.end_tokens.end(),
                                                 sequence.tokens.back())) {
    return Finish::kStop;
  }
  const bool full = sequence.tokens.size() >= static_cast<size_t>(limits.max_context_tokens);
  if (full || sequence.output_tokens() >= sequence.max_tokens) return Finish::kLength;
  return Finish::kNone;
}

}  // namespace pdserve::engine
