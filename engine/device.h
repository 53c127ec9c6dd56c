// The compute team of a node: a fixed number of threads that run one parallel loop after another.
// Sleeps when idle; spins only briefly between the loops of a step. One caller at a time.
// A loop never waits for a thread that has not come: where others keep the cores busy (another
// node's team on the same machine), whoever has one does the work.
#ifndef PDSERVE_ENGINE_DEVICE_H_
#define PDSERVE_ENGINE_DEVICE_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace pdserve::engine {

/// Items [first, last) of a loop.
struct Share {
  int32_t first;
  int32_t last;
};

class Team {
 public:
  static std::unique_ptr<Team> Create(int32_t threads);  // 0: one per core
  virtual ~Team() = default;
  virtual int32_t threads() const = 0;

  /// Work on some items, by a thread in [0, threads()).
  using Work = std::function<void(int32_t thread, Share items)>;
  /// Calls `work` with shares of at most `piece` items that cover [0, count) once; returns when all
  /// are done. The caller is thread 0. A thread takes its shares in rising order from a part of its
  /// own, and then what others have left over: which thread does what must not change any result.
  virtual void Run(int32_t count, int32_t piece, const Work& work) = 0;
};

/// The part of `count` items that is for `thread` of `threads`.
inline Share ShareOf(int32_t count, int32_t thread, int32_t threads) {
  return {static_cast<int32_t>(int64_t{count} * thread / threads),
          static_cast<int32_t>(int64_t{count} * (thread + 1) / threads)};
}

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_DEVICE_H_
