// One HTTP connection: reads requests one after the other, watches for the client's leaving while
// one is served, and sends what the exchange writes. Everything on its strand.
// Reading is always one outstanding read into `incoming_`, so that the end of the peer is seen in
// every phase; pipelined bytes wait there, up to a bound.
// A FIN says that the client sends no more, not that it is gone: what it has asked for is still
// served. A little is written at once, which a client that has closed answers with a reset. One of
// HTTP/1.0 that waits for its answer can't be asked so, and counts as gone.
#ifndef PDSERVE_ROUTER_CONNECTION_H_
#define PDSERVE_ROUTER_CONNECTION_H_

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "router/event.h"
#include "router/http.h"

namespace pdserve::router {

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(HttpServer* server, boost::asio::ip::tcp::socket socket);
  ~Connection();

  /// Serves until either side ends it. Keep the pointer alive.
  boost::asio::awaitable<void> Run(std::shared_ptr<Connection> self);
  /// Ends it at once, from any thread; with `only_idle` not while a request is served.
  static void Close(std::shared_ptr<Connection> connection, bool only_idle);

  Event& event() { return event_; }
  boost::asio::any_io_executor strand() { return socket_.get_executor(); }
  /// The peer is gone, or we have ended it ourselves.
  bool has_ended() const { return has_ended_; }
  absl::Time stuck_at() const;
  absl::Time now() const;
  void Write(std::string_view bytes);
  /// Until all is sent; false: it never will be.
  boost::asio::awaitable<bool> Flush();
  /// Closes with a reset.
  void Drop();

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class ReadEnd { kRequest, kClosed, kBroken };
  class BodyRoom;

  boost::asio::awaitable<bool> ServeOne();
  boost::asio::awaitable<ReadEnd> ReadRequest(Parser& parser, BodyRoom& room,
                                              std::optional<ApiError>& broken);
  void SkipEmptyLines();
  /// Feeds the parser what is there. False: more bytes are needed.
  bool Parse(Parser& parser, BodyRoom& room, std::optional<ApiError>& broken);
  /// Waits for more bytes. False: the peer has ended, or the time is over.
  boost::asio::awaitable<bool> Fill(absl::Time deadline);
  boost::asio::awaitable<void> Linger();
  size_t unsent_bytes() const { return sending_.size() - sent_ + pending_.size(); }
  void StartRead();
  void OnPeerShut();
  void StartWrite();

  HttpServer* const server_;
  boost::asio::ip::tcp::socket socket_;
  Event event_;
  boost::beast::flat_buffer incoming_;
  std::array<char, 16384> read_chunk_;  // apart, as `incoming_` shrinks while a read is outstanding
  bool is_reading_ = false;
  Exchange* serving_ = nullptr;  // the request in progress
  bool is_watching_ = false;     // for a reset
  bool has_peer_shut_ = false;   // it sends no more, but may still read
  bool has_ended_ = false;       // an error, or our own end
  bool is_idle_close_wanted_ = false;
  std::string sending_;  // being written; [0, sent_) is with the kernel
  size_t sent_ = 0;
  std::string pending_;
  bool is_writing_ = false;
  absl::Time progress_at_;  // when bytes last went out
};

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_CONNECTION_H_
