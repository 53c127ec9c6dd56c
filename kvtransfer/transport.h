// A transport moves messages between two pumps: a control part of bytes, and a payload that the
// receiver's owner places. It knows nothing of hand-overs. A pump owns it.
// Thread: the pump's for everything but Wake. Events come from within Poll only, never from
// within another call.
//
// What holds for every transport: messages of a link arrive whole and in order, or the link ends.
// Every Send ends by one OnSent, every placed payload by one OnReceived, every link by one
// OnClosed, which comes after all of its others: after it no byte of a payload or destination is
// touched.
#ifndef PDSERVE_KVTRANSFER_TRANSPORT_H_
#define PDSERVE_KVTRANSFER_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"

namespace pdserve::kvtransfer {

/// A connection between two transports; numbered by each side for itself, never used again.
using LinkId = Id<struct LinkTag, uint64_t>;
/// A send or a receive; numbered by the transport's owner.
using OpId = Id<struct OpTag, uint64_t>;

struct TransportOptions {
  uint32_t max_control_bytes = 256 << 10;  // of a message
  uint64_t max_payload_bytes = 0;          // of a message
  uint32_t max_inbound_links = 1024;       // more are closed as they come
  uint32_t max_queued_messages = 8192;     // per link and direction out; over it the link ends
};

struct Message {
  OpId op;
  std::string control;
  std::vector<std::span<const std::byte>> payload;  // stays valid until OnSent
};

/// Where a payload goes: parts that add up to its size, or none: it is read and thrown away.
struct Destination {
  OpId op;
  std::vector<std::span<std::byte>> parts;
};

class TransportEvents {
 public:
  virtual ~TransportEvents() = default;
  /// A peer has connected; `peer` is for logs.
  virtual void OnAccepted(LinkId link, const std::string& peer) = 0;
  /// A Connect has come through.
  virtual void OnConnected(LinkId link) = 0;
  /// A message's control is here. With a payload, the answer says where that goes.
  virtual Destination OnMessage(LinkId link, std::string_view control, uint64_t payload_bytes) = 0;
  /// Some of a payload has come: a sign of life.
  virtual void OnProgress(LinkId link) = 0;
  /// The payload is in its destination, or (not OK) will never be; no more is written there.
  virtual void OnReceived(LinkId link, OpId op, absl::Status status) = 0;
  /// The payload is not read any more. OK does not mean that the peer has it.
  virtual void OnSent(LinkId link, OpId op, absl::Status status) = 0;
  /// The last of a link. `reason` is Close's, or what went wrong.
  virtual void OnClosed(LinkId link, absl::Status reason) = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;  // without events; what its links held is not touched after

  /// Once, before the first Poll. What `address` became, for peers to connect to.
  virtual absl::StatusOr<std::string> Listen(const std::string& address) = 0;
  /// Ends by OnConnected or OnClosed. No time-out of its own: the owner closes.
  virtual LinkId Connect(const std::string& address) = 0;
  /// On a link that is not open the message ends with an error, if the link has not ended.
  virtual void Send(LinkId link, Message message) = 0;
  /// Asks that a running receive ends now, with CANCELLED, and the rest is thrown away. Where that
  /// can't be had the receive ends when it ends. Unknown or ended operations are ignored.
  virtual void Abandon(LinkId link, OpId op) = 0;
  /// Ends the link; idempotent. OnClosed follows from a later Poll: that is the fence.
  virtual void Close(LinkId link, absl::Status reason) = 0;
  /// Waits up to `timeout` for something to happen, then reports what did: a bounded amount.
  virtual void Poll(TransportEvents* events, absl::Duration timeout) = 0;
  /// Any thread: ends a running Poll, or the next one, at once.
  virtual void Wake() = 0;
};

/// All names, as listed in CMakeLists.txt.
std::vector<std::string> TransportNames();
/// InvalidArgument where there is none of this name.
absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(const std::string& name,
                                                         const TransportOptions& options);

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_TRANSPORT_H_
