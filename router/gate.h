// Counts the requests in progress and bounds their choices: a choice is what costs a node an
// attempt. One for the router; any thread.
#ifndef PDSERVE_ROUTER_GATE_H_
#define PDSERVE_ROUTER_GATE_H_

#include <cstdint>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/mutex.h"

namespace pdserve::router {

class Gate {
 public:
  Gate(int64_t limit, Metrics* metrics, const Clock* clock)
      : limit_(limit), metrics_(metrics), clock_(clock) {}
  enum class Entry { kOpen, kFull, kClosed };
  /// A request with one choice comes in. kOpen: counted until Leave.
  Entry Enter();
  /// It turns out to have `more` choices. False: they find no room, and are not counted. A request
  /// that is alone always finds room, else one above the limit would never be served.
  bool Widen(int64_t more);
  /// A request goes, with as many choices as were counted.
  void Leave(int64_t choices);
  /// Nobody enters any more.
  void Shut();
  bool is_shut() const;
  /// False: some were still inside after `timeout`.
  bool WaitUntilEmpty(absl::Duration timeout);

 private:
  const int64_t limit_;
  Metrics* const metrics_;
  const Clock* const clock_;
  mutable Mutex mutex_;
  CondVar changed_;
  int64_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t choices_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_shut_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_GATE_H_
