#include "node/session_stream.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "node/session_messages.h"
#include "spdlog/spdlog.h"

namespace pdserve::node {
namespace {

constexpr size_t kLoggedBytes = 64;  // of what a router calls itself

}  // namespace

SessionStream::SessionStream(SessionService* service, grpc::CallbackServerContext* context,
                             SessionId id)
    : service_(service),
      id_(id),
      last_heard_ns_(absl::ToUnixNanos(service->clock_->Now())),
      context_(context) {}

void SessionStream::Start(const std::string& refusal) {
  self_ = shared_from_this();
  MutexLock lock(&mutex_);
  if (refusal.empty()) {
    StartRead(&incoming_);
  } else {  // without a hello, which a router that does not read could leave unsent
    End(refusal);
    Advance();
  }
}

void SessionStream::Send(v1::NodeMessage message) {
  bool fits = true;
  {
    MutexLock lock(&mutex_);
    if (state_ == State::kOpen) fits = Queue(std::move(message));
  }
  if (!fits) Drop("the router does not read");
}

void SessionStream::Drop(const std::string& reason) {
  {
    MutexLock lock(&mutex_);
    if (finished_) return;
    End(reason);
    ++cancelling_;  // holds Finish back, and with it the end of context_
  }
  context_->TryCancel();
  MutexLock lock(&mutex_);
  --cancelling_;
  Advance();
}

bool SessionStream::HasUnsent() {
  MutexLock lock(&mutex_);
  return !outgoing_.empty();
}

void SessionStream::OnReadDone(bool ok) {
  if (ok) {
    last_heard_ns_ = absl::ToUnixNanos(service_->clock_->Now());
    Handle();
  }
  MutexLock lock(&mutex_);
  if (!ok && state_ != State::kClosing) End("the router has ended the session");
  if (ok && (state_ == State::kGreeting || state_ == State::kOpen)) StartRead(&incoming_);
  Advance();
}

void SessionStream::OnWriteDone(bool ok) {
  {
    MutexLock lock(&mutex_);
    writing_ = false;
    outgoing_.pop_front();
    if (!ok) End("the session is broken");
    Advance();
    if (!outgoing_.empty()) return;
  }
  service_->NoteSent();
}

void SessionStream::OnCancel() {
  MutexLock lock(&mutex_);
  End("the session is broken");
  Advance();
}

void SessionStream::OnDone() {
  const std::shared_ptr<SessionStream> self = std::move(self_);
  service_->Remove(id_);
}

void SessionStream::Handle() {
  if (!incoming_.has_hello()) {
    MutexLock lock(&mutex_);
    if (state_ == State::kGreeting) Refuse("the first message is not a hello");
    if (state_ != State::kOpen) return;
  }
  switch (incoming_.kind_case()) {
    case v1::RouterMessage::kHello:
      return Greet(incoming_.hello());
    case v1::RouterMessage::kPrefill:
      return Begin(FromMessage(id_, incoming_.prefill()));
    case v1::RouterMessage::kDecode:
      return Begin(FromMessage(id_, incoming_.decode()));
    case v1::RouterMessage::kCancel:
      return CancelAttempt(AttemptId{incoming_.cancel().attempt()});
    case v1::RouterMessage::kPing:
      return Send(PongMessage(incoming_.ping().sequence()));
    case v1::RouterMessage::KIND_NOT_SET:
      return;  // of a later protocol: unknown fields are ignored
  }
}

void SessionStream::Greet(const v1::RouterHello& hello) {
  MutexLock lock(&mutex_);
  if (state_ != State::kGreeting) return;
  if (hello.protocol_major() != kProtocolMajor) {
    return Refuse(absl::StrCat("protocol ", hello.protocol_major(), " is not known here, only ",
                               kProtocolMajor));
  }
  v1::NodeMessage answer;
  *answer.mutable_hello() = service_->options_.hello;
  if (hello.known_text_sha256() == answer.hello().text_sha256()) {
    answer.mutable_hello()->clear_text_spec();
  }
  state_ = State::kOpen;
  opened_ = true;
  Queue(std::move(answer));
  service_->inbox_->Opened(id_);
  spdlog::info("session {} with router {} is open", id_.value,
               absl::CEscape(hello.router_id().substr(0, kLoggedBytes)));
}

template <typename Request>
void SessionStream::Begin(Request request) {
  bool fits = true;
  {
    MutexLock lock(&mutex_);
    if (state_ != State::kOpen) return;
    const AttemptId attempt = request.generation.key.attempt;
    // The inbox counts requests, not bytes: none may be larger than what can be served. One token
    // more than the context may be known, the last one: it needs no cache.
    const size_t known = request.generation.prompt.size() + request.generation.emitted.size();
    const uint32_t context = service_->options_.hello.max_context_tokens();
    if (known > size_t{context} + 1) {
      const std::string reason =
          absl::StrCat("prompt and emitted tokens are ", known, ", the context is ", context);
      fits = Queue(RefusedMessage(attempt, {reason, false, absl::ZeroDuration()}));
    } else if (!service_->inbox_->Begin(std::move(request))) {
      fits = Queue(RefusedMessage(attempt, {"the node is overloaded", true, engine::kRetryAfter}));
    }
  }
  if (!fits) Drop("the router does not read");
}

void SessionStream::CancelAttempt(AttemptId attempt) {
  if (++open_cancels_ > service_->options_.max_open_cancels) {
    return Drop("the router cancels more than it can have");
  }
  MutexLock lock(&mutex_);
  if (state_ != State::kOpen) return;
  service_->inbox_->Cancel({id_, attempt}, [self = shared_from_this()] { --self->open_cancels_; });
}

void SessionStream::Refuse(const std::string& reason) {
  v1::NodeMessage answer;
  v1::NodeHello* hello = answer.mutable_hello();
  *hello = service_->options_.hello;
  hello->clear_text_spec();
  hello->set_refusal(reason);
  Queue(std::move(answer));
  state_ = State::kClosing;
  Advance();
  spdlog::warn("session {} is refused: {}", id_.value, reason);
}

bool SessionStream::Queue(v1::NodeMessage message) {
  if (outgoing_.size() >= service_->options_.max_outgoing) return false;
  outgoing_.push_back(std::move(message));
  Advance();
  return true;
}

void SessionStream::End(const std::string& reason) {
  if (state_ == State::kEnded) return;
  state_ = State::kEnded;
  end_reason_ = reason;
  outgoing_.resize(writing_ ? 1 : 0);  // gRPC still has the first
  if (!opened_) return;
  opened_ = false;
  service_->inbox_->Lost(id_);
  spdlog::info("session {} has ended: {}", id_.value, reason);
}

void SessionStream::Advance() {
  if (finished_ || writing_) return;
  if (!outgoing_.empty()) {
    writing_ = true;
    StartWrite(&outgoing_.front());
    return;
  }
  if (cancelling_ > 0 || (state_ != State::kClosing && state_ != State::kEnded)) return;
  finished_ = true;
  Finish(state_ == State::kClosing ? grpc::Status::OK
                                   : grpc::Status(grpc::StatusCode::ABORTED, end_reason_));
}

}  // namespace pdserve::node
