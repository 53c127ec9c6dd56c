#include "engine/checkpoint/json_text.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace pdserve::engine {
namespace {

constexpr int kMaxDepth = 64;
constexpr size_t kMaxBytes = size_t{256} << 20;

// Brackets outside texts, whether the rest is JSON or not.
bool IsTooDeep(std::string_view text) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_text = !in_text;
    if (in_text && c == '\\') ++i;
    if (in_text) continue;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > kMaxDepth) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view but) {
  using Json = nlohmann::json;
  if (text.size() > kMaxBytes) {
    return absl::InvalidArgumentError(absl::StrCat(text.size(), " bytes are over the limit"));
  }
  if (IsTooDeep(text)) return absl::InvalidArgumentError("is nested too deep");
  const auto keep = [but](int depth, Json::parse_event_t event, Json& parsed) {
    return but.empty() || depth != 1 || event != Json::parse_event_t::key ||
           parsed.get_ref<const std::string&>() != but;
  };
  Json json = Json::parse(text.begin(), text.end(), keep, false);
  if (json.is_discarded()) return absl::InvalidArgumentError("is not JSON");
  if (!json.is_object()) return absl::InvalidArgumentError("is not a JSON object");
  return json;
}

}  // namespace pdserve::engine
