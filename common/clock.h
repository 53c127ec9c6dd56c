// Time as a dependency: every deadline is taken from a Clock that was passed in, so that tests
// and the simulation own time. Implementations are safe from any thread.
#ifndef PDSERVE_COMMON_CLOCK_H_
#define PDSERVE_COMMON_CLOCK_H_

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace pdserve {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

class SystemClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace pdserve

#endif  // PDSERVE_COMMON_CLOCK_H_
