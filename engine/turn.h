// A lock that is given in the order of asking, so that two step loops which share a device take
// turns and neither starves. Any thread.
#ifndef PDSERVE_ENGINE_TURN_H_
#define PDSERVE_ENGINE_TURN_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace pdserve::engine {

class TurnQueue {
 public:
  /// Returns when all who asked before have released. The holder never waits for anybody but its
  /// own compute threads, so this ends.
  void Acquire() {
    MutexLock lock(&mutex_);
    const uint64_t mine = asked_++;
    while (released_ != mine) changed_.WaitFor(mutex_, absl::Hours(1));
  }
  void Release() {
    MutexLock lock(&mutex_);
    ++released_;
    changed_.NotifyAll();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  uint64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t released_ ABSL_GUARDED_BY(mutex_) = 0;
};

class Turn {
 public:
  explicit Turn(TurnQueue& queue) : queue_(queue) { queue_.Acquire(); }
  ~Turn() { queue_.Release(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  TurnQueue& queue_;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_TURN_H_
