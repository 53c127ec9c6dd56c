// TCP between processes and hosts: an Asio loop that the pump's thread runs, a listener, and links.
#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kvtransfer/tcp_link.h"
#include "kvtransfer/transport.h"

namespace pdserve::kvtransfer {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kHandlersPerPoll = 64;
constexpr absl::Duration kLongestWait = absl::Hours(1);
constexpr int kBacklog = 256;
constexpr auto kAcceptPause = std::chrono::milliseconds(100);  // out of descriptors

std::string Text(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return absl::StrCat(endpoint.address().is_v6() ? absl::StrCat("[", host, "]") : host, ":",
                      endpoint.port());
}

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(const TransportOptions& options)
      : context_(options),
        work_(asio::make_work_guard(context_.io)),
        acceptor_(context_.io),
        accept_timer_(context_.io) {
    context_.forget = [this](LinkId link) { Drop(link); };
  }

  absl::StatusOr<std::string> Listen(const std::string& address) override {
    ASSIGN_OR_RETURN(const auto split, SplitAddress(address));
    error_code error;
    tcp::resolver resolver(context_.io);
    const auto found = resolver.resolve(
        split.first, split.second, tcp::resolver::passive | tcp::resolver::numeric_service, error);
    if (error || found.empty()) return ListenError(address, error);
    const tcp::endpoint endpoint = found.begin()->endpoint();
    // NOLINTBEGIN(bugprone-unused-return-value): they return the error twice
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(kBacklog, error);
    // NOLINTEND(bugprone-unused-return-value)
    if (error) return ListenError(address, error);
    Accept();
    return Text(acceptor_.local_endpoint(error));
  }

  LinkId Connect(const std::string& address) override {
    const auto link = std::make_shared<TcpLink>(&context_, LinkId{next_link_++});
    links_[link->id()] = {link, false};
    link->Connect(address);
    return link->id();
  }

  void Send(LinkId link, Message message) override {
    if (TcpLink* found = Find(link)) found->Send(message);
  }

  void Abandon(LinkId link, OpId op) override {
    if (TcpLink* found = Find(link)) found->Abandon(op);
  }

  void Close(LinkId link, absl::Status reason) override {
    if (TcpLink* found = Find(link)) found->Close(std::move(reason));
  }

  void Poll(TransportEvents* events, absl::Duration timeout) override {
    context_.events = events;
    context_.io.restart();
    // The first may wait; a link under load must not keep the pump from its other work.
    size_t ran = context_.io.poll_one();
    if (ran == 0 && timeout > absl::ZeroDuration()) {
      ran = context_.io.run_one_for(
          absl::ToChronoMicroseconds(std::min<absl::Duration>(timeout, kLongestWait)));
    }
    for (int i = 0; i < kHandlersPerPoll && context_.io.poll_one() > 0; ++i) {
    }
    context_.events = nullptr;
  }

  void Wake() override {
    asio::post(context_.io, [] {});
  }

 private:
  struct Held {
    std::shared_ptr<TcpLink> link;
    bool inbound = false;
  };

  static absl::Status ListenError(const std::string& address, const error_code& error) {
    return absl::UnavailableError(absl::StrCat("can't listen at ", address, ": ", error.message()));
  }

  TcpLink* Find(LinkId link) {
    const auto found = links_.find(link);
    return found == links_.end() ? nullptr : found->second.link.get();
  }

  void Drop(LinkId link) {
    const auto found = links_.find(link);
    if (found == links_.end()) return;
    num_inbound_ -= found->second.inbound ? 1 : 0;
    links_.erase(found);
  }

  void Accept() {
    acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) return AcceptLater();
      if (num_inbound_ < context_.options.max_inbound_links) Adopt(std::move(socket));
      Accept();
    });
  }

  void AcceptLater() {
    accept_timer_.expires_after(kAcceptPause);
    accept_timer_.async_wait([this](const error_code& error) {
      if (!error) Accept();
    });
  }

  void Adopt(tcp::socket socket) {
    error_code error;
    const tcp::endpoint peer = socket.remote_endpoint(error);
    if (error) return;  // gone again
    const auto link = std::make_shared<TcpLink>(&context_, LinkId{next_link_++});
    links_[link->id()] = {link, true};
    ++num_inbound_;
    link->Adopt(std::move(socket));
    context_.events->OnAccepted(link->id(), Text(peer));
  }

  TcpContext context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  tcp::acceptor acceptor_;
  asio::steady_timer accept_timer_;
  uint64_t next_link_ = 1;
  uint32_t num_inbound_ = 0;
  absl::flat_hash_map<LinkId, Held> links_;
};

}  // namespace

std::unique_ptr<Transport> MakeTransport_tcp(const TransportOptions& options) {
  return std::make_unique<TcpTransport>(options);
}

}  // namespace pdserve::kvtransfer
