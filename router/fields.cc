#include "router/fields.h"

#include <array>
#include <cmath>
#include <limits>

#include "spdlog/fmt/fmt.h"

namespace pdserve::router {
namespace {

constexpr int kMaxDepth = 64;

// Brackets outside of strings; wrong JSON is the parser's to refuse.
bool IsTooDeep(std::string_view body) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kMaxDepth) return true;
  }
  return false;
}

// Hints for whoever bills, stores or watches; the answer is the same without them.
constexpr std::array<std::string_view, 5> kHints = {"user", "metadata", "safety_identifier",
                                                    "prompt_cache_key", "store"};

// Fields that are not implemented, at the value that asks for nothing: many clients always send
// them. Any other value is refused.
const Json& NeutralValues() {
  static const Json* values = new Json{
      {"frequency_penalty", 0},
      {"presence_penalty", 0},
      {"repetition_penalty", 1},
      {"min_p", 0},
      {"min_tokens", 0},
      {"logprobs", false},
      {"top_logprobs", 0},
      {"logit_bias", Json::object()},
      {"response_format", {{"type", "text"}}},
      {"tool_choice", "none"},
      {"modalities", Json::array({"text"})},
      {"service_tier", "auto"},
      {"best_of", 1},
      {"echo", false},
      {"include_stop_str_in_output", false},
      {"skip_special_tokens", true},
      {"add_generation_prompt", true},
      {"include_obfuscation", false},
      {"continuous_usage_stats", false},
  };
  return *values;
}

bool AsksForNothing(const std::string& name, const Json& value) {
  for (const std::string_view hint : kHints) {
    if (name == hint) return true;
  }
  const auto neutral = NeutralValues().find(name);
  return neutral != NeutralValues().end() && *neutral == value;
}

}  // namespace

Result<Json> ParseObject(std::string_view body) {
  if (body.empty()) return InvalidJson("it is empty");
  if (IsTooDeep(body)) return InvalidJson(fmt::format("nested deeper than {}", kMaxDepth));
  Json parsed = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return InvalidJson("it does not parse");
  if (!parsed.is_object()) return InvalidJson(fmt::format("it is of type {}", parsed.type_name()));
  return parsed;
}

std::optional<int64_t> WholeNumber(const Json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const double number = value.get<double>();
  constexpr double kTwoTo63 = 9223372036854775808.0;
  if (!(number >= -kTwoTo63 && number < kTwoTo63) || number != std::floor(number)) {
    return std::nullopt;
  }
  return static_cast<int64_t>(number);
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

std::string Fields::Path(std::string_view name) const { return fmt::format("{}{}", path_, name); }

void Fields::Fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

const Json* Fields::Find(std::string_view name) {
  read_.insert(std::string(name));
  const auto found = object_.find(std::string(name));
  if (found == object_.end() || found->is_null()) return nullptr;
  return &*found;
}

std::optional<bool> Fields::Bool(std::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_boolean()) return value->get<bool>();
  Fail(InvalidType(Path(name), "true or false"));
  return std::nullopt;
}

std::optional<std::string> Fields::String(std::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return value->get<std::string>();
  Fail(InvalidType(Path(name), "a string"));
  return std::nullopt;
}

std::optional<int64_t> Fields::Integer(std::string_view name, int64_t low, int64_t high) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    Fail(InvalidType(Path(name), "a whole number"));
    return std::nullopt;
  }
  const std::optional<int64_t> number = WholeNumber(*value);
  if (number && *number >= low && *number <= high) return number;
  Fail(InvalidValue(Path(name), fmt::format("must be a whole number from {} to {}", low, high)));
  return std::nullopt;
}

std::optional<double> Fields::Number(std::string_view name, double low, double high) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    Fail(InvalidType(Path(name), "a number"));
    return std::nullopt;
  }
  const double number = value->get<double>();
  if (number >= low && number <= high) return number;
  Fail(InvalidValue(Path(name), fmt::format("must be from {} to {}", low, high)));
  return std::nullopt;
}

std::optional<uint64_t> Fields::Seed(std::string_view name) {
  const Json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (const std::optional<int64_t> number = WholeNumber(*value)) {
    return static_cast<uint64_t>(*number);
  }
  if (value->is_number()) {
    Fail(InvalidValue(Path(name), "must be a whole number of 64 bits"));
  } else {
    Fail(InvalidType(Path(name), "a whole number"));
  }
  return std::nullopt;
}

void Fields::RefuseRest() {
  for (const auto& [name, value] : object_.items()) {
    if (value.is_null() || read_.contains(name) || AsksForNothing(name, value)) continue;
    Fail(UnsupportedField(Path(name)));
    return;
  }
}

}  // namespace pdserve::router
