// The HTTP/1.1 server: accepts, limits, and gives each request to the handler as an Exchange. Knows
// no route. A connection and all that it does belong to its strand; HttpServer's methods may be
// called from any thread.
#ifndef PDSERVE_ROUTER_HTTP_H_
#define PDSERVE_ROUTER_HTTP_H_

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "router/errors.h"
#include "router/event.h"

namespace pdserve::router {

class Connection;

/// For calls on sockets whose failure changes nothing: they are being closed anyway.
inline void Ignore(const boost::system::error_code& /*error*/) {}

struct HttpRequest {
  std::string method;
  std::string target;  // as sent: path and query, or a whole URL
  std::string content_type;
  std::string content_encoding;
  std::string origin;
  std::string id;  // x-request-id: the client's if it is short and printable
  std::string body;
  bool is_old = false;      // HTTP/1.0: no chunks
  bool keeps_alive = true;  // what the client wants
};

struct Answer {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  absl::Duration retry_after;
  std::string allow;
  bool retry_is_useless = false;
  bool must_close = false;  // this connection, after the answer
};

/// Shows a stream's client that we are there. One newline: a blank line would end an event that
/// never began.
inline constexpr std::string_view kStreamComment = ": ping\n";

Answer AnswerFrom(const ApiError& error);

/// One request and its answer: a whole one, or a stream of server-sent events. Nothing here blocks:
/// bytes wait in the connection's buffer, and `stuck_at` says when the handler has to give up.
class Exchange {
 public:
  Exchange(Connection& connection, HttpRequest request, std::optional<ApiError> broken);

  const HttpRequest& request() const { return request_; }
  /// The request could not be read; this is what to answer.
  const std::optional<ApiError>& broken() const { return broken_; }

  /// The client is gone, or the server ends: the answer is of no use any more.
  bool client_left() const;
  /// Notified when the client leaves and when buffered bytes were sent, and by the handler's parts.
  Event& event();
  boost::asio::any_io_executor strand();

  void Respond(const Answer& answer);  // instead of a stream, once
  void StartStream();
  bool has_started() const { return has_started_; }
  void Send(std::string_view events);
  /// must_close: an error event was the last.
  void EndStream(bool must_close);
  /// When the client counts as too slow: it leaves more unread than the kernel's buffer and ours
  /// hold, and takes none of it. Infinite while it keeps up.
  absl::Time stuck_at() const;
  /// Writes what means nothing to a client that waits, and makes one that is gone show it. False:
  /// nothing can be written at this point.
  bool Probe();
  /// Until all is with the kernel; false: it never will be.
  boost::asio::awaitable<bool> Flush();
  /// Closes the connection at once; the client sees a reset.
  void Drop();
  bool must_close() const { return must_close_; }
  int status() const { return status_; }  // of what was sent; 0 before

 private:
  Connection& connection_;
  const HttpRequest request_;
  const std::optional<ApiError> broken_;
  bool has_started_ = false;
  bool is_streaming_ = false;
  bool must_close_ = false;
  int status_ = 0;
};

struct HttpOptions {
  int64_t max_connections = 4096;
  int64_t max_body_bytes = 8 << 20;
  int64_t max_header_bytes = 32 << 10;
  absl::Duration idle_timeout = absl::Seconds(75);
  int64_t max_bodies_bytes = 256 << 20;  // of all requests at once; at least one has room
};

using HttpHandler = std::function<boost::asio::awaitable<void>(Exchange&)>;

class HttpServer {
 public:
  HttpServer(const HttpOptions& options, boost::asio::io_context& io, HttpHandler handler,
             const Clock* clock);

  /// Unavailable names the address where it can't listen. host:port, [::1]:port; port 0 takes any.
  absl::Status Listen(const std::string& address);
  std::string address() const;

  /// Takes no more connections; closes those without a request.
  void StopListening();
  /// Closes every connection and waits until their coroutines have ended.
  void Close();

  const HttpOptions& options() const { return options_; }
  const Clock* clock() const { return clock_; }
  bool is_closing() const;
  boost::asio::awaitable<void> Handle(Exchange& exchange) { return handler_(exchange); }
  /// Room for bytes of bodies, of all connections together. False: there is none, and none taken.
  bool TakeRoom(int64_t bytes);
  void GiveRoom(int64_t bytes) { body_room_ += bytes; }

 private:
  friend class Connection;
  boost::asio::awaitable<void> Accept();
  void Take(boost::asio::ip::tcp::socket socket);
  void Forget(Connection* connection);
  void CloseConnections(bool only_idle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const HttpOptions options_;
  boost::asio::io_context& io_;
  const HttpHandler handler_;
  const Clock* const clock_;
  std::atomic<int64_t> body_room_;
  boost::asio::ip::tcp::acceptor acceptor_;  // on its own strand
  mutable Mutex mutex_;
  CondVar changed_;
  bool is_accepting_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<Connection*, std::weak_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_HTTP_H_
