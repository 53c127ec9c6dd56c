// A mailbox: many threads push, one takes. Bounded: a push to a full or closed queue is refused,
// and the caller decides what that means. Thread-safe; the items belong to the queue until taken.
#ifndef PDSERVE_COMMON_BOUNDED_QUEUE_H_
#define PDSERVE_COMMON_BOUNDED_QUEUE_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace pdserve {

template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t limit) : limit_(limit) {}

  /// False when full or closed; the item is then left as it was.
  bool Push(T&& item) { return PushBelow(limit_, std::move(item)); }

  /// False only when closed. For items that must not be lost and whose number something else
  /// already bounds (the end of an operation that was admitted, the loss of a session); whoever
  /// calls it names that bound.
  bool PushReserved(T&& item) { return PushBelow(static_cast<size_t>(-1), std::move(item)); }

  /// All that is there, in order; waits until there is something, `Wake`, `Close`, or `timeout`.
  std::vector<T> TakeAll(absl::Duration timeout) {
    MutexLock lock(&mutex_);
    const absl::Time end = absl::Now() + timeout;
    while (!Ready() && timeout > absl::ZeroDuration()) {
      changed_.WaitFor(mutex_, timeout);
      timeout = end - absl::Now();
    }
    woken_ = false;
    std::vector<T> taken;
    taken.swap(items_);
    return taken;
  }

  /// Ends a running or the next `TakeAll` without an item.
  void Wake() {
    MutexLock lock(&mutex_);
    woken_ = true;
    changed_.NotifyAll();
  }

  /// Refuses every later push; what is in the queue can still be taken.
  void Close() {
    MutexLock lock(&mutex_);
    closed_ = true;
    changed_.NotifyAll();
  }

  bool closed() const {
    MutexLock lock(&mutex_);
    return closed_;
  }

 private:
  bool PushBelow(size_t limit, T&& item) {
    MutexLock lock(&mutex_);
    if (closed_ || items_.size() >= limit) return false;
    items_.push_back(std::move(item));
    changed_.NotifyOne();
    return true;
  }
  bool Ready() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || woken_ || !items_.empty();
  }

  const size_t limit_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<T> items_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pdserve

#endif  // PDSERVE_COMMON_BOUNDED_QUEUE_H_
