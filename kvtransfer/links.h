// The links of a pump: dialled on the first fetch from a peer, agreed on by a hello both ways, kept
// alive by heartbeats, closed after silence. A link is of one incarnation of the peer: a restarted
// peer gets a new one. Owner and thread: the pump.
//
//   kConnecting --connected--> kGreeting --hello agreed--> kReady
//   kGreeting --hello refused--> kRefusing --refusal sent--> closed
//   any of them --Close--> kClosing --OnClosed--> gone
#ifndef PDSERVE_KVTRANSFER_LINKS_H_
#define PDSERVE_KVTRANSFER_LINKS_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kvtransfer/pump.h"
#include "kvtransfer/transport.h"
#include "proto/kv.pb.h"

namespace pdserve::kvtransfer {

class Links {
 public:
  Links(const PumpOptions& options, Transport* transport)
      : options_(options), transport_(transport) {}

  /// The link to this incarnation of the peer at this address; dials where there is none.
  LinkId Dial(const std::string& address, Incarnation peer, absl::Time now);
  bool ready(LinkId link) const;
  /// Ours to fetch over; else ours to offer over.
  bool dialled(LinkId link) const;

  OpId NewOp() { return OpId{next_op_++}; }
  void Send(LinkId link, const v1::Control& control) { Send(link, control, {}, NewOp()); }
  void Send(LinkId link, const v1::Control& control, std::span<const std::byte> payload, OpId op);
  void Abandon(LinkId link, OpId op) { transport_->Abandon(link, op); }
  void Close(LinkId link, absl::Status reason);
  void CloseAll(const absl::Status& reason);

  // What the transport reports.
  void OnAccepted(LinkId link, const std::string& peer, absl::Time now);
  void OnConnected(LinkId link);
  /// True: the link has become ready.
  bool OnHello(LinkId link, const v1::LinkHello& hello, absl::Time now);
  void OnHeard(LinkId link, absl::Time now);
  void OnSent(LinkId link, OpId op);
  void OnClosed(LinkId link, const absl::Status& reason);

  /// Sends heartbeats and closes what was silent for too long.
  void Tick(absl::Time now);
  absl::Time next_deadline() const { return next_due_; }
  bool empty() const { return links_.empty(); }

 private:
  enum class State { kConnecting, kGreeting, kRefusing, kReady, kClosing };
  using PeerKey = std::pair<std::string, Incarnation>;

  struct Link {
    State state = State::kConnecting;
    PeerKey peer;  // dialled: the key of dialled_; else the peer's address, for logs
    bool dialled = false;
    std::string peer_id;
    absl::Time hello_deadline;
    absl::Time last_heard;
    absl::Time next_beat;
    uint64_t beats = 0;
    OpId refusal;  // kRefusing
  };

  void Greet(LinkId id, const Link& link, const std::string& refusal);
  void TickLink(LinkId id, Link& link, absl::Time now);

  const PumpOptions options_;
  Transport* const transport_;
  uint64_t next_op_ = 1;
  absl::Time next_due_ = absl::InfiniteFuture();
  absl::flat_hash_map<LinkId, Link> links_;
  absl::flat_hash_map<PeerKey, LinkId> dialled_;
};

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_LINKS_H_
