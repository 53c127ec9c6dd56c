#include "router/http.h"

#include <algorithm>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/http/status.hpp>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "router/connection.h"
#include "spdlog/fmt/fmt.h"

namespace pdserve::router {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

std::string StatusLine(int status) {
  const auto reason =
      boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(status));
  return fmt::format("HTTP/1.1 {} {}\r\n", status, std::string_view(reason.data(), reason.size()));
}

std::string CommonHeaders(const HttpRequest& request, bool must_close, absl::Time now) {
  return fmt::format("Date: {}\r\nx-request-id: {}\r\nConnection: {}\r\n",
                     absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", now, absl::UTCTimeZone()),
                     request.id, must_close ? "close" : "keep-alive");
}

// "host:port" or "[v6]:port".
absl::StatusOr<tcp::endpoint> EndpointOf(asio::io_context& io, const std::string& address) {
  const auto complain = [&](std::string_view why) {
    return absl::UnavailableError(fmt::format("cannot listen on {}: {}", address, why));
  };
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port < 0 || port > 65535) {
    return complain("it is not host:port");
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  boost::system::error_code error;
  const auto number = asio::ip::make_address(host, error);
  if (!error) return tcp::endpoint(number, static_cast<uint16_t>(port));
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(host, std::to_string(port), error);
  if (error || found.empty()) return complain(error.message());
  return found.begin()->endpoint();
}

}  // namespace

Answer AnswerFrom(const ApiError& error) {
  Answer answer;
  answer.status = error.status;
  answer.body = ErrorJson(error);
  answer.retry_after = error.retry_after;
  answer.allow = error.allow;
  answer.retry_is_useless = error.retry_is_useless;
  answer.must_close = error.must_close;
  return answer;
}

Exchange::Exchange(Connection& connection, HttpRequest request, std::optional<ApiError> broken)
    : connection_(connection), request_(std::move(request)), broken_(std::move(broken)) {}

bool Exchange::client_left() const { return connection_.has_ended(); }
Event& Exchange::event() { return connection_.event(); }
asio::any_io_executor Exchange::strand() { return connection_.strand(); }
absl::Time Exchange::stuck_at() const { return connection_.stuck_at(); }
void Exchange::Drop() { connection_.Drop(); }
asio::awaitable<bool> Exchange::Flush() { return connection_.Flush(); }

void Exchange::Respond(const Answer& answer) {
  status_ = answer.status;
  has_started_ = true;
  must_close_ =
      answer.must_close || !request_.keeps_alive || request_.is_old || broken_.has_value();
  std::string text = StatusLine(answer.status);
  text += CommonHeaders(request_, must_close_, connection_.now());
  text += fmt::format("Content-Type: {}\r\nContent-Length: {}\r\n", answer.content_type,
                      answer.body.size());
  if (answer.retry_after > absl::ZeroDuration()) {
    const int64_t milliseconds = absl::ToInt64Milliseconds(answer.retry_after);
    text += fmt::format("Retry-After: {}\r\nretry-after-ms: {}\r\n", (milliseconds + 999) / 1000,
                        milliseconds);
  }
  if (!answer.allow.empty()) text += fmt::format("Allow: {}\r\n", answer.allow);
  if (answer.retry_is_useless) text += "x-should-retry: false\r\n";
  text += "\r\n";
  if (request_.method != "HEAD") text += answer.body;
  connection_.Write(text);
}

void Exchange::StartStream() {
  status_ = 200;
  has_started_ = true;
  is_streaming_ = true;
  must_close_ = !request_.keeps_alive || request_.is_old;
  std::string text = StatusLine(200) + CommonHeaders(request_, must_close_, connection_.now());
  text += "Content-Type: text/event-stream\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
  if (!request_.is_old) text += "Transfer-Encoding: chunked\r\n";
  connection_.Write(text + "\r\n");
}

void Exchange::Send(std::string_view events) {
  if (events.empty()) return;
  if (request_.is_old) return connection_.Write(events);
  connection_.Write(fmt::format("{:x}\r\n{}\r\n", events.size(), events));
}

void Exchange::EndStream(bool must_close) {
  must_close_ = must_close_ || must_close;
  is_streaming_ = false;
  if (!request_.is_old) connection_.Write("0\r\n\r\n");
}

bool Exchange::Probe() {
  if (is_streaming_) {
    Send(kStreamComment);
  } else if (!has_started_) {
    if (request_.is_old) return false;
    connection_.Write("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return true;
}

HttpServer::HttpServer(const HttpOptions& options, asio::io_context& io, HttpHandler handler,
                       const Clock* clock)
    : options_(options),
      io_(io),
      handler_(std::move(handler)),
      clock_(clock),
      body_room_(std::max(options.max_bodies_bytes, options.max_body_bytes)),
      acceptor_(asio::make_strand(io)) {}

absl::Status HttpServer::Listen(const std::string& address) {
  auto endpoint = EndpointOf(io_, address);
  if (!endpoint.ok()) return endpoint.status();
  boost::system::error_code error;
  error = acceptor_.open(endpoint->protocol(), error);
  if (!error) error = acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) error = acceptor_.bind(*endpoint, error);
  if (!error) error = acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return absl::UnavailableError(fmt::format("cannot listen on {}: {}", address, error.message()));
  }
  {
    MutexLock lock(&mutex_);
    is_accepting_ = true;
  }
  asio::co_spawn(acceptor_.get_executor(), Accept(), asio::detached);
  return absl::OkStatus();
}

std::string HttpServer::address() const {
  boost::system::error_code error;
  const tcp::endpoint endpoint = acceptor_.local_endpoint(error);
  if (error) return "";
  std::string host = endpoint.address().to_string();
  if (endpoint.address().is_v6()) host = "[" + host + "]";
  return fmt::format("{}:{}", host, endpoint.port());
}

bool HttpServer::is_closing() const {
  MutexLock lock(&mutex_);
  return is_closing_;
}

asio::awaitable<void> HttpServer::Accept() {
  while (acceptor_.is_open()) {
    auto [error, socket] = co_await acceptor_.async_accept(asio::make_strand(io_),
                                                           asio::as_tuple(asio::use_awaitable));
    if (!error) {
      Take(std::move(socket));
    } else if (acceptor_.is_open()) {  // out of descriptors: wait for some to come back
      asio::steady_timer pause(acceptor_.get_executor(), std::chrono::milliseconds(50));
      co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
    }
  }
  MutexLock lock(&mutex_);
  is_accepting_ = false;
  changed_.NotifyAll();
}

void HttpServer::Take(tcp::socket socket) {
  const auto connection = std::make_shared<Connection>(this, std::move(socket));
  bool is_full = false;
  {
    MutexLock lock(&mutex_);
    if (is_closing_) return;
    is_full = connections_.size() >= static_cast<size_t>(options_.max_connections);
    connections_[connection.get()] = connection;
  }
  if (!is_full) {
    asio::co_spawn(connection->strand(), connection->Run(connection), asio::detached);
    return;
  }
  // Lives until this little is written.
  const std::string body = ErrorJson(Overloaded("too many connections", absl::Seconds(1)));
  connection->Write(
      fmt::format("{}Retry-After: 1\r\nConnection: close\r\nContent-Type: application/json\r\n"
                  "Content-Length: {}\r\n\r\n{}",
                  StatusLine(503), body.size(), body));
}

bool HttpServer::TakeRoom(int64_t bytes) {
  if (body_room_.fetch_sub(bytes) >= bytes) return true;
  body_room_ += bytes;
  return false;
}

void HttpServer::Forget(Connection* connection) {
  MutexLock lock(&mutex_);
  connections_.erase(connection);
  changed_.NotifyAll();
}

// A connection whose last owner is letting go can't be asked any more, and need not be.
void HttpServer::CloseConnections(bool only_idle) {
  for (auto& [key, weak] : connections_) {
    if (auto connection = weak.lock()) Connection::Close(std::move(connection), only_idle);
  }
}

void HttpServer::StopListening() {
  asio::post(acceptor_.get_executor(), [this] {
    boost::system::error_code ignored;
    Ignore(acceptor_.close(ignored));
  });
  MutexLock lock(&mutex_);
  for (LastWait wait; is_accepting_;) wait.For(changed_, mutex_);
  CloseConnections(/*only_idle=*/true);
}

void HttpServer::Close() {
  {
    MutexLock lock(&mutex_);
    is_closing_ = true;
  }
  StopListening();
  MutexLock lock(&mutex_);
  CloseConnections(/*only_idle=*/false);
  for (LastWait wait; !connections_.empty();) wait.For(changed_, mutex_);
}

}  // namespace pdserve::router
