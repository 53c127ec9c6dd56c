// The thread that owns device, pool and sequences: take the mailbox, plan, forward, sample, hand
// out. Waits without spinning when there is no work, at most a second at a time.
#ifndef PDSERVE_ENGINE_STEP_LOOP_H_
#define PDSERVE_ENGINE_STEP_LOOP_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "common/bounded_queue.h"
#include "common/clock.h"
#include "engine/batch.h"
#include "engine/cache/block_pool.h"
#include "engine/model.h"
#include "engine/pace.h"
#include "engine/planner.h"
#include "engine/sampler.h"

namespace pdserve::engine {

struct StepLoopOptions {
  int32_t max_step_tokens = 256;
  absl::Duration
      itl_target;  // between a sequence's tokens, where prompts are computed too; zero: none
  size_t mailbox_limit = 65536;
};

class StepLoop {
 public:
  using Task = std::function<void()>;

  /// All arguments outlive the loop. Clients are asked for work in order (decode first).
  StepLoop(const StepLoopOptions& options, Model* model, BlockPool* pool,
           std::vector<StepClient*> clients, const Clock* clock);
  ~StepLoop();  // Stop()

  void Start();
  /// Ends the thread after the running step; posted tasks that have not run are run first.
  void Stop();

  /// Any thread. False when the mailbox is full or the loop has stopped.
  bool Post(Task task);
  /// The same, but refused only after Stop: for news that must not be lost and whose number its
  /// sender bounds otherwise (the end of a hand-over, a lost session, a cancel). One queue with
  /// Post, so order is kept: a cancel never overtakes its request.
  bool PostReserved(Task task);

  /// One turn without waiting: runs what was posted, then a step if there is work; true: there
  /// was a step. For tests and simulation that drive the loop themselves instead of Start().
  bool TurnOnce();

  /// When the loop last began a step or found nothing to do; for liveness. Any thread.
  absl::Time last_turn() const;

 private:
  void Run();
  bool Turn(absl::Duration patience);
  absl::Duration Patience() const;
  void BuildPlan(absl::Time now, Plan& plan);
  void BuildBatch(const Plan& plan);
  void Execute(const Plan& plan);

  const StepLoopOptions options_;
  Model* const model_;
  BlockPool* const pool_;
  const std::vector<StepClient*> clients_;
  const Clock* const clock_;
  BoundedQueue<Task> mailbox_;
  std::atomic<int64_t> last_turn_ns_{0};
  std::thread thread_;

  // The loop's thread only.
  Batch batch_;
  Pace pace_;
  std::vector<float> logits_;
  std::vector<StepOutput> outputs_;
  SamplerScratch scratch_;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_STEP_LOOP_H_
