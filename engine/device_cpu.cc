#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "engine/device.h"

namespace pdserve::engine {
namespace {

// Longer than the gap between two loops of a step, shorter than what a sleeper costs others.
constexpr std::chrono::microseconds kSpin{50};

int32_t CoreCount() {
  return std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
}

/// Waits until `value` is no longer `old`: a short spin if allowed, then sleep. Whoever changes the
/// value notifies.
void AwaitChange(const std::atomic<int32_t>& value, int32_t old, bool spin) {
  if (spin) {
    const auto end = std::chrono::steady_clock::now() + kSpin;
    do {  // reading the clock is the pause between two looks
      if (value.load(std::memory_order_acquire) != old) return;
    } while (std::chrono::steady_clock::now() < end);
  }
  value.wait(old, std::memory_order_acquire);
}

class CpuTeam final : public Team {
 public:
  explicit CpuTeam(int32_t threads) : threads_(threads), spin_(threads <= CoreCount()) {
    workers_.reserve(threads - 1);
    for (int32_t thread = 1; thread < threads; ++thread) {
      workers_.emplace_back([this, thread] { Work(thread); });
    }
  }

  ~CpuTeam() override {
    work_ = nullptr;
    Begin();
    for (std::thread& worker : workers_) worker.join();
  }

  int32_t threads() const override { return threads_; }

  void Run(const std::function<void(int32_t)>& work) override {
    if (threads_ == 1) return work(0);
    work_ = &work;
    running_.store(threads_ - 1, std::memory_order_relaxed);
    Begin();
    work(0);
    for (int32_t left; (left = running_.load(std::memory_order_acquire)) != 0;) {
      AwaitChange(running_, left, spin_);
    }
  }

 private:
  void Begin() {
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
  }

  void Work(int32_t thread) {
    bool warm = false;
    for (int32_t seen = 0;; warm = true) {
      while (generation_.load(std::memory_order_acquire) == seen) {
        AwaitChange(generation_, seen, spin_ && warm);
      }
      // Run ends only after every worker has ended, so this is the next generation, no later one.
      seen = generation_.load(std::memory_order_relaxed);
      if (work_ == nullptr) return;
      (*work_)(thread);
      running_.fetch_sub(1, std::memory_order_release);
      running_.notify_one();
    }
  }

  const int32_t threads_;
  const bool spin_;
  const std::function<void(int32_t)>* work_ = nullptr;  // of the current generation; null: stop
  alignas(64) std::atomic<int32_t> generation_{0};      // counts loops; wraps
  alignas(64) std::atomic<int32_t> running_{0};         // workers that have not ended this one
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<Team> Team::Create(int32_t threads) {
  return std::make_unique<CpuTeam>(threads > 0 ? threads : CoreCount());
}

}  // namespace pdserve::engine
