#include "node/session.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "node/session_stream.h"

namespace pdserve::node {

SessionService::SessionService(SessionOptions options, Inbox* inbox, const Clock* clock)
    : options_(std::move(options)), inbox_(inbox), clock_(clock) {}

SessionService::~SessionService() = default;

grpc::ServerBidiReactor<v1::RouterMessage, v1::NodeMessage>* SessionService::Session(
    grpc::CallbackServerContext* context) {
  std::shared_ptr<SessionStream> stream;
  std::string refusal;
  {
    MutexLock lock(&mutex_);
    const SessionId id{next_session_++};
    stream = std::make_shared<SessionStream>(this, context, id);
    if (closed_) {
      refusal = "the node is stopping";
    } else if (streams_.size() >= options_.max_sessions) {
      refusal = "the node has as many sessions as it may";
    } else {
      streams_[id] = stream;
    }
  }
  stream->Start(refusal);
  return stream.get();
}

std::shared_ptr<SessionStream> SessionService::Find(SessionId session) {
  MutexLock lock(&mutex_);
  const auto found = streams_.find(session);
  return found == streams_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<SessionStream>> SessionService::All() {
  MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<SessionStream>> all;
  all.reserve(streams_.size());
  for (const auto& [id, stream] : streams_) all.push_back(stream);
  return all;
}

void SessionService::Remove(SessionId session) {
  MutexLock lock(&mutex_);
  streams_.erase(session);
  sent_.NotifyAll();
}

void SessionService::NoteSent() {
  MutexLock lock(&mutex_);
  sent_.NotifyAll();
}

void SessionService::Send(SessionId session, v1::NodeMessage message) {
  if (const auto stream = Find(session)) stream->Send(std::move(message));
}

void SessionService::Broadcast(const v1::NodeMessage& message) {
  for (const auto& stream : All()) stream->Send(message);
}

absl::Time SessionService::DropSilent(absl::Time now) {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& stream : All()) {
    const absl::Time end = stream->last_heard() + options_.peer_timeout;
    if (end > now) {
      next = std::min(next, end);
    } else {
      stream->Drop("the router is silent");
    }
  }
  return next;
}

bool SessionService::WaitUntilSent(absl::Duration timeout) {
  const absl::Time end = clock_->Now() + timeout;
  const auto unsent = [this] {
    const auto all = All();
    return std::any_of(all.begin(), all.end(), [](const auto& s) { return s->HasUnsent(); });
  };
  while (unsent()) {
    const absl::Duration left = end - clock_->Now();
    if (left <= absl::ZeroDuration()) return false;
    // The notice may have come between the look and the wait; look again soon.
    MutexLock lock(&mutex_);
    sent_.WaitFor(mutex_, std::min(left, absl::Milliseconds(10)));
  }
  return true;
}

void SessionService::Close() {
  {
    MutexLock lock(&mutex_);
    closed_ = true;
  }
  for (const auto& stream : All()) stream->Drop("the node is stopping");
}

}  // namespace pdserve::node
