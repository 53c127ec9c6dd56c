// What goes wrong with a request, in the form that OpenAI's clients read: a status and
// {"error":{message,type,param,code}}. Values; no thread, no I/O.
#ifndef PDSERVE_ROUTER_ERRORS_H_
#define PDSERVE_ROUTER_ERRORS_H_

#include <string>
#include <string_view>
#include <variant>

#include "absl/time/time.h"

namespace pdserve::router {

struct ApiError {
  int status = 400;
  std::string code;     // empty: null
  std::string message;  // for people
  std::string param;    // path of the field, like messages[2].content; empty: null
  std::string type = "invalid_request_error";
  absl::Duration retry_after;  // above zero: a Retry-After header
  std::string allow;           // of a 405
  bool retry_is_useless = false;
  bool must_close = false;  // the connection ends with it
};

/// A value, or why there is none.
template <typename T>
using Result = std::variant<T, ApiError>;

ApiError InvalidType(std::string_view param, std::string_view expected);
ApiError InvalidValue(std::string_view param, std::string_view message);
ApiError MissingField(std::string_view param);
ApiError UnsupportedField(std::string_view param);
ApiError InvalidJson(std::string_view why);
ApiError UnsupportedMedia(std::string_view message);
ApiError TooManyRequests();
/// 503: no node, draining. `retry_after` is put into [1 s, 120 s].
ApiError Overloaded(std::string_view message, absl::Duration retry_after);
/// 503: this process takes and finishes no more.
ApiError ShuttingDown();
ApiError DeadlineExceeded();
/// 502: the nodes failed at it.
ApiError NodeFailed(std::string_view message);
/// 400: a node will never take what the request asks for.
ApiError Unservable(std::string_view message);
ApiError NotFound(std::string_view code, std::string_view message);

/// {"error":{...}}
std::string ErrorJson(const ApiError& error);

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_ERRORS_H_
