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
  explicit CpuTeam(int32_t threads)
      : threads_(threads), spin_(threads <= CoreCount()), parts_(threads) {
    workers_.reserve(threads - 1);
    for (int32_t thread = 1; thread < threads; ++thread) {
      workers_.emplace_back([this, thread] { Work(thread); });
    }
  }

  ~CpuTeam() override {
    is_over_.store(true, std::memory_order_relaxed);
    Call();
    for (std::thread& worker : workers_) worker.join();
  }

  int32_t threads() const override { return threads_; }

  void Run(int32_t count, int32_t piece, const Team::Work& work) override {
    for (int32_t thread = 0; thread < threads_; ++thread) {
      const Share share = ShareOf(count, thread, threads_);
      parts_[thread].next.store(share.first, std::memory_order_relaxed);
      parts_[thread].last = share.last;
    }
    piece_ = piece;
    work_ = &work;
    const bool is_shared = threads_ > 1 && count > piece;
    if (is_shared) {
      inside_.store(0, std::memory_order_release);
      Call();
    }
    TakeAll(0);
    if (is_shared) Close();
  }

 private:
  // A thread's part of the items. Threads look into each other's only when theirs is done.
  struct alignas(64) Part {
    std::atomic<int32_t> next{0};
    int32_t last = 0;
  };

  void TakeAll(int32_t thread) {
    for (int32_t i = 0; i < threads_; ++i) {
      Part& part = parts_[(thread + i) % threads_];
      if (part.next.load(std::memory_order_relaxed) >= part.last) continue;
      for (;;) {
        const int32_t at = part.next.fetch_add(piece_, std::memory_order_relaxed);
        if (at >= part.last) break;
        (*work_)(thread, {at, std::min(at + piece_, part.last)});
      }
    }
  }

  void Call() {
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
  }

  /// Nobody comes in any more; whoever is inside comes out.
  void Close() {
    int32_t left = inside_.fetch_or(kClosed, std::memory_order_acq_rel) | kClosed;
    while (left != kClosed) {
      AwaitChange(inside_, left, spin_);
      left = inside_.load(std::memory_order_acquire);
    }
  }

  bool Enter() {
    int32_t count = inside_.load(std::memory_order_relaxed);
    while ((count & kClosed) == 0) {
      if (inside_.compare_exchange_weak(count, count + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }

  void Work(int32_t thread) {
    bool warm = false;
    for (int32_t seen = 0;; warm = true) {
      while (generation_.load(std::memory_order_acquire) == seen) {
        AwaitChange(generation_, seen, spin_ && warm);
      }
      seen = generation_.load(std::memory_order_acquire);
      if (is_over_.load(std::memory_order_relaxed)) return;
      if (!Enter()) continue;  // too late
      TakeAll(thread);
      inside_.fetch_sub(1, std::memory_order_release);
      inside_.notify_one();
    }
  }

  static constexpr int32_t kClosed = 1 << 30;
  const int32_t threads_;
  const bool spin_;
  // Of the current loop; written while nobody is inside.
  const Team::Work* work_ = nullptr;
  int32_t piece_ = 1;
  std::vector<Part> parts_;
  std::atomic<bool> is_over_{false};
  alignas(64) std::atomic<int32_t> generation_{0};  // counts loops; wraps
  alignas(64) std::atomic<int32_t> inside_{
      kClosed};  // workers in the loop, and whether it is closed
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<Team> Team::Create(int32_t threads) {
  return std::make_unique<CpuTeam>(threads > 0 ? threads : CoreCount());
}

}  // namespace pdserve::engine
