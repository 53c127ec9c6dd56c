// What a client's request asks for, read from its JSON and checked as far as that needs no model;
// then, with the model, its prompts as token ids. Pure functions; any thread.
#ifndef PDSERVE_ROUTER_ASK_H_
#define PDSERVE_ROUTER_ASK_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "router/errors.h"
#include "text/text.h"

namespace pdserve::router {

enum class Endpoint { kChat, kCompletions };

/// A prompt of /completions: text, or token ids that are taken as they are.
using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct Ask {
  Endpoint endpoint = Endpoint::kChat;
  std::string model;            // empty: the one that is served
  std::string messages_json;    // chat: for the template
  std::vector<Prompt> prompts;  // completions: at least one, none empty
  std::optional<int64_t> max_tokens;
  double temperature = 1;
  double top_p = 1;
  int32_t top_k = 0;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  int32_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool ignore_eos = false;
  bool return_token_ids = false;
};

/// `max_choices` bounds n.
Result<Ask> ParseAsk(Endpoint endpoint, std::string_view body, int64_t max_choices);

/// The model that the live nodes serve, as its requests need it. Immutable.
struct ServedModel {
  std::string name;
  std::string system_fingerprint;
  Fingerprint fingerprint;
  std::shared_ptr<const text::Text> text;
  uint32_t vocab_size = 0;
  std::vector<TokenId> end_tokens;  // sorted
  absl::Time created;
};

/// One prompt, ready for a node.
struct PreparedPrompt {
  std::vector<TokenId> token_ids;
  int64_t max_tokens = 0;  // prompt and output fit into the context
};

/// Tokenises and checks against vocabulary and context.
Result<std::vector<PreparedPrompt>> Prepare(const Ask& ask, const ServedModel& model,
                                            int64_t max_context_tokens);

/// Prompts times n.
int64_t NumChoices(const Ask& ask);

/// The text that Prepare would tokenise, in bytes: what it costs.
int64_t TextBytes(const Ask& ask);

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_ASK_H_
