#include "router/ask.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "router/fields.h"
#include "router/messages.h"
#include "spdlog/fmt/fmt.h"

namespace pdserve::router {
namespace {

constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 4096;
constexpr size_t kMaxPrompts = 128;
constexpr int64_t kMaxRequestChoices = 128;  // prompts times n
constexpr int64_t kDefaultCompletionTokens = 16;

void ReadStop(Fields& fields, Ask& ask) {
  const Json* stop = fields.Find("stop");
  if (stop == nullptr) return;
  if (!stop->is_string() && !stop->is_array()) {
    return fields.Fail(InvalidType("stop", "a string or an array of strings"));
  }
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (list.size() > kMaxStops) {
    return fields.Fail(InvalidValue("stop", fmt::format("may hold at most {} strings", kMaxStops)));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string path = stop->is_array() ? fmt::format("stop[{}]", i) : "stop";
    if (!list[i].is_string()) return fields.Fail(InvalidType(path, "a string"));
    ask.stop.push_back(list[i].get<std::string>());
    if (ask.stop.back().empty()) return fields.Fail(InvalidValue(path, "must not be empty"));
    if (ask.stop.back().size() > kMaxStopBytes) {
      return fields.Fail(
          InvalidValue(path, fmt::format("must not be longer than {} bytes", kMaxStopBytes)));
    }
  }
}

void ReadSampling(Fields& fields, Ask& ask) {
  ask.temperature = fields.Number("temperature", 0, 2).value_or(1);
  ask.top_p = fields.Number("top_p", 0, 1).value_or(1);
  if (static_cast<float>(ask.top_p) == 0) fields.Fail(InvalidValue("top_p", "must be above 0"));
  const int64_t top_k = fields.Integer("top_k", -1, kMaxTokens).value_or(0);
  ask.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
  ask.seed = fields.Seed("seed");
}

void ReadStream(Fields& fields, Ask& ask) {
  ask.stream = fields.Bool("stream").value_or(false);
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields.Fail(InvalidType("stream_options", "an object"));
  if (!ask.stream) return fields.Fail(InvalidValue("stream_options", "needs stream to be true"));
  Fields inner(*options, "stream_options.");
  ask.include_usage = inner.Bool("include_usage").value_or(false);
  inner.RefuseRest();
  if (const auto& error = inner.error()) fields.Fail(*error);
}

void ReadLimits(Fields& fields, Ask& ask, int64_t max_choices) {
  ask.max_tokens = fields.Integer("max_tokens", 1, kMaxTokens);
  if (ask.endpoint == Endpoint::kChat) {
    const auto completion = fields.Integer("max_completion_tokens", 1, kMaxTokens);
    if (completion && completion != ask.max_tokens.value_or(*completion)) {
      fields.Fail(InvalidValue("max_completion_tokens",
                               "is the same limit as max_tokens; both are given and differ"));
    }
    if (completion) ask.max_tokens = completion;
  }
  ask.n = static_cast<int32_t>(fields.Integer("n", 1, max_choices).value_or(1));
  ask.ignore_eos = fields.Bool("ignore_eos").value_or(false);
  ask.return_token_ids = fields.Bool("return_token_ids").value_or(false);
}

// [int...] at `path`; whether the ids are in the vocabulary is checked with the model.
Result<std::vector<TokenId>> ReadIds(const Json& list, const std::string& path) {
  std::vector<TokenId> ids;
  ids.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const std::optional<int64_t> id = WholeNumber(list[i]);
    if (!list[i].is_number()) return InvalidType(fmt::format("{}[{}]", path, i), "a token id");
    if (!id || *id < 0 || *id > std::numeric_limits<uint32_t>::max()) {
      return InvalidValue(fmt::format("{}[{}]", path, i), "is not a token id");
    }
    ids.push_back(TokenId{static_cast<uint32_t>(*id)});
  }
  return ids;
}

Result<Prompt> ReadOnePrompt(const Json& prompt, const std::string& path) {
  if (!prompt.is_string() && !prompt.is_array()) {
    return InvalidType(path, "a string or an array of token ids");
  }
  if (prompt.is_string()) {
    Prompt text = prompt.get<std::string>();
    if (std::get<std::string>(text).empty()) return InvalidValue(path, "must not be empty");
    return text;
  }
  if (prompt.empty()) return InvalidValue(path, "must not be empty");
  Result<std::vector<TokenId>> ids = ReadIds(prompt, path);
  if (auto* error = std::get_if<ApiError>(&ids)) return *error;
  return Prompt(std::get<std::vector<TokenId>>(std::move(ids)));
}

void ReadPrompts(Fields& fields, Ask& ask) {
  const Json* prompt = fields.Find("prompt");
  if (prompt == nullptr) return fields.Fail(MissingField("prompt"));
  const bool is_list = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
  if (is_list && prompt->size() > kMaxPrompts) {
    return fields.Fail(
        InvalidValue("prompt", fmt::format("may hold at most {} prompts", kMaxPrompts)));
  }
  for (size_t i = 0; i < (is_list ? prompt->size() : 1); ++i) {
    Result<Prompt> one = is_list ? ReadOnePrompt((*prompt)[i], fmt::format("prompt[{}]", i))
                                 : ReadOnePrompt(*prompt, "prompt");
    if (auto* error = std::get_if<ApiError>(&one)) return fields.Fail(*error);
    ask.prompts.push_back(std::get<Prompt>(std::move(one)));
  }
}

// A node holds a bounded number of attempts; one request must not take them all.
void CheckChoices(Fields& fields, const Ask& ask) {
  const int64_t choices = NumChoices(ask);
  if (choices <= kMaxRequestChoices) return;
  fields.Fail(InvalidValue("n", fmt::format("prompts times n is {}, at most {} are served at once",
                                            choices, kMaxRequestChoices)));
}

void ReadInput(Fields& fields, Ask& ask) {
  if (ask.endpoint == Endpoint::kCompletions) return ReadPrompts(fields, ask);
  const Json* messages = fields.Find("messages");
  if (messages == nullptr) return fields.Fail(MissingField("messages"));
  Result<std::string> read = ReadMessages(*messages);
  if (auto* error = std::get_if<ApiError>(&read)) return fields.Fail(*error);
  ask.messages_json = std::get<std::string>(std::move(read));
}

ApiError ContextExceeded(const Ask& ask, size_t prompt_tokens, int64_t max_tokens,
                         int64_t context) {
  ApiError error;
  error.code = "context_length_exceeded";
  error.param = ask.endpoint == Endpoint::kChat ? "messages" : "prompt";
  error.message = fmt::format(
      "This model's maximum context length is {} tokens; the request needs {}: {} in the prompt "
      "and {} to generate.",
      context, static_cast<int64_t>(prompt_tokens) + max_tokens, prompt_tokens, max_tokens);
  return error;
}

Result<PreparedPrompt> FitContext(const Ask& ask, std::vector<TokenId> ids, int64_t context) {
  if (ids.empty()) {
    return InvalidValue(ask.endpoint == Endpoint::kChat ? "messages" : "prompt", "has no tokens");
  }
  const int64_t room = context - static_cast<int64_t>(ids.size());
  const int64_t wanted = ask.max_tokens.value_or(1);
  if (wanted > room) return ContextExceeded(ask, ids.size(), wanted, context);
  const bool fills_context = ask.endpoint == Endpoint::kChat;
  const int64_t standard = fills_context ? room : std::min(room, kDefaultCompletionTokens);
  return PreparedPrompt{std::move(ids), ask.max_tokens.value_or(standard)};
}

Result<std::vector<TokenId>> Tokenise(const Prompt& prompt, const std::string& path,
                                      const ServedModel& model) {
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&prompt)) {  // no BOS is added
    for (size_t i = 0; i < ids->size(); ++i) {
      if ((*ids)[i].value < model.vocab_size) continue;
      return InvalidValue(path, fmt::format("token id {} at {} is outside the vocabulary of {}",
                                            (*ids)[i].value, i, model.vocab_size));
    }
    return *ids;
  }
  auto encoded = model.text->Encode(std::get<std::string>(prompt), /*add_special=*/true,
                                    /*parse_special=*/true);
  if (!encoded.ok()) return InvalidValue(path, std::string(encoded.status().message()));
  return *std::move(encoded);
}

std::string PathOf(const Ask& ask, size_t prompt) {
  return ask.prompts.size() == 1 ? "prompt" : fmt::format("prompt[{}]", prompt);
}

Result<std::vector<TokenId>> TokeniseChat(const Ask& ask, const ServedModel& model) {
  if (!model.text->has_chat_template()) {
    return InvalidValue("messages", "this model has no chat template; use /v1/completions");
  }
  auto encoded = model.text->EncodeChat(ask.messages_json, /*add_generation_prompt=*/true);
  if (!encoded.ok()) return InvalidValue("messages", std::string(encoded.status().message()));
  return *std::move(encoded);
}

}  // namespace

Result<Ask> ParseAsk(Endpoint endpoint, std::string_view body, int64_t max_choices) {
  Result<Json> parsed = ParseObject(body);
  if (auto* error = std::get_if<ApiError>(&parsed)) return *error;
  Fields fields(std::get<Json>(parsed));
  Ask ask;
  ask.endpoint = endpoint;
  ask.model = fields.String("model").value_or("");
  ReadInput(fields, ask);
  ReadLimits(fields, ask, max_choices);
  CheckChoices(fields, ask);
  ReadSampling(fields, ask);
  ReadStop(fields, ask);
  ReadStream(fields, ask);
  fields.RefuseRest();
  if (const auto& error = fields.error()) return *error;
  return ask;
}

Result<std::vector<PreparedPrompt>> Prepare(const Ask& ask, const ServedModel& model,
                                            int64_t max_context_tokens) {
  if (!ask.model.empty() && ask.model != model.name) {
    ApiError error = NotFound(
        "model_not_found",
        fmt::format("the model '{}' does not exist; served is '{}'", ask.model, model.name));
    error.param = "model";
    return error;
  }
  std::vector<PreparedPrompt> prepared;
  const size_t count = ask.endpoint == Endpoint::kChat ? 1 : ask.prompts.size();
  for (size_t i = 0; i < count; ++i) {
    auto ids = ask.endpoint == Endpoint::kChat ? TokeniseChat(ask, model)
                                               : Tokenise(ask.prompts[i], PathOf(ask, i), model);
    if (auto* error = std::get_if<ApiError>(&ids)) return *error;
    auto fit = FitContext(ask, std::get<std::vector<TokenId>>(std::move(ids)), max_context_tokens);
    if (auto* error = std::get_if<ApiError>(&fit)) return *error;
    prepared.push_back(std::get<PreparedPrompt>(std::move(fit)));
  }
  return prepared;
}

int64_t NumChoices(const Ask& ask) {
  return (ask.endpoint == Endpoint::kChat ? 1 : std::ssize(ask.prompts)) * ask.n;
}

int64_t TextBytes(const Ask& ask) {
  size_t bytes = ask.messages_json.size();
  for (const Prompt& prompt : ask.prompts) {
    if (const auto* text = std::get_if<std::string>(&prompt)) bytes += text->size();
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace pdserve::router
