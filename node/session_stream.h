// One router's stream. States: greeting (no hello yet), open, closing (what is queued is still
// written), ended. Owner: itself until OnDone, beside the service's table. gRPC's threads and the
// step loop's; the mutex guards the outgoing side, the incoming side is one reader at a time.
#ifndef PDSERVE_NODE_SESSION_STREAM_H_
#define PDSERVE_NODE_SESSION_STREAM_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "node/session.h"
#include "proto/node.grpc.pb.h"

namespace pdserve::node {

class SessionStream final : public grpc::ServerBidiReactor<v1::RouterMessage, v1::NodeMessage>,
                            public std::enable_shared_from_this<SessionStream> {
 public:
  SessionStream(SessionService* service, grpc::CallbackServerContext* context, SessionId id);

  /// Begins to read, or ends with `refusal` as its reason; keeps itself alive until OnDone.
  void Start(const std::string& refusal);
  /// Any thread. Drops the session when too much is unread; what comes before the hello or after
  /// the end is discarded.
  void Send(v1::NodeMessage message);
  /// Any thread. Ends the session at once; what is queued is lost.
  void Drop(const std::string& reason);

  absl::Time last_heard() const { return absl::FromUnixNanos(last_heard_ns_); }
  bool HasUnsent();

 private:
  enum class State { kGreeting, kOpen, kClosing, kEnded };

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void Handle();
  void Greet(const v1::RouterHello& hello);
  template <typename Request>
  void Begin(Request request);
  void CancelAttempt(AttemptId attempt);
  /// Answers with a hello that refuses; the stream ends when it is written.
  void Refuse(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  /// False: too much is unread.
  bool Queue(v1::NodeMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const std::string& reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  SessionService* const service_;
  const SessionId id_;
  std::atomic<int64_t> last_heard_ns_;
  std::atomic<int> open_cancels_{0};
  v1::RouterMessage incoming_;  // the reader's
  std::shared_ptr<SessionStream> self_;

  // The inbox is called under the mutex (it only posts), so that nothing follows its Lost.
  Mutex mutex_;
  grpc::CallbackServerContext* const context_;  // good until Finish
  State state_ ABSL_GUARDED_BY(mutex_) = State::kGreeting;
  bool opened_ ABSL_GUARDED_BY(mutex_) = false;    // the inbox has heard Opened and not Lost
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;   // outgoing_.front() is being written
  int cancelling_ ABSL_GUARDED_BY(mutex_) = 0;     // Drops that still use context_
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // Finish was called
  std::string end_reason_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::NodeMessage> outgoing_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pdserve::node

#endif  // PDSERVE_NODE_SESSION_STREAM_H_
