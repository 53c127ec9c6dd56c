// The node's end of sessions: the gRPC service, one stream per router. gRPC's threads read; any
// thread sends. A stream that breaks its rules (no hello first, unknown major version, silence,
// a router that does not read) is ended; however it ends, the inbox hears Lost exactly once for
// each Opened, and nothing of that session after it.
#ifndef PDSERVE_NODE_SESSION_H_
#define PDSERVE_NODE_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "decode/role.h"
#include "engine/attempt.h"
#include "node/outbox.h"
#include "prefill/role.h"
#include "proto/node.grpc.pb.h"

namespace pdserve::node {

/// Where a session's news goes; called from gRPC's threads, in order for one session.
class Inbox {
 public:
  virtual ~Inbox() = default;
  virtual void Opened(SessionId session) = 0;
  /// False: no room; the session answers with a refusal.
  virtual bool Begin(prefill::Request request) = 0;
  virtual bool Begin(decode::Request request) = 0;
  /// Can't be refused; `done` is called, from any thread, when it has been dealt with.
  virtual void Cancel(engine::AttemptKey key, std::function<void()> done) = 0;
  virtual void Lost(SessionId session) = 0;
};

struct SessionOptions {
  v1::NodeHello hello;  // with text_spec; the session leaves it out where it is known
  absl::Duration peer_timeout = absl::Seconds(3);
  size_t max_sessions = 64;
  size_t max_outgoing = 4096;    // messages that a router has not yet read
  int max_open_cancels = 65536;  // of one session, not yet dealt with
};

class SessionStream;

class SessionService final : public v1::Node::CallbackService, public SessionPort {
 public:
  /// `inbox` and `clock` outlive the service; the service outlives its server.
  SessionService(SessionOptions options, Inbox* inbox, const Clock* clock);
  ~SessionService() override;

  grpc::ServerBidiReactor<v1::RouterMessage, v1::NodeMessage>* Session(
      grpc::CallbackServerContext* context) override;

  void Send(SessionId session, v1::NodeMessage message) override;
  void Broadcast(const v1::NodeMessage& message) override;
  absl::Time DropSilent(absl::Time now) override;

  /// Waits until all that was sent has been taken by the transport; false after `timeout`.
  bool WaitUntilSent(absl::Duration timeout);
  /// Ends every session and refuses new ones.
  void Close();

 private:
  friend class SessionStream;
  std::shared_ptr<SessionStream> Find(SessionId session);
  std::vector<std::shared_ptr<SessionStream>> All();
  void Remove(SessionId session);
  void NoteSent();

  const SessionOptions options_;
  Inbox* const inbox_;
  const Clock* const clock_;
  Mutex mutex_;
  CondVar sent_;
  uint64_t next_session_ ABSL_GUARDED_BY(mutex_) = 1;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::flat_hash_map<SessionId, std::shared_ptr<SessionStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pdserve::node

#endif  // PDSERVE_NODE_SESSION_H_
