// Which endpoint a request is for. Pure; any thread. Every route works with and without /v1 and
// with a trailing slash.
#ifndef PDSERVE_ROUTER_ROUTES_H_
#define PDSERVE_ROUTER_ROUTES_H_

#include <string>
#include <string_view>

#include "router/errors.h"

namespace pdserve::router {

enum class RouteKind { kChat, kCompletions, kModels, kModel, kHealth, kLive, kReady, kMetrics };

struct Route {
  RouteKind kind = RouteKind::kHealth;
  std::string model_id;  // kModel: decoded
};

/// 404 names the supported routes; 405 has `allow`. `target` as sent: path and query, or a whole
/// URL.
Result<Route> FindRoute(std::string_view method, std::string_view target);

/// Label of the route in metrics.
std::string_view RouteName(RouteKind kind);

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_ROUTES_H_
