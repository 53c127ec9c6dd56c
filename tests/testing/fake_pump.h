// Pumps whose transfers happen when a test says so, on the thread that calls FakeFabric::Run. Two
// or more of them share a fabric, which copies blocks between the pools as they are offered and
// wanted. Thread-safe; events are given without the lock.
#ifndef PDSERVE_TESTS_TESTING_FAKE_PUMP_H_
#define PDSERVE_TESTS_TESTING_FAKE_PUMP_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "kvtransfer/pump.h"

namespace pdserve::testing {

class FakePump;

class FakeFabric {
 public:
  /// Moves what can move and ends what has ended; each event is given to its pump's receiver.
  void Run();
  /// Flips a byte in each block that is copied from here on.
  void Corrupt() {
    MutexLock lock(&mutex_);
    corrupt_ = true;
  }

  uint64_t num_copied_blocks() const {
    MutexLock lock(&mutex_);
    return num_copied_blocks_;
  }
  size_t num_offers() const {
    MutexLock lock(&mutex_);
    return offers_.size();
  }
  size_t num_fetches() const {
    MutexLock lock(&mutex_);
    return fetches_.size();
  }

 private:
  friend class FakePump;
  struct Offer {
    FakePump* pump = nullptr;
    uint32_t num_blocks = 0;
    std::vector<std::span<const std::byte>> blocks;
    std::optional<kvtransfer::CommitRecord> commit;
    std::optional<absl::Status> end;
    bool is_fetched = false;
  };
  struct Fetch {
    FakePump* pump = nullptr;
    std::vector<std::span<std::byte>> destinations;
    size_t first_block = 0;
    size_t copied = 0;  // what is before the first block included
    std::optional<kvtransfer::CommitRecord> commit;
    std::optional<absl::Status> end;
  };
  void Move(Offer& offer, Fetch& fetch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::map<Ticket, Offer> offers_ ABSL_GUARDED_BY(mutex_);
  std::map<Ticket, Fetch> fetches_ ABSL_GUARDED_BY(mutex_);
  std::set<Ticket> used_ ABSL_GUARDED_BY(mutex_);  // of offers that have ended
  bool corrupt_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t num_copied_blocks_ ABSL_GUARDED_BY(mutex_) = 0;
};

class FakePump final : public kvtransfer::Pump {
 public:
  FakePump(FakeFabric* fabric, std::string address)
      : fabric_(fabric), address_(std::move(address)) {}

  void set_events(kvtransfer::PumpEvents* events) { events_ = events; }
  /// What the next Offer or Fetch answers; from the thread that makes it.
  void RefuseNext(absl::Status status) { refusal_ = std::move(status); }
  /// Ends what this pump has with `ticket` as the loss of the peer would.
  void Break(Ticket ticket);

  std::string address() const override { return address_; }
  absl::Status Offer(const kvtransfer::OfferSpec& spec) override;
  void Extend(Ticket ticket, std::vector<std::span<const std::byte>> blocks) override;
  void Commit(Ticket ticket, const kvtransfer::CommitRecord& record) override;
  void Withdraw(Ticket ticket, const std::string& reason) override;
  absl::Status Fetch(kvtransfer::FetchSpec spec) override;
  void CancelFetch(Ticket ticket, const std::string& reason) override;

 private:
  friend class FakeFabric;
  FakeFabric* const fabric_;
  const std::string address_;
  kvtransfer::PumpEvents* events_ = nullptr;
  absl::Status refusal_;
};

}  // namespace pdserve::testing

#endif  // PDSERVE_TESTS_TESTING_FAKE_PUMP_H_
