#include "kvtransfer/tcp_link.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <span>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace pdserve::kvtransfer {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kTurnBytes = 1 << 20;  // read or written before others get their turn
constexpr size_t kScratchBytes = 64 << 10;
constexpr size_t kPartsPerCall = 32;  // of a gathered write or a scattered read

bool WouldBlock(const error_code& error) {
  return error == asio::error::would_block || error == asio::error::try_again ||
         error == asio::error::interrupted;
}

absl::Status Lost(const char* what, const error_code& error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", error.message()));
}

}  // namespace

absl::StatusOr<std::pair<std::string, std::string>> SplitAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon + 1 == address.size()) {
    return absl::InvalidArgumentError(absl::StrCat("'", address, "' is not host:port"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return std::pair(host, address.substr(colon + 1));
}

TcpContext::TcpContext(const TransportOptions& transport_options)
    : options(transport_options), scratch(kScratchBytes) {}

TcpLink::TcpLink(TcpContext* context, LinkId id)
    : context_(context), id_(id), socket_(context->io), resolver_(context->io) {}

void TcpLink::Connect(const std::string& address) {
  const auto split = SplitAddress(address);
  if (!split.ok()) return Close(split.status());
  const auto& [host, port] = *split;
  error_code not_a_number;
  const auto number = asio::ip::make_address(host, not_a_number);
  uint32_t port_number = 0;
  if (!not_a_number && absl::SimpleAtoi(port, &port_number) && port_number < 65536) {
    return ConnectTo({number, static_cast<uint16_t>(port_number)});
  }
  ++waits_;
  resolver_.async_resolve(
      host, port, tcp::resolver::numeric_service,
      [self = shared_from_this()](const error_code& error, const tcp::resolver::results_type& at) {
        --self->waits_;
        if (self->state_ != State::kConnecting) return self->Finish();
        if (error || at.empty()) return self->Close(Lost("can't resolve the peer's name", error));
        self->ConnectTo(at.begin()->endpoint());
      });
}

void TcpLink::ConnectTo(const tcp::endpoint& endpoint) {
  ++waits_;
  socket_.async_connect(endpoint, [self = shared_from_this()](const error_code& error) {
    --self->waits_;
    if (self->state_ != State::kConnecting) return self->Finish();
    if (error) return self->Close(Lost("can't connect", error));
    self->Open();
    if (self->open()) self->context_->events->OnConnected(self->id_);
  });
}

void TcpLink::Adopt(tcp::socket socket) {
  socket_ = std::move(socket);
  Open();
}

// The kernel tunes both buffers while their sizes are not set, beyond what we could ask for.
void TcpLink::Open() {
  error_code error;
  // NOLINTBEGIN(bugprone-unused-return-value): they return the error twice
  socket_.non_blocking(true, error);
  if (!error) socket_.set_option(tcp::no_delay(true), error);
  // NOLINTEND(bugprone-unused-return-value)
  if (error) return Close(Lost("can't set up the socket", error));
  state_ = State::kOpen;
  WaitToRead();
}

void TcpLink::Send(const Message& message) {
  if (!open() || outgoing_.size() >= context_->options.max_queued_messages) {
    ended_.push_back({message.op, true, absl::UnavailableError("the link is not open")});
    if (open()) Close(absl::ResourceExhaustedError("the peer does not take its messages"));
    return PostFlush();
  }
  uint64_t payload_bytes = 0;
  for (const auto& part : message.payload) payload_bytes += part.size();
  Outgoing& out = outgoing_.emplace_back();
  out.op = message.op;
  out.head = EncodeFrameHead(message.control, payload_bytes);
  out.parts.push_back(std::as_bytes(std::span(out.head)));
  for (const auto& part : message.payload) {
    if (!part.empty()) out.parts.push_back(part);
  }
  PostFlush();
}

void TcpLink::Abandon(OpId op) {
  if (!placed_ || destination_.op != op) return;
  placed_ = false;
  destination_.parts.clear();
  ended_.push_back({op, false, absl::CancelledError("the receive was abandoned")});
  PostFlush();
}

void TcpLink::Close(absl::Status reason) {
  if (state_ == State::kClosing || state_ == State::kClosed) return;
  state_ = State::kClosing;
  reason_ = std::move(reason);
  error_code ignored;
  resolver_.cancel();
  socket_.close(ignored);  // NOLINT(bugprone-unused-return-value)
  if (placed_) ended_.push_back({destination_.op, false, reason_});
  placed_ = false;
  for (const Outgoing& out : outgoing_) ended_.push_back({out.op, true, reason_});
  outgoing_.clear();
  PostFlush();
}

// Events come from within Poll only, so what a call of the owner has caused waits for this.
void TcpLink::PostFlush() {
  if (std::exchange(flush_posted_, true)) return;
  ++waits_;
  asio::post(context_->io, [self = shared_from_this()] {
    --self->waits_;
    self->flush_posted_ = false;
    self->Deliver();
    if (self->open()) return self->WriteSome();
    self->Finish();
  });
}

void TcpLink::WaitToRead() {
  ++waits_;
  socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const error_code&) {
    --self->waits_;
    if (!self->open()) return self->Finish();
    self->ReadSome();
  });
}

void TcpLink::WaitToWrite() {
  ++waits_;
  waiting_to_write_ = true;
  socket_.async_wait(tcp::socket::wait_write, [self = shared_from_this()](const error_code&) {
    --self->waits_;
    self->waiting_to_write_ = false;
    if (!self->open()) return self->Finish();
    self->WriteSome();
  });
}

void TcpLink::WriteSome() {
  for (size_t turn = 0; open() && !waiting_to_write_ && !outgoing_.empty();) {
    error_code error;
    const size_t written = WriteOnce(error);
    if (WouldBlock(error)) return WaitToWrite();
    if (error) return Close(Lost("the link broke while sending", error));
    turn += written;
    TakeWritten(written);
    if (turn >= kTurnBytes && !outgoing_.empty()) return WaitToWrite();
  }
}

size_t TcpLink::WriteOnce(error_code& error) {
  std::array<asio::const_buffer, kPartsPerCall> buffers;
  size_t count = 0;
  for (const Outgoing& out : outgoing_) {
    for (size_t i = out.next_part; i < out.parts.size() && count < buffers.size(); ++i) {
      buffers[count++] = asio::buffer(out.parts[i].data(), out.parts[i].size());
    }
    if (count == buffers.size()) break;
  }
  return socket_.write_some(std::span(buffers.data(), count), error);
}

void TcpLink::TakeWritten(size_t bytes) {
  while (open() && !outgoing_.empty()) {
    Outgoing& out = outgoing_.front();
    while (out.next_part < out.parts.size()) {
      std::span<const std::byte>& part = out.parts[out.next_part];
      const size_t step = std::min(bytes, part.size());
      part = part.subspan(step);
      bytes -= step;
      if (!part.empty()) return;
      ++out.next_part;
    }
    const OpId op = out.op;
    outgoing_.pop_front();
    context_->events->OnSent(id_, op, absl::OkStatus());
  }
}

void TcpLink::ReadSome() {
  for (size_t turn = 0; turn < kTurnBytes;) {
    error_code error;
    const size_t bytes = ReadOnce(error);
    if (WouldBlock(error)) break;
    if (error == asio::error::eof) {
      return Close(absl::UnavailableError("the peer has closed the link"));
    }
    if (error) return Close(Lost("the link broke while receiving", error));
    // Small frames cost more than their bytes: a flood of them must end its turn as well.
    turn += std::max<size_t>(bytes, 4 << 10);
    TakeRead(bytes);
    if (!open()) return;
  }
  WaitToRead();
}

size_t TcpLink::ReadOnce(error_code& error) {
  if (phase_ == Phase::kHeader) {
    return socket_.read_some(
        asio::buffer(header_bytes_.data() + filled_, header_bytes_.size() - filled_), error);
  }
  if (phase_ == Phase::kControl) {
    return socket_.read_some(asio::buffer(control_.data() + filled_, control_.size() - filled_),
                             error);
  }
  if (!placed_) {
    const size_t step = std::min<uint64_t>(payload_left_, context_->scratch.size());
    return socket_.read_some(asio::buffer(context_->scratch.data(), step), error);
  }
  std::array<asio::mutable_buffer, kPartsPerCall> buffers;
  size_t count = 0;
  for (size_t i = next_part_; i < destination_.parts.size() && count < buffers.size(); ++i) {
    const auto part = destination_.parts[i].subspan(i == next_part_ ? filled_ : 0);
    buffers[count++] = asio::buffer(part.data(), part.size());
  }
  return socket_.read_some(std::span(buffers.data(), count), error);
}

void TcpLink::TakeRead(size_t bytes) {
  if (phase_ == Phase::kPayload) return PayloadTaken(bytes);
  filled_ += bytes;
  if (phase_ == Phase::kHeader && filled_ == header_bytes_.size()) HeaderComplete();
  if (open() && phase_ == Phase::kControl && filled_ == control_.size()) ControlComplete();
}

void TcpLink::HeaderComplete() {
  const TransportOptions& options = context_->options;
  auto header =
      DecodeFrameHeader(header_bytes_, {options.max_control_bytes, options.max_payload_bytes});
  if (!header.ok()) return Close(header.status());
  header_ = *header;
  control_.resize(header_.control_bytes);
  phase_ = Phase::kControl;
  filled_ = 0;
}

void TcpLink::ControlComplete() {
  const absl::Status status = CheckControl(header_, control_);
  if (!status.ok()) return Close(status);
  Destination to = context_->events->OnMessage(id_, control_, header_.payload_bytes);
  std::erase_if(to.parts, [](const auto& part) { return part.empty(); });
  destination_ = std::move(to);
  placed_ = header_.payload_bytes > 0 && !destination_.parts.empty();
  if (!open()) {  // closed by the owner in between: the receive has to end as well
    if (placed_) ended_.push_back({destination_.op, false, reason_});
    placed_ = false;
    return PostFlush();
  }
  uint64_t placed_bytes = 0;
  for (const auto& part : destination_.parts) placed_bytes += part.size();
  PD_CHECK(!placed_ || placed_bytes == header_.payload_bytes);
  if (header_.payload_bytes == 0) return StartHeader();
  phase_ = Phase::kPayload;
  payload_left_ = header_.payload_bytes;
  next_part_ = 0;
  filled_ = 0;
}

void TcpLink::PayloadTaken(size_t bytes) {
  payload_left_ -= bytes;
  if (placed_) {
    filled_ += bytes;
    while (next_part_ < destination_.parts.size() &&
           filled_ >= destination_.parts[next_part_].size()) {
      filled_ -= destination_.parts[next_part_++].size();
    }
  }
  context_->events->OnProgress(id_);
  if (!open() || payload_left_ > 0) return;
  const bool placed = std::exchange(placed_, false);
  const OpId op = destination_.op;
  StartHeader();
  if (placed) context_->events->OnReceived(id_, op, absl::OkStatus());
}

void TcpLink::StartHeader() {
  phase_ = Phase::kHeader;
  filled_ = 0;
  destination_.parts.clear();
}

void TcpLink::Deliver() {
  while (!ended_.empty()) {
    const Ended ended = std::move(ended_.front());
    ended_.pop_front();
    if (ended.sent) {
      context_->events->OnSent(id_, ended.op, ended.status);
    } else {
      context_->events->OnReceived(id_, ended.op, ended.status);
    }
  }
}

// The fence: every handler has run, so nothing of this link is with the kernel or in a queue.
void TcpLink::Finish() {
  if (state_ != State::kClosing || waits_ > 0) return;
  Deliver();
  if (waits_ > 0) return;  // an event's owner has caused another one
  state_ = State::kClosed;
  context_->forget(id_);
  context_->events->OnClosed(id_, reason_);
}

}  // namespace pdserve::kvtransfer
