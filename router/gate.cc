#include "router/gate.h"

namespace pdserve::router {

Gate::Entry Gate::Enter() {
  MutexLock lock(&mutex_);
  if (is_shut_) return Entry::kClosed;
  if (choices_ >= limit_) return Entry::kFull;
  ++choices_;
  metrics_->Set(Series::kRunningRequests, {}, static_cast<double>(++requests_));
  return Entry::kOpen;
}

bool Gate::Widen(int64_t more) {
  MutexLock lock(&mutex_);
  if (choices_ + more > limit_ && requests_ > 1) return false;
  choices_ += more;
  return true;
}

void Gate::Leave(int64_t choices) {
  MutexLock lock(&mutex_);
  choices_ -= choices;
  metrics_->Set(Series::kRunningRequests, {}, static_cast<double>(--requests_));
  changed_.NotifyAll();
}

void Gate::Shut() {
  MutexLock lock(&mutex_);
  is_shut_ = true;
}

bool Gate::is_shut() const {
  MutexLock lock(&mutex_);
  return is_shut_;
}

bool Gate::WaitUntilEmpty(absl::Duration timeout) {
  const absl::Time end = clock_->Now() + timeout;
  MutexLock lock(&mutex_);
  while (requests_ > 0 && clock_->Now() < end) changed_.WaitFor(mutex_, end - clock_->Now());
  return requests_ == 0;
}

}  // namespace pdserve::router
