// Keys with a time each, the earliest first. One thread.
#ifndef PDSERVE_KVTRANSFER_DEADLINE_QUEUE_H_
#define PDSERVE_KVTRANSFER_DEADLINE_QUEUE_H_

#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace pdserve::kvtransfer {

template <typename Key>
class DeadlineQueue {
 public:
  /// One time per key; the infinite future is no time.
  void Set(const Key& key, absl::Time at) {
    Remove(key);
    if (at == absl::InfiniteFuture()) return;
    times_[key] = at;
    queue_.emplace(at, key);
  }
  void Remove(const Key& key) {
    const auto found = times_.find(key);
    if (found == times_.end()) return;
    queue_.erase({found->second, key});
    times_.erase(found);
  }
  /// The keys whose time is `now` or before; they leave the queue.
  std::vector<Key> TakeDue(absl::Time now) {
    std::vector<Key> due;
    while (!queue_.empty() && queue_.begin()->first <= now) {
      due.push_back(queue_.begin()->second);
      times_.erase(due.back());
      queue_.erase(queue_.begin());
    }
    return due;
  }
  absl::Time next() const {
    return queue_.empty() ? absl::InfiniteFuture() : queue_.begin()->first;
  }

 private:
  absl::flat_hash_map<Key, absl::Time> times_;
  std::set<std::pair<absl::Time, Key>> queue_;
};

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_DEADLINE_QUEUE_H_
