// Time that moves only when a test moves it.
#ifndef PDSERVE_TESTS_TESTING_FAKE_CLOCK_H_
#define PDSERVE_TESTS_TESTING_FAKE_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace pdserve::testing {

class FakeClock final : public Clock {
 public:
  absl::Time Now() const override {
    MutexLock lock(&mutex_);
    return now_;
  }
  void Advance(absl::Duration by) {
    MutexLock lock(&mutex_);
    now_ += by;
  }

 private:
  mutable Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_) = absl::FromUnixSeconds(1'000'000);
};

}  // namespace pdserve::testing

#endif  // PDSERVE_TESTS_TESTING_FAKE_CLOCK_H_
