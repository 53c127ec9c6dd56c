#include "decode/planner.h"

#include <algorithm>
#include <utility>

#include "engine/cache_layout.h"

namespace pdserve::decode {
namespace {

class Planning {
 public:
  explicit Planning(const DecodeState& state)
      : state_(state), free_(state.free_blocks), budget_(std::max(state.budget_tokens, 0)) {
    for (const RunningView& view : state.running) blocks_.push_back(view.blocks);
  }

  DecodePlan Plan() {
    DecodeReady();
    if (Recompute()) Land();
    return std::move(plan_);
  }

 private:
  int32_t BlocksFor(int32_t tokens) const { return engine::BlocksFor(tokens, state_.block_tokens); }

  /// Indices of those that get a decode row, oldest first: of all that are ready, the ones that
  /// have waited longest for one.
  std::vector<size_t> PickReady() const {
    std::vector<size_t> ready;
    for (size_t i = 0; i < state_.running.size(); ++i) {
      const RunningView& view = state_.running[i];
      if (view.blocks > 0 && view.tokens - view.computed == 1) ready.push_back(i);
    }
    const auto most = static_cast<size_t>(std::max(std::min(state_.max_batch, budget_), 0));
    if (ready.size() > most) {
      std::sort(ready.begin(), ready.end(), [&](size_t a, size_t b) {
        return std::pair(state_.running[a].last_step, a) <
               std::pair(state_.running[b].last_step, b);
      });
      ready.resize(most);
      std::sort(ready.begin(), ready.end());
    }
    return ready;
  }

  void DecodeReady() {
    for (size_t i : PickReady()) {
      if (blocks_[i] == 0) continue;  // has just lost them to an older one
      const int32_t grow = BlocksFor(state_.running[i].tokens) - blocks_[i];
      if (!FreeFor(grow, i)) continue;  // waits for what others hold
      free_ -= grow;
      blocks_[i] += grow;
      plan_.rows.push_back({i, 1, grow});
      --budget_;
    }
  }

  /// Takes blocks from those younger than `who`, the youngest first, until `count` are free.
  bool FreeFor(int32_t count, size_t who) {
    for (size_t i = state_.running.size(); free_ < count && i > who + 1;) {
      --i;
      if (blocks_[i] == 0) continue;
      free_ += blocks_[i] - state_.running[i].shared_blocks;
      blocks_[i] = 0;
      plan_.preempted.push_back(i);
    }
    return free_ >= count;
  }

  /// Room to leave for those that run and land: about what they need within eight steps.
  int32_t Headroom() const {
    int32_t holders = state_.landing + static_cast<int32_t>(plan_.num_landings);
    for (int32_t blocks : blocks_) holders += blocks > 0 ? 1 : 0;
    return (holders + 3) / 4;
  }

  /// Chunks of those whose cache was lost. False: one of them still waits for blocks.
  bool Recompute() {
    for (size_t i = 0; i < state_.running.size(); ++i) {
      const RunningView& view = state_.running[i];
      if (view.blocks > 0 && (blocks_[i] == 0 || view.tokens - view.computed == 1)) continue;
      const bool returns = blocks_[i] == 0;
      const int32_t needed = returns ? BlocksFor(view.tokens) - view.shared_blocks : 0;
      if (returns && !Reserve(needed)) return false;
      blocks_[i] += needed;
      const int32_t chunk = std::min(budget_, view.tokens - view.computed);
      if (chunk == 0 && !returns) continue;
      if (chunk == 0) {  // no tokens left for it: it takes its blocks when it can use them
        plan_.reserved_blocks = needed + Headroom();
        return false;
      }
      plan_.rows.push_back({i, chunk, needed});
      budget_ -= chunk;
    }
    return plan_.preempted.empty();
  }

  void Land() {
    int32_t held = state_.landing_blocks;
    for (const int32_t needed : state_.waiting) {
      if (held > 0 && needed > state_.max_landing_blocks - held) return;  // and reserves nothing
      if (!Reserve(needed)) return;
      held += needed;
      ++plan_.num_landings;
    }
  }

  /// False: not now. Never in a step that takes blocks away: what `needed` leaves out, as others
  /// hold it, may be just that.
  bool Reserve(int32_t needed) {
    const int32_t wanted = needed + Headroom();
    if (free_ < wanted || !plan_.preempted.empty()) {
      plan_.reserved_blocks = wanted;
      return false;
    }
    free_ -= needed;
    return true;
  }

  const DecodeState& state_;
  int32_t free_;
  int32_t budget_;
  std::vector<int32_t> blocks_;  // as the plan leaves them
  DecodePlan plan_;
};

}  // namespace

DecodePlan PlanDecode(const DecodeState& state) { return Planning(state).Plan(); }

}  // namespace pdserve::decode
