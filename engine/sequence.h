// One generation on one node. Owned by its role; touched on the step loop's thread only.
// Invariants: computed <= tokens.size(); blocks cover every computed token; tokens.size() >=
// prompt_tokens; output tokens are tokens[prompt_tokens..).
#ifndef PDSERVE_ENGINE_SEQUENCE_H_
#define PDSERVE_ENGINE_SEQUENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "engine/attempt.h"
#include "engine/sampler.h"

namespace pdserve::engine {

struct Sequence {
  SessionId session;
  AttemptId attempt;
  std::vector<TokenId> tokens;  // prompt, then output
  int32_t prompt_tokens = 0;
  int32_t computed = 0;    // tokens [0, computed) are in the cache
  int32_t max_tokens = 0;  // output tokens at most
  bool ignore_eos = false;
  SamplingSettings sampling;
  std::vector<BlockId> blocks;  // held as Owner::kSequence
  absl::Time deadline;
  absl::Time arrived;

  AttemptKey key() const { return {session, attempt}; }
  int32_t output_tokens() const { return static_cast<int32_t>(tokens.size()) - prompt_tokens; }
  int32_t uncomputed() const { return static_cast<int32_t>(tokens.size()) - computed; }
};

enum class Finish { kNone, kStop, kLength };

struct FinishLimits {
  std::span<const TokenId> end_tokens;  // sorted
  int32_t max_context_tokens = 0;
};

/// Whether the sequence ends with its last token. Pure; the same on every node.
Finish CheckFinish(const Sequence& sequence, const FinishLimits& limits);

/// How an attempt ends whose sequence has finished.
inline Outcome OutcomeOf(Finish finish) {
  return finish == Finish::kStop ? Outcome::kStop : Outcome::kLength;
}

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_SEQUENCE_H_
