#include "engine/generation.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace pdserve::engine {
namespace {

absl::Status CheckIds(const std::vector<uint32_t>& ids, const char* field, int32_t vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= static_cast<uint32_t>(vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, "[", i, "] is ", ids[i], ", the vocabulary has ", vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSampling(const SamplingSettings& sampling) {
  // Written so that NaN fails too.
  if (!(sampling.temperature >= 0.0f && sampling.temperature <= 100.0f)) {
    return absl::InvalidArgumentError(
        absl::StrCat("temperature is ", sampling.temperature, ", not in [0, 100]"));
  }
  if (!(sampling.top_p > 0.0f && sampling.top_p <= 1.0f)) {
    return absl::InvalidArgumentError(absl::StrCat("top_p is ", sampling.top_p, ", not in (0, 1]"));
  }
  if (sampling.top_k < 0) {
    return absl::InvalidArgumentError(absl::StrCat("top_k is ", sampling.top_k, ", below 0"));
  }
  return absl::OkStatus();
}

absl::Status CheckLengths(const Generation& generation, const GenerationLimits& limits) {
  if (generation.prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
  if (generation.max_tokens < 1) return absl::InvalidArgumentError("max_tokens is 0");
  if (generation.emitted.size() > generation.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        generation.emitted.size(), " tokens are emitted, max_tokens is ", generation.max_tokens));
  }
  const size_t known = generation.prompt.size() + generation.emitted.size();
  const auto context = static_cast<size_t>(limits.max_context_tokens);
  const bool is_full = known == context || generation.emitted.size() == generation.max_tokens;
  if (is_full && !generation.emitted.empty() && known <= context) return absl::OkStatus();
  if (known >= context) {
    return absl::InvalidArgumentError(absl::StrCat("prompt and emitted tokens are ", known,
                                                   ", the context is ", limits.max_context_tokens));
  }
  if (known > static_cast<size_t>(limits.pool_tokens)) {
    return absl::InvalidArgumentError(absl::StrCat("prompt and emitted tokens are ", known,
                                                   ", the cache pool holds ", limits.pool_tokens));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Sequence> MakeSequence(const Generation& generation, const GenerationLimits& limits,
                                      absl::Time now) {
  RETURN_IF_ERROR(CheckLengths(generation, limits));
  RETURN_IF_ERROR(CheckIds(generation.prompt, "prompt_token_ids", limits.vocab_size));
  RETURN_IF_ERROR(CheckIds(generation.emitted, "emitted_token_ids", limits.vocab_size));
  RETURN_IF_ERROR(CheckSampling(generation.sampling));
  if (generation.cache_salt.size() > kLongestSaltBytes) {
    return absl::InvalidArgumentError(absl::StrCat("cache_salt has ", generation.cache_salt.size(),
                                                   " bytes, at most ", kLongestSaltBytes));
  }
  if (generation.deadline <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("the deadline is not after the receipt");
  }
  Sequence sequence;
  sequence.session = generation.key.session;
  sequence.attempt = generation.key.attempt;
  sequence.tokens.reserve(generation.prompt.size() + generation.emitted.size() + 1);
  for (uint32_t id : generation.prompt) sequence.tokens.push_back(TokenId{id});
  for (uint32_t id : generation.emitted) sequence.tokens.push_back(TokenId{id});
  sequence.prompt_tokens = static_cast<int32_t>(generation.prompt.size());
  // What lies beyond the context can't be generated; cut so that the arithmetic stays in 32 bits.
  sequence.max_tokens = static_cast<int32_t>(
      std::min<uint32_t>(generation.max_tokens, static_cast<uint32_t>(limits.max_context_tokens)));
  sequence.ignore_eos = generation.ignore_eos;
  sequence.sampling = generation.sampling;
  sequence.cache_salt = generation.cache_salt;
  sequence.arrived = now;
  sequence.deadline = now + std::min(generation.deadline, kLongestAttempt);
  return sequence;
}

Refusal RefusalOf(const absl::Status& status) {
  const bool retryable = !absl::IsInvalidArgument(status);
  return {std::string(status.message()), retryable, retryable ? kRetryAfter : absl::ZeroDuration()};
}

absl::StatusOr<Ticket> MakeTicket(std::string_view bytes) {
  Ticket ticket;
  if (bytes.size() != ticket.value.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the ticket has ", bytes.size(), " bytes, not ", ticket.value.size()));
  }
  std::copy(bytes.begin(), bytes.end(), ticket.value.begin());
  return ticket;
}

int64_t MostCachedTokens(const Sequence& sequence, int32_t max_context_tokens) {
  return std::min<int64_t>(int64_t{sequence.prompt_tokens} + sequence.max_tokens,
                           max_context_tokens) -
         1;
}

}  // namespace pdserve::engine
