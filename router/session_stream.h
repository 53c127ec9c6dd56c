// One gRPC stream of a session, from dialling to its end; a lost session's next life has another.
// Keeps itself alive until gRPC is done with it. Send, HasRoom and Cancel from any thread, also
// after the end, when they do nothing.
#ifndef PDSERVE_ROUTER_SESSION_STREAM_H_
#define PDSERVE_ROUTER_SESSION_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <utility>

#include "common/mutex.h"
#include "proto/node.grpc.pb.h"
#include "router/session.h"

namespace pdserve::router {

class Session::Stream final : public grpc::ClientBidiReactor<v1::RouterMessage, v1::NodeMessage>,
                              public std::enable_shared_from_this<Session::Stream> {
 public:
  explicit Stream(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  void Begin(v1::Node::Stub& stub, v1::RouterMessage hello) {
    self_ = shared_from_this();
    stub.async()->Session(&context_, this);
    AddHold();  // for writes that start outside of gRPC's callbacks; until a read fails
    StartRead(&incoming_);
    Send(std::move(hello));
    StartCall();
  }

  /// For what may be refused: new attempts. Cancels and pings always go; the attempts bound them.
  bool HasRoom() {
    MutexLock lock(&mutex_);
    return !is_over_ && outgoing_.size() < kMaxQueued;
  }

  void Send(v1::RouterMessage message) {
    MutexLock lock(&mutex_);
    if (is_over_) return;
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void Cancel() { context_.TryCancel(); }
  const std::shared_ptr<Session>& session() const { return session_; }

  void OnReadDone(bool ok) override {
    if (ok) {
      session_->OnMessage(this, incoming_);
      StartRead(&incoming_);
      return;
    }
    {
      MutexLock lock(&mutex_);
      is_over_ = true;
    }
    RemoveHold();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    if (!ok) is_over_ = true;
    outgoing_.pop_front();
    if (!is_over_ && !outgoing_.empty()) StartWrite(&outgoing_.front());
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Stream> self = std::move(self_);
    const std::string why = status.error_message();
    session_->Lose(this, why.empty() ? "it ended the session" : why);
  }

 private:
  static constexpr size_t kMaxQueued = 8192;

  const std::shared_ptr<Session> session_;
  std::shared_ptr<Stream> self_;
  grpc::ClientContext context_;
  v1::NodeMessage incoming_;
  Mutex mutex_;
  std::deque<v1::RouterMessage> outgoing_ ABSL_GUARDED_BY(mutex_);  // the first is being written
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_SESSION_STREAM_H_
