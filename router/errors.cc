#include "router/errors.h"

#include <algorithm>

#include "nlohmann/json.hpp"
#include "spdlog/fmt/fmt.h"

namespace pdserve::router {
namespace {

ApiError BadRequest(std::string_view code, std::string_view param, std::string message) {
  ApiError error;
  error.code = code;
  error.param = param;
  error.message = std::move(message);
  return error;
}

ApiError ServerError(int status, std::string_view code, std::string_view message) {
  ApiError error;
  error.status = status;
  error.type = "server_error";
  error.code = code;
  error.message = message;
  return error;
}

// What a client has sent comes back in messages: enough of it to be known again.
std::string Clipped(const std::string& text) {
  constexpr size_t kLongest = 1024;
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

}  // namespace

ApiError InvalidType(std::string_view param, std::string_view expected) {
  return BadRequest("invalid_type", param, fmt::format("'{}' must be {}", param, expected));
}

ApiError InvalidValue(std::string_view param, std::string_view message) {
  return BadRequest("invalid_value", param, fmt::format("'{}': {}", param, message));
}

ApiError MissingField(std::string_view param) {
  return BadRequest("missing_required_parameter", param, fmt::format("'{}' is required", param));
}

ApiError UnsupportedField(std::string_view param) {
  return BadRequest("unsupported_parameter", param,
                    fmt::format("'{}' is not supported by this server", param));
}

ApiError InvalidJson(std::string_view why) {
  return BadRequest("invalid_json", "", fmt::format("the body is not a JSON object: {}", why));
}

ApiError UnsupportedMedia(std::string_view message) {
  ApiError error = BadRequest("unsupported_media_type", "", std::string(message));
  error.status = 415;
  return error;
}

ApiError TooManyRequests() {
  ApiError error;
  error.status = 429;
  error.type = "rate_limit_error";
  error.code = "slow_down";
  error.message = "too many requests are in progress";
  error.retry_after = absl::Seconds(1);
  return error;
}

ApiError Overloaded(std::string_view message, absl::Duration retry_after) {
  ApiError error = ServerError(503, "server_is_overloaded", message);
  error.retry_after = std::clamp(retry_after, absl::Seconds(1), absl::Seconds(120));
  return error;
}

ApiError ShuttingDown() {
  ApiError error = Overloaded("the server is shutting down", absl::Seconds(5));
  error.must_close = true;
  return error;
}

ApiError DeadlineExceeded() {
  ApiError error = ServerError(504, "deadline_exceeded", "the request took longer than it may");
  error.retry_is_useless = true;
  return error;
}

ApiError NodeFailed(std::string_view message) { return ServerError(502, "node_failed", message); }

ApiError Unservable(std::string_view message) {
  return BadRequest("unservable_request", "", std::string(message));
}

ApiError NotFound(std::string_view code, std::string_view message) {
  ApiError error;
  error.status = 404;
  error.code = code;
  error.message = message;
  return error;
}

std::string ErrorJson(const ApiError& error) {
  using Json = nlohmann::ordered_json;
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? Json(nullptr) : Json(Clipped(text));
  };
  const Json body = {{"error",
                      {{"message", Clipped(error.message)},
                       {"type", error.type},
                       {"param", text_or_null(error.param)},
                       {"code", text_or_null(error.code)}}}};
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace pdserve::router
