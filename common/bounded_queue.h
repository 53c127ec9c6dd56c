// A mailbox: many threads push, one takes. Bounded: a push to a full or closed queue is refused,
// and the caller decides what that means. Thread-safe; the items belong to the queue until taken.
#ifndef PDSERVE_COMMON_BOUNDED_QUEUE_H_
#define PDSERVE_COMMON_BOUNDED_QUEUE_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace pdserve {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t limit) : limit_(limit) {}

  /// False when full or closed; the item is then left as it was.
  bool Push(T&& item) {
    absl::MutexLock lock(&mutex_);
    if (closed_ || items_.size() >= limit_) return false;
    items_.push_back(std::move(item));
    return true;
  }

  /// All that is there, in order; waits until there is something, `Wake`, `Close`, or `timeout`.
  std::vector<T> TakeAll(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    if (timeout > absl::ZeroDuration()) {
      mutex_.AwaitWithTimeout(absl::Condition(this, &BoundedQueue::Ready), timeout);
    }
    woken_ = false;
    std::vector<T> taken;
    taken.swap(items_);
    return taken;
  }

  /// Ends a running or the next `TakeAll` without an item.
  void Wake() {
    absl::MutexLock lock(&mutex_);
    woken_ = true;
  }

  /// Refuses every later push; what is in the queue can still be taken.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

  bool closed() const {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }

 private:
  bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || woken_ || !items_.empty();
  }

  const size_t limit_;
  mutable absl::Mutex mutex_;
  std::vector<T> items_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pdserve

#endif  // PDSERVE_COMMON_BOUNDED_QUEUE_H_
