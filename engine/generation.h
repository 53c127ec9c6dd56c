// What a request asks for, checked and made into a sequence: the one place that decides whether
// values from outside are sane. Pure; both roles use it, so both refuse the same things.
#ifndef PDSERVE_ENGINE_GENERATION_H_
#define PDSERVE_ENGINE_GENERATION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/attempt.h"
#include "engine/sampler.h"
#include "engine/sequence.h"

namespace pdserve::engine {

/// A generation as it came in; nothing in it has been checked.
struct Generation {
  AttemptKey key;
  std::vector<uint32_t> prompt;
  std::vector<uint32_t> emitted;  // output tokens the client has: forced, not sampled again
  uint32_t max_tokens = 0;
  bool ignore_eos = false;
  SamplingSettings sampling;
  absl::Duration deadline;  // from receipt
  std::string cache_salt;   // of the tenant; see Sequence
};

struct GenerationLimits {
  int32_t vocab_size = 0;
  int32_t max_context_tokens = 0;
  int32_t pool_tokens = 0;  // tokens that the cache pool can hold
};

/// Longest salt of a tenant.
inline constexpr size_t kLongestSaltBytes = 256;

/// Longest time that a node works on an attempt; a deadline further away is cut to it.
inline constexpr absl::Duration kLongestAttempt = absl::Hours(24);

/// The sequence, nothing of it computed; InvalidArgument names the field and its value. Its emitted
/// tokens may have ended it already (CheckFinish): then there is nothing to compute.
absl::StatusOr<Sequence> MakeSequence(const Generation& generation, const GenerationLimits& limits,
                                      absl::Time now);

/// InvalidArgument is about what is asked for, so no node can help; after anything else one may.
Refusal RefusalOf(const absl::Status& status);

/// InvalidArgument unless `bytes` are 16.
absl::StatusOr<Ticket> MakeTicket(std::string_view bytes);

/// Most tokens of the sequence that will ever be in the cache at once, decoding included: its last
/// token is never computed.
int64_t MostCachedTokens(const Sequence& sequence, int32_t max_context_tokens);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_GENERATION_H_
