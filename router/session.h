// The router's end of one node's session: dials, says hello, sends attempts, hands out what comes
// back, pings, notices silence, and dials again. Owned by the fleet; lives until Close.
// Thread-safe. gRPC's threads call OnMessage and the listener; timers run on the io_context.
// Each attempt that was started gets events until its leg has ended, and LegLost at once when the
// session is lost; after LetGo it gets none.
#ifndef PDSERVE_ROUTER_SESSION_H_
#define PDSERVE_ROUTER_SESSION_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "proto/node.grpc.pb.h"
#include "router/choice.h"
#include "router/fleet_snapshot.h"
#include "router/router.h"

namespace pdserve::router {

/// Takes what nodes say about attempts. Called from any thread; must not block nor call back.
class AttemptSink {
 public:
  virtual ~AttemptSink() = default;
  virtual void OnNodeEvent(NodeEvent event) = 0;
};

/// What a session tells its fleet. Called from gRPC's and timers' threads, one call at a time.
class SessionListener {
 public:
  virtual ~SessionListener() = default;
  /// text_spec is empty when the node left it out because known_text_sha256 was its own.
  virtual void OnHello(NodeIndex node, NodeFacts facts, std::string text_spec) = 0;
  virtual void OnLoad(NodeIndex node, const NodeLoad& load) = 0;
  virtual void OnDraining(NodeIndex node) = 0;
  virtual void OnLost(NodeIndex node, const std::string& why) = 0;
  /// The text that the router has; may be empty.
  virtual std::string KnownTextSha256() = 0;
};

struct SessionOptions {
  NodeEndpoint endpoint;
  NodeIndex index;
  std::string router_id;
  uint64_t router_incarnation = 0;
  absl::Duration heartbeat_interval;
  absl::Duration peer_timeout;
};

class Session final : public std::enable_shared_from_this<Session> {
 public:
  Session(SessionOptions options, boost::asio::io_context& io, SessionListener* listener,
          Metrics* metrics, const Clock* clock);
  ~Session();

  void Open();
  /// Ends the stream and waits until it is gone; the io_context must be running. After it nobody is
  /// called any more.
  void Close();

  /// False: no session now, or its queue is full; the sink then gets nothing. Both legs of an
  /// attempt have the same id, on different nodes.
  bool StartPrefill(v1::PrefillRequest request, std::shared_ptr<AttemptSink> sink);
  bool StartDecode(v1::DecodeRequest request, std::shared_ptr<AttemptSink> sink);

  /// Cancels the attempt on the node; with `is_over` only if the node does not end it by itself
  /// within a second. Unknown attempts are fine.
  void LetGo(AttemptId attempt, bool is_over);

 private:
  class Stream;
  struct Leg {
    std::shared_ptr<AttemptSink> sink;  // null: let go of
    absl::Time overdue;                 // let go of: when the node's last word is late
    bool is_cancelled = false;
  };

  bool Start(AttemptId attempt, v1::RouterMessage message, std::shared_ptr<AttemptSink> sink);
  void SendCancel(AttemptId attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Dial();
  std::shared_ptr<Stream> NewStream();
  void OnMessage(const Stream* stream, v1::NodeMessage& message);
  void OnHello(const Stream* stream, v1::NodeHello& hello);
  void OnTokens(const v1::Tokens& tokens);
  void OnLegEnd(NodeEvent event);
  void OnStreamGone();
  /// The session is over for everybody; the stream itself may still be winding up.
  void Lose(const Stream* stream, const std::string& why);
  bool IsCurrent(const Stream* stream);
  void ScheduleTick(absl::Duration delay) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Tick();
  void SweepLate(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionOptions options_;
  boost::asio::io_context& io_;
  SessionListener* const listener_;
  Metrics* const metrics_;
  const Clock* const clock_;
  std::unique_ptr<v1::Node::Stub> stub_;

  Mutex listener_mutex_;  // held over each call of the listener; taken before mutex_
  Mutex mutex_;
  CondVar closed_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  int open_streams_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_up_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_closing_ ABSL_GUARDED_BY(mutex_) = false;
  int ticks_running_ ABSL_GUARDED_BY(mutex_) = 0;
  // Ends with Close: gRPC may let go of the session only after the io_context is gone.
  std::unique_ptr<boost::asio::steady_timer> timer_ ABSL_GUARDED_BY(mutex_);
  uint64_t pings_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time last_heard_ ABSL_GUARDED_BY(mutex_);
  absl::Duration backoff_ ABSL_GUARDED_BY(mutex_);
  std::string last_problem_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<AttemptId, Leg> legs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_SESSION_H_
