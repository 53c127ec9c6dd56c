#include "router/messages.h"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "spdlog/fmt/fmt.h"

namespace pdserve::router {
namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};
// Given to the template as they are.
constexpr std::array<std::string_view, 2> kPassedOn = {"name", "tool_call_id"};

// One element of a content array; only text is understood.
std::optional<ApiError> AppendPart(const Json& part, const std::string& path, std::string* text) {
  if (!part.is_object()) return InvalidType(path, "an object with type and text");
  Fields fields(part, path + ".");
  const std::optional<std::string> type = fields.String("type");
  if (fields.error()) return fields.error();
  if (!type) return MissingField(path + ".type");
  if (*type != "text") {
    ApiError error = InvalidValue(path + ".type", fmt::format("'{}' is not supported", *type));
    error.code = "unsupported_value";
    return error;
  }
  const std::optional<std::string> piece = fields.String("text");
  fields.RefuseRest();
  if (fields.error()) return fields.error();
  if (!piece) return MissingField(path + ".text");
  *text += *piece;
  return std::nullopt;
}

Result<std::string> ReadContent(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) return InvalidType(path, "a string or an array of text parts");
  if (content.empty()) return InvalidValue(path, "must not be an empty array");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    if (auto error = AppendPart(content[i], fmt::format("{}[{}]", path, i), &text)) return *error;
  }
  return text;
}

Result<Json> ReadMessage(const Json& message, const std::string& path) {
  if (!message.is_object()) return InvalidType(path, "an object with role and content");
  Fields fields(message, path + ".");
  const std::optional<std::string> role = fields.String("role");
  if (const auto& error = fields.error()) return *error;
  if (!role) return MissingField(path + ".role");
  bool is_known = false;
  for (const std::string_view known : kRoles) is_known = is_known || *role == known;
  if (!is_known) return InvalidValue(path + ".role", fmt::format("unknown role '{}'", *role));
  Json result = {{"role", *role == "developer" ? "system" : *role}};
  for (const std::string_view name : kPassedOn) {
    if (const auto value = fields.String(name)) result[std::string(name)] = *value;
  }
  const Json* content = fields.Find("content");
  fields.RefuseRest();
  if (const auto& error = fields.error()) return *error;
  if (content == nullptr) return MissingField(path + ".content");
  Result<std::string> text = ReadContent(*content, path + ".content");
  if (auto* error = std::get_if<ApiError>(&text)) return *error;
  result["content"] = std::get<std::string>(std::move(text));
  return result;
}

}  // namespace

Result<std::string> ReadMessages(const Json& messages) {
  if (!messages.is_array()) return InvalidType("messages", "an array of messages");
  if (messages.empty()) return InvalidValue("messages", "must not be empty");
  Json result = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    Result<Json> message = ReadMessage(messages[i], fmt::format("messages[{}]", i));
    if (auto* error = std::get_if<ApiError>(&message)) return *error;
    result.push_back(std::get<Json>(std::move(message)));
  }
  return result.dump();
}

}  // namespace pdserve::router
