// One generation on one node. Owned by its role; touched on the step loop's thread only.
// Invariants: computed <= tokens.size(); blocks cover every computed token; tokens.size() >=
// prompt_tokens; output tokens are tokens[prompt_tokens..).
#ifndef PDSERVE_ENGINE_SEQUENCE_H_
#define PDSERVE_ENGINE_SEQUENCE_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "engine/attempt.h"
#include "engine/cache/prefix_cache.h"
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
  std::string cache_salt;       // of the tenant: none but its own sequences share blocks with it
  int32_t cached_tokens = 0;    // found in the prefix cache of the node that prefilled it
  absl::Time deadline;
  absl::Time arrived;

  AttemptKey key() const { return {session, attempt}; }
  int32_t output_tokens() const { return static_cast<int32_t>(tokens.size()) - prompt_tokens; }
  int32_t uncomputed() const { return static_cast<int32_t>(tokens.size()) - computed; }
  uint32_t cached_prompt_tokens() const {
    return static_cast<uint32_t>(std::min(cached_tokens, prompt_tokens));
  }
  /// Its first `count` tokens, as the prefix cache names them.
  Prefix prefix(int32_t count) const {
    return {cache_salt, std::span(tokens).first(static_cast<size_t>(count))};
  }
  /// What may be taken from the cache where logits are wanted: the last token has to be computed.
  Prefix reusable() const { return prefix(static_cast<int32_t>(tokens.size()) - 1); }
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
