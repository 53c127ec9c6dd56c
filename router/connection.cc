#include "router/connection.h"

#include <algorithm>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "router/random.h"
#include "spdlog/fmt/fmt.h"

namespace pdserve::router {

namespace asio = boost::asio;
namespace http = boost::beast::http;

namespace {

// Pipelined bytes that wait while a request is served, beyond one header.
constexpr size_t kReadAheadBytes = 64 << 10;
// What a slow reader may leave with us: above the first for a moment, above the second not at all.
constexpr size_t kMaxUnsentBytes = 1 << 20;
constexpr size_t kFarTooManyBytes = 64 << 20;
constexpr absl::Duration kMoment = absl::Seconds(1);
// Else the kernel takes megabytes for a reader that is slow, before we notice.
constexpr int kKernelBufferBytes = 256 << 10;
// A request, however slowly its bytes come, is read for so many idle timeouts at most.
constexpr int kIdleTimeoutsToRead = 4;
constexpr absl::Duration kLinger = absl::Seconds(2);
constexpr size_t kLongestRequestId = 128;

std::string Header(const http::request<http::string_body>& request, std::string_view name) {
  const auto value = request[boost::beast::string_view(name.data(), name.size())];
  return std::string(value.data(), value.size());
}

std::string RequestId(const std::string& from_client) {
  const bool is_printable = std::all_of(from_client.begin(), from_client.end(),
                                        [](char c) { return c > 0x20 && c < 0x7f; });
  if (!from_client.empty() && from_client.size() <= kLongestRequestId && is_printable) {
    return from_client;
  }
  return fmt::format("req-{:016x}", RandomBits());
}

HttpRequest RequestFrom(http::request<http::string_body>& message) {
  HttpRequest request;
  const auto method = message.method_string();
  request.method.assign(method.data(), method.size());
  const auto target = message.target();
  request.target.assign(target.data(), target.size());
  request.content_type = Header(message, "content-type");
  request.content_encoding = Header(message, "content-encoding");
  request.origin = Header(message, "origin");
  request.id = RequestId(Header(message, "x-request-id"));
  request.body = std::move(message.body());
  request.is_old = message.version() < 11;
  request.keeps_alive = message.keep_alive();
  return request;
}

ApiError BrokenRequest(int status, std::string code, std::string message) {
  ApiError error;
  error.status = status;
  error.code = std::move(code);
  error.message = std::move(message);
  return error;
}

ApiError ErrorOf(const boost::system::error_code& error, const HttpOptions& options) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return BrokenRequest(
        431, "header_too_large",
        fmt::format("the header is longer than {} bytes", options.max_header_bytes));
  }
  if (error == http::error::body_limit) {
    return BrokenRequest(413, "body_too_large",
                         fmt::format("the body is longer than {} bytes", options.max_body_bytes));
  }
  return BrokenRequest(400, "bad_request", fmt::format("not HTTP/1.1: {}", error.message()));
}

// Only chunks are undone here. What a proxy before us may take for another framing is not guessed
// at.
bool HasUnknownCoding(const http::request<http::string_body>& message) {
  const auto codings = message.equal_range(http::field::transfer_encoding);
  return std::any_of(codings.first, codings.second, [](const auto& field) {
    const auto value = field.value();
    return !absl::EqualsIgnoreCase(absl::string_view(value.data(), value.size()), "chunked");
  });
}

}  // namespace

// What a request's body takes of the room that all connections share: bytes that have come, not
// what is announced, else announcing would be enough to keep others out.
class Connection::BodyRoom {
 public:
  explicit BodyRoom(HttpServer* server) : server_(server) {}
  BodyRoom(const BodyRoom&) = delete;
  BodyRoom& operator=(const BodyRoom&) = delete;
  ~BodyRoom() { server_->GiveRoom(bytes_); }

  bool GrowTo(size_t bytes) {
    const auto more = static_cast<int64_t>(bytes) - bytes_;
    if (more > 0 && !server_->TakeRoom(more)) return false;
    bytes_ = static_cast<int64_t>(bytes);
    return true;
  }

 private:
  HttpServer* const server_;
  int64_t bytes_ = 0;
};

Connection::Connection(HttpServer* server, asio::ip::tcp::socket socket)
    : server_(server),
      socket_(std::move(socket)),
      event_(socket_.get_executor(), server->clock()),
      incoming_(static_cast<size_t>(server->options().max_header_bytes) + kReadAheadBytes) {
  boost::system::error_code ignored;
  Ignore(socket_.set_option(asio::ip::tcp::no_delay(true), ignored));
  Ignore(socket_.set_option(asio::socket_base::send_buffer_size(kKernelBufferBytes), ignored));
}

Connection::~Connection() { server_->Forget(this); }

void Connection::StartRead() {
  if (is_reading_ || has_ended_ || has_peer_shut_) return;
  const size_t room = incoming_.max_size() - incoming_.size();
  if (room == 0) return;  // a client that pipelines so much is not watched meanwhile
  is_reading_ = true;
  socket_.async_read_some(
      asio::buffer(read_chunk_.data(), std::min(room, read_chunk_.size())),
      [self = shared_from_this()](const boost::system::error_code& error, size_t count) {
        self->is_reading_ = false;
        const auto space = self->incoming_.prepare(count);
        asio::buffer_copy(space, asio::buffer(self->read_chunk_.data(), count));
        self->incoming_.commit(count);
        if (error == asio::error::eof) {
          self->OnPeerShut();
        } else if (error) {
          self->has_ended_ = true;
        } else if (self->serving_ != nullptr) {
          self->StartRead();
        }
        self->event_.Notify();
      });
}

void Connection::OnPeerShut() {
  has_peer_shut_ = true;
  if (serving_ == nullptr) return;
  if (!serving_->Probe()) has_ended_ = true;
  if (has_ended_ || std::exchange(is_watching_, true)) return;
  // Nothing is read any more, so that only this tells of a reset.
  socket_.async_wait(asio::socket_base::wait_error,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                       if (!error) self->has_ended_ = true;
                       self->event_.Notify();
                     });
}

void Connection::Write(std::string_view bytes) {
  if (has_ended_) return;
  if (unsent_bytes() == 0) progress_at_ = server_->clock()->Now();
  pending_.append(bytes);
  if (!is_writing_) StartWrite();
}

absl::Time Connection::now() const { return server_->clock()->Now(); }

absl::Time Connection::stuck_at() const {
  if (unsent_bytes() <= kMaxUnsentBytes) return absl::InfiniteFuture();
  return unsent_bytes() > kFarTooManyBytes ? absl::InfinitePast() : progress_at_ + kMoment;
}

void Connection::StartWrite() {
  if (sent_ == sending_.size()) {
    sending_.clear();
    sent_ = 0;
    sending_.swap(pending_);
  }
  if (sending_.empty()) return;
  is_writing_ = true;
  socket_.async_write_some(
      asio::buffer(sending_.data() + sent_, sending_.size() - sent_),
      [self = shared_from_this()](const boost::system::error_code& error, size_t count) {
        self->is_writing_ = false;
        self->sent_ += count;
        self->progress_at_ = self->server_->clock()->Now();
        if (error) {
          self->has_ended_ = true;
        } else {
          self->StartWrite();
        }
        self->event_.Notify();
      });
}

asio::awaitable<bool> Connection::Fill(absl::Time deadline) {
  const size_t before = incoming_.size();
  for (;;) {
    if (incoming_.size() > before) co_return true;
    StartRead();
    if (!is_reading_) co_return false;
    if (!co_await event_.Wait(deadline)) co_return false;
    if (is_idle_close_wanted_ && serving_ == nullptr) co_return false;
  }
}

asio::awaitable<bool> Connection::Flush() {
  const absl::Duration patience = server_->options().idle_timeout;
  while (unsent_bytes() > 0) {
    if (has_ended_) co_return false;
    if (!co_await event_.Wait(progress_at_ + patience)) {
      if (server_->clock()->Now() >= progress_at_ + patience) co_return false;
    }
  }
  co_return true;
}

// Clients of old send an empty line behind a body, which is no part of the next request.
void Connection::SkipEmptyLines() {
  const auto text = [this] {
    return std::string_view(static_cast<const char*>(incoming_.data().data()), incoming_.size());
  };
  while (text().starts_with("\r\n")) incoming_.consume(2);
}

bool Connection::Parse(Parser& parser, BodyRoom& room, std::optional<ApiError>& broken) {
  if (!parser.got_some()) SkipEmptyLines();
  while (!parser.is_done() && incoming_.size() > 0) {
    boost::system::error_code error;
    const size_t used = parser.put(incoming_.data(), error);
    incoming_.consume(used);
    if (!room.GrowTo(parser.get().body().size())) {
      broken = Overloaded("too many long requests at once", absl::Seconds(1));
      return true;
    }
    if (error == http::error::need_more) return false;
    if (error) {
      broken = ErrorOf(error, server_->options());
      return true;
    }
    if (used == 0) return parser.is_done();
  }
  return parser.is_done();
}

asio::awaitable<Connection::ReadEnd> Connection::ReadRequest(Parser& parser, BodyRoom& room,
                                                             std::optional<ApiError>& broken) {
  const absl::Duration patience = server_->options().idle_timeout;
  absl::Time deadline = server_->clock()->Now() + patience;
  absl::Time end = absl::InfiniteFuture();  // from the first byte on
  bool was_told_to_go_on = false;
  while (!Parse(parser, room, broken)) {
    if (parser.is_header_done() && !was_told_to_go_on) {
      was_told_to_go_on = true;
      if (absl::EqualsIgnoreCase(Header(parser.get(), "expect"), "100-continue")) {
        Write("HTTP/1.1 100 Continue\r\n\r\n");
      }
    }
    const bool has_begun = parser.got_some() || incoming_.size() > 0;
    const absl::Time now = server_->clock()->Now();
    if (has_begun) end = std::min(end, now + kIdleTimeoutsToRead * patience);
    // A body may take its time, as long as it comes.
    if (parser.is_header_done()) deadline = std::min(end, now + patience);
    if (incoming_.size() == incoming_.max_size()) {
      broken = ErrorOf(http::error::header_limit, server_->options());
      co_return ReadEnd::kBroken;
    }
    if (co_await Fill(deadline)) continue;
    const bool is_cut_off = has_ended_ || has_peer_shut_;
    if (is_cut_off || !has_begun || is_idle_close_wanted_) co_return ReadEnd::kClosed;
    broken = BrokenRequest(408, "request_timeout", "the request did not come to its end in time");
    co_return ReadEnd::kBroken;
  }
  co_return broken ? ReadEnd::kBroken : ReadEnd::kRequest;
}

asio::awaitable<bool> Connection::ServeOne() {
  Parser parser;
  parser.eager(true);
  parser.header_limit(static_cast<uint32_t>(server_->options().max_header_bytes));
  parser.body_limit(static_cast<uint64_t>(server_->options().max_body_bytes));
  std::optional<ApiError> broken;
  BodyRoom room(server_);
  const ReadEnd end = co_await ReadRequest(parser, room, broken);
  if (end == ReadEnd::kClosed) co_return false;
  auto message = parser.release();
  if (!broken && HasUnknownCoding(message)) {
    broken = BrokenRequest(501, "unsupported_transfer_coding",
                           "of the transfer codings only chunked is known");
  }
  Exchange exchange(*this, RequestFrom(message), std::move(broken));
  serving_ = &exchange;
  if (has_peer_shut_) OnPeerShut();
  StartRead();
  co_await server_->Handle(exchange);
  serving_ = nullptr;
  const bool is_sent = co_await Flush();
  const bool goes_on = is_sent && end == ReadEnd::kRequest && !exchange.must_close() &&
                       !has_ended_ && !is_idle_close_wanted_;
  co_return goes_on;
}

// A close with unread bytes would reset the connection and could take the answer with it.
asio::awaitable<void> Connection::Linger() {
  if (has_ended_ || has_peer_shut_) co_return;
  boost::system::error_code ignored;
  Ignore(socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored));
  const absl::Time deadline = server_->clock()->Now() + kLinger;
  is_idle_close_wanted_ = false;
  do {
    incoming_.consume(incoming_.size());
  } while (co_await Fill(deadline));
}

asio::awaitable<void> Connection::Run(std::shared_ptr<Connection> self) {
  while (co_await self->ServeOne()) {
  }
  co_await self->Linger();
  boost::system::error_code ignored;
  Ignore(socket_.close(ignored));
  has_ended_ = true;
}

void Connection::Drop() {
  boost::system::error_code ignored;
  Ignore(socket_.set_option(asio::socket_base::linger(true, 0), ignored));
  Ignore(socket_.close(ignored));
  has_ended_ = true;
  event_.Notify();
}

void Connection::Close(std::shared_ptr<Connection> connection, bool only_idle) {
  const auto strand = connection->strand();
  asio::post(strand, [self = std::move(connection), only_idle] {
    self->is_idle_close_wanted_ = true;
    if (!only_idle) {
      boost::system::error_code ignored;
      Ignore(self->socket_.close(ignored));
      self->has_ended_ = true;
    }
    self->event_.Notify();
  });
}

}  // namespace pdserve::router
