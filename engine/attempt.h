// An attempt as a node sees it: its key, how it ends, and the sink to which the roles report.
// Roles report on the step loop's thread. Invariant: after Accepted come tokens with rising,
// gapless indices and then exactly one Finished; after Refused comes nothing.
#ifndef PDSERVE_ENGINE_ATTEMPT_H_
#define PDSERVE_ENGINE_ATTEMPT_H_

#include <compare>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/ids.h"

namespace pdserve::engine {

struct AttemptKey {
  SessionId session;
  AttemptId attempt;

  friend auto operator<=>(const AttemptKey&, const AttemptKey&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const AttemptKey& key) {
    return H::combine(std::move(state), key.session, key.attempt);
  }
};

/// When to try again, where nobody knows it better.
inline constexpr absl::Duration kRetryAfter = absl::Milliseconds(250);

struct Refusal {
  std::string reason;
  bool retryable = false;  // another node, or this one later, may take it
  absl::Duration retry_after;
};

enum class Outcome { kStop, kLength, kCancelled, kFailed, kHandedOver };

struct PhaseTimes {
  absl::Duration queue;         // waiting on the prefill node
  absl::Duration prefill;       // first chunk to first token
  absl::Duration transfer;      // what the hand-over added after that
  absl::Duration decode_queue;  // cache there, waiting for its first decode step
  absl::Duration decode;        // from there to the end
  uint64_t transfer_bytes = 0;
};

struct Ending {
  Outcome outcome = Outcome::kFailed;
  std::string error;           // kFailed; kCancelled where the other node gave the hand-over up
  uint32_t output_tokens = 0;  // of the generation, those before this attempt included
  PhaseTimes times;
  uint32_t cached_tokens = 0;  // of the prompt: found in the prefix cache of who prefilled it
};

class AttemptSink {
 public:
  virtual ~AttemptSink() = default;
  virtual void Accepted(const AttemptKey& key) = 0;
  virtual void Refused(const AttemptKey& key, const Refusal& refusal) = 0;
  /// `index` counts the generation's output tokens from 0.
  virtual void Token(const AttemptKey& key, uint32_t index, TokenId token) = 0;
  virtual void Finished(const AttemptKey& key, const Ending& ending) = 0;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_ATTEMPT_H_
