// The attempts of one role, found by key, by ticket and by deadline. Owned by the role; the step
// loop's thread. `Attempt` has a Sequence `sequence`, whose key and deadline do not change, and an
// optional Ticket `ticket`. Pointers stay good until Erase.
#ifndef PDSERVE_ENGINE_ATTEMPT_TABLE_H_
#define PDSERVE_ENGINE_ATTEMPT_TABLE_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/check.h"
#include "engine/attempt.h"

namespace pdserve::engine {

template <typename Attempt>
class AttemptTable {
 public:
  Attempt* Add(std::unique_ptr<Attempt> attempt) {
    Attempt* added = attempt.get();
    const AttemptKey key = added->sequence.key();
    PD_CHECK(attempts_.emplace(key, std::move(attempt)).second);
    deadlines_.emplace(added->sequence.deadline, key);
    if (added->ticket) tickets_[*added->ticket] = added;
    return added;
  }

  /// nullptr where there is none.
  Attempt* Find(const AttemptKey& key) const {
    const auto found = attempts_.find(key);
    return found == attempts_.end() ? nullptr : found->second.get();
  }
  Attempt* Find(const Ticket& ticket) const {
    const auto found = tickets_.find(ticket);
    return found == tickets_.end() ? nullptr : found->second;
  }

  void Erase(Attempt* attempt) {
    const AttemptKey key = attempt->sequence.key();
    deadlines_.erase({attempt->sequence.deadline, key});
    if (attempt->ticket) tickets_.erase(*attempt->ticket);
    PD_CHECK(attempts_.erase(key) == 1);
  }

  /// An attempt whose deadline is not after `now`, or nullptr; call until it is.
  Attempt* Expired(absl::Time now) const {
    if (deadlines_.empty() || deadlines_.begin()->first > now) return nullptr;
    return Find(deadlines_.begin()->second);
  }
  absl::Time NextDeadline() const {
    return deadlines_.empty() ? absl::InfiniteFuture() : deadlines_.begin()->first;
  }

  size_t size() const { return attempts_.size(); }

 private:
  absl::flat_hash_map<AttemptKey, std::unique_ptr<Attempt>> attempts_;
  absl::flat_hash_map<Ticket, Attempt*> tickets_;
  absl::btree_set<std::pair<absl::Time, AttemptKey>> deadlines_;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_ATTEMPT_TABLE_H_
