// A peer made of a blocking socket, that says what it likes: for what no pump of ours would do.
#ifndef PDSERVE_TESTS_KVTRANSFER_RAW_PEER_H_
#define PDSERVE_TESTS_KVTRANSFER_RAW_PEER_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "kvtransfer/handshake.h"
#include "kvtransfer/wire.h"

namespace pdserve::kvtransfer {

class RawPeer {
 public:
  struct Frame {
    v1::Control control;
    std::string payload;
  };

  explicit RawPeer(int fd) : fd_(fd) {
    const timeval patience{60, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  }
  RawPeer(RawPeer&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~RawPeer() { Close(); }

  /// `address` is 127.0.0.1:port.
  static RawPeer Connect(const std::string& address) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to = Loopback(std::stoi(address.substr(address.rfind(':') + 1)));
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to), 0) << address;
    return RawPeer(fd);
  }

  static sockaddr_in Loopback(int port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
  }

  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  int fd() const { return fd_; }

  /// False once the other side has closed.
  bool Send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t sent = send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      at += static_cast<size_t>(sent);
    }
    return true;
  }
  bool Send(const v1::Control& control, const std::string& payload = "") {
    return Send(EncodeFrameHead(control.SerializeAsString(), payload.size()) + payload);
  }
  bool SayHello(const PumpOptions& as) {
    v1::Control control;
    *control.mutable_hello() = MakeHello(as, {});
    return Send(control);
  }

  /// Nothing once the other side has closed.
  std::optional<Frame> Read() {
    std::array<std::byte, kFrameHeaderBytes> bytes;
    if (!ReadExactly(bytes.data(), bytes.size())) return std::nullopt;
    const auto header = DecodeFrameHeader(bytes, {1 << 20, 1 << 30});
    EXPECT_TRUE(header.ok()) << header.status();
    if (!header.ok()) return std::nullopt;
    std::string control(header->control_bytes, '\0');
    Frame frame;
    frame.payload.resize(header->payload_bytes);
    if (!ReadExactly(control.data(), control.size())) return std::nullopt;
    if (!ReadExactly(frame.payload.data(), frame.payload.size())) return std::nullopt;
    EXPECT_TRUE(frame.control.ParseFromString(control));
    return frame;
  }
  /// The next frame that is no heartbeat.
  std::optional<Frame> ReadWord() {
    std::optional<Frame> frame = Read();
    while (frame && frame->control.has_heartbeat()) frame = Read();
    return frame;
  }
  /// Waits for the other side to close; false: it has not.
  bool ReadUntilClosed() {
    char bytes[4096];
    ssize_t got;
    while ((got = recv(fd_, bytes, sizeof bytes, 0)) > 0) {
    }
    return got == 0 || errno == ECONNRESET;
  }

 private:
  bool ReadExactly(void* to, size_t bytes) {
    return bytes == 0 || recv(fd_, to, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }

  int fd_;
};

/// Accepts what a pump dials.
class RawListener {
 public:
  RawListener() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at = RawPeer::Loopback(0);
    socklen_t size = sizeof at;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&at), size), 0);
    EXPECT_EQ(listen(fd_, 64), 0);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size);
    address_ = "127.0.0.1:" + std::to_string(ntohs(at.sin_port));
  }
  ~RawListener() { close(fd_); }
  const std::string& address() const { return address_; }
  RawPeer Accept() { return RawPeer(accept(fd_, nullptr, nullptr)); }

 private:
  int fd_;
  std::string address_;
};

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_TESTS_KVTRANSFER_RAW_PEER_H_
