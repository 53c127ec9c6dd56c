// The compute team of a node: a fixed number of threads that run one parallel loop after another.
// Sleeps when idle; spins only briefly between the loops of a step. One caller at a time.
#ifndef PDSERVE_ENGINE_DEVICE_H_
#define PDSERVE_ENGINE_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace pdserve::engine {

class Team {
 public:
  static std::unique_ptr<Team> Create(int32_t threads);  // 0: one per core
  virtual ~Team() = default;
  virtual int32_t threads() const = 0;

  /// Runs work(thread) once on each thread, thread in [0, threads()), the caller being thread 0;
  /// returns when all have ended. Which thread does what must not change any result.
  virtual void Run(const std::function<void(int32_t thread)>& work) = 0;
};

/// The share of `count` items that `thread` of `threads` takes: [first, last).
struct Share {
  int32_t first;
  int32_t last;
};
inline Share ShareOf(int32_t count, int32_t thread, int32_t threads) {
  return {static_cast<int32_t>(int64_t{count} * thread / threads),
          static_cast<int32_t>(int64_t{count} * (thread + 1) / threads)};
}

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_DEVICE_H_
