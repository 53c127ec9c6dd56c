// One TCP connection of the tcp transport: frames in, frames out. The socket is non-blocking and
// read and written only when it is ready, so the kernel never holds an address of ours between two
// calls: a payload can be sent to another place, or a link closed, between any two reads.
// Owner: the transport. Thread: the pump's.
#ifndef PDSERVE_KVTRANSFER_TCP_LINK_H_
#define PDSERVE_KVTRANSFER_TCP_LINK_H_

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kvtransfer/transport.h"
#include "kvtransfer/wire.h"

namespace pdserve::kvtransfer {

/// What the links of a transport share. Callbacks are valid in a running Poll.
struct TcpContext {
  explicit TcpContext(const TransportOptions& transport_options);

  TransportOptions options;
  boost::asio::io_context io{1};
  TransportEvents* events = nullptr;
  std::function<void(LinkId)> forget;  // a link has ended; before its OnClosed
  std::vector<std::byte> scratch;      // where unwanted payload goes
};

class TcpLink : public std::enable_shared_from_this<TcpLink> {
 public:
  enum class State { kConnecting, kOpen, kClosing, kClosed };

  TcpLink(TcpContext* context, LinkId id);

  /// `host:port`; the host is a number or a name.
  void Connect(const std::string& address);
  void Adopt(boost::asio::ip::tcp::socket socket);
  void Send(const Message& message);
  void Abandon(OpId op);
  void Close(absl::Status reason);

  LinkId id() const { return id_; }
  State state() const { return state_; }

 private:
  enum class Phase { kHeader, kControl, kPayload };

  struct Outgoing {
    OpId op;
    std::string head;                               // frame header and control
    std::vector<std::span<const std::byte>> parts;  // head, then the payload: what is left of it
    size_t next_part = 0;
  };
  struct Ended {
    OpId op;
    bool sent = false;  // else received
    absl::Status status;
  };

  void ConnectTo(const boost::asio::ip::tcp::endpoint& endpoint);
  void Open();
  void PostFlush();
  void WaitToRead();
  void WaitToWrite();
  void ReadSome();
  void WriteSome();
  size_t WriteOnce(boost::system::error_code& error);
  void TakeWritten(size_t bytes);
  size_t ReadOnce(boost::system::error_code& error);
  void TakeRead(size_t bytes);
  void HeaderComplete();
  void ControlComplete();
  void PayloadTaken(size_t bytes);
  void StartHeader();
  void Deliver();
  void Finish();
  bool open() const { return state_ == State::kOpen; }

  TcpContext* const context_;
  const LinkId id_;
  State state_ = State::kConnecting;
  absl::Status reason_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::ip::tcp::resolver resolver_;
  int waits_ = 0;  // handlers that have not run

  Phase phase_ = Phase::kHeader;
  size_t filled_ = 0;  // of the header, the control, or the current part
  std::array<std::byte, kFrameHeaderBytes> header_bytes_;
  FrameHeader header_;
  std::string control_;
  Destination destination_;
  bool placed_ = false;  // the payload has a destination
  size_t next_part_ = 0;
  uint64_t payload_left_ = 0;

  std::deque<Outgoing> outgoing_;
  bool waiting_to_write_ = false;
  bool flush_posted_ = false;
  std::deque<Ended> ended_;
};

/// `host:port` or `[v6]:port` in two. InvalidArgument where it is neither.
absl::StatusOr<std::pair<std::string, std::string>> SplitAddress(const std::string& address);

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_TCP_LINK_H_
