#include "router/routes.h"

#include <array>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "spdlog/fmt/fmt.h"

namespace pdserve::router {
namespace {

struct Entry {
  std::string_view path;
  RouteKind kind;
  bool is_post;
};

constexpr std::array<Entry, 7> kRoutes = {{
    {"/chat/completions", RouteKind::kChat, true},
    {"/completions", RouteKind::kCompletions, true},
    {"/models", RouteKind::kModels, false},
    {"/health", RouteKind::kHealth, false},
    {"/livez", RouteKind::kLive, false},
    {"/readyz", RouteKind::kReady, false},
    {"/metrics", RouteKind::kMetrics, false},
}};
constexpr std::string_view kModelPrefix = "/models/";

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// A '%' that is not followed by two digits stands for itself.
std::string PercentDecode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = high >= 0 ? HexDigit(text[i + 2]) : -1;
    if (low < 0) {
      decoded.push_back(text[i]);
      continue;
    }
    decoded.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return decoded;
}

// Of an absolute target, as proxies are asked for it, what comes after the host.
std::string_view WithoutAuthority(std::string_view target) {
  const size_t scheme = target.find("://");
  if (scheme == std::string_view::npos || scheme != target.find_first_of(":/?#")) return target;
  target.remove_prefix(scheme + 3);
  const size_t path = target.find_first_of("/?#");
  return path == std::string_view::npos ? "/" : target.substr(path);
}

std::string_view Normalise(std::string_view target) {
  target = WithoutAuthority(target);
  std::string_view path = target.substr(0, target.find_first_of("?#"));
  if (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  if (path.substr(0, 4) == "/v1/") path.remove_prefix(3);
  return path;
}

std::optional<ApiError> CheckMethod(std::string_view method, bool is_post) {
  if (is_post ? method == "POST" : method == "GET" || method == "HEAD") return std::nullopt;
  ApiError error;
  error.status = 405;
  error.code = "method_not_allowed";
  error.allow = is_post ? "POST" : "GET, HEAD";
  error.message = fmt::format("{} is not allowed here; use {}", method, error.allow);
  return error;
}

ApiError UnknownRoute(std::string_view path) {
  return NotFound("not_found",
                  fmt::format("there is no {}; supported are POST /v1/chat/completions, "
                              "POST /v1/completions, GET /v1/models, GET /v1/models/ID, "
                              "GET /health, GET /livez, GET /readyz, GET /metrics",
                              path.substr(0, 200)));
}

}  // namespace

Result<Route> FindRoute(std::string_view method, std::string_view target) {
  const std::string_view path = Normalise(target);
  for (const Entry& entry : kRoutes) {
    if (entry.path != path) continue;
    if (auto error = CheckMethod(method, entry.is_post)) return *error;
    return Route{entry.kind, ""};
  }
  if (path.size() > kModelPrefix.size() && path.substr(0, kModelPrefix.size()) == kModelPrefix) {
    if (auto error = CheckMethod(method, /*is_post=*/false)) return *error;
    return Route{RouteKind::kModel, PercentDecode(path.substr(kModelPrefix.size()))};
  }
  return UnknownRoute(path);
}

std::string_view RouteName(RouteKind kind) {
  switch (kind) {
    case RouteKind::kChat:
      return "chat_completions";
    case RouteKind::kCompletions:
      return "completions";
    case RouteKind::kModels:
    case RouteKind::kModel:
      return "models";
    case RouteKind::kHealth:
      return "health";
    case RouteKind::kLive:
      return "livez";
    case RouteKind::kReady:
      return "readyz";
    case RouteKind::kMetrics:
      return "metrics";
  }
  return "other";
}

}  // namespace pdserve::router
