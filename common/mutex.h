// A mutex and its condition variable over the standard ones, with clang's thread-safety
// annotations: every mutex of the tree is this one, because ThreadSanitizer understands it (it
// can't see into a prebuilt absl::Mutex, and would report every member that one guards).
#ifndef PDSERVE_COMMON_MUTEX_H_
#define PDSERVE_COMMON_MUTEX_H_

#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/check.h"

namespace pdserve {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

class CondVar {
 public:
  /// Waits for a notification, at most `timeout` (a day at the longest); may also wake without a
  /// reason, so call it in a loop over the condition. False: the time is over.
  bool WaitFor(Mutex& mutex, absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const absl::Duration bounded = std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24));
    const auto result = waiters_.wait_for(lock, absl::ToChronoNanoseconds(bounded));
    lock.release();
    return result == std::cv_status::no_timeout;
  }
  void NotifyOne() { waiters_.notify_one(); }
  void NotifyAll() { waiters_.notify_all(); }

 private:
  std::condition_variable waiters_;
};

/// The wait of a destructor for what it has ended itself, in a loop over the condition. It has an
/// end: what then still runs is stuck, our own bug, and a process that says so is better than one
/// that hangs. Counts seconds without a notice, so that a stopped process does not run out of them.
class LastWait {
 public:
  explicit LastWait(int seconds = 60) : seconds_left_(seconds) {}
  void For(CondVar& changed, Mutex& mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (changed.WaitFor(mutex, absl::Seconds(1))) return;
    const bool is_stuck = --seconds_left_ <= 0;
    PD_CHECK(!is_stuck);
  }

 private:
  int seconds_left_;
};

}  // namespace pdserve

#endif  // PDSERVE_COMMON_MUTEX_H_
