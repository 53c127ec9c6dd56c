// The node's cache memory in blocks. A block has two possible owners, its sequences and a transfer
// operation, counted apart; it is free again only when both counts are zero.
// Invariant: free + held by a sequence + held by a transfer alone = capacity.
// Thread: the step loop's, but for capacity(), block_bytes(), base() and Address().
#ifndef PDSERVE_ENGINE_BLOCK_POOL_H_
#define PDSERVE_ENGINE_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"

namespace pdserve::engine {

enum class Owner { kSequence, kTransfer };

struct PoolCounts {
  int32_t capacity = 0;
  int32_t free = 0;
  int32_t sequence = 0;  // at least one sequence holds it
  int32_t transfer = 0;  // held by transfers alone

  friend bool operator==(const PoolCounts&, const PoolCounts&) = default;
};

class BlockPool {
 public:
  /// ResourceExhausted where the memory can't be had; InvalidArgument below one block.
  static absl::StatusOr<std::unique_ptr<BlockPool>> Create(size_t block_bytes, size_t pool_bytes);
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int32_t capacity() const { return capacity_; }
  size_t block_bytes() const { return block_bytes_; }
  std::byte* base() const { return base_; }
  std::span<std::byte> Address(BlockId block) const {
    return {base_ + size_t(block.value) * block_bytes_, block_bytes_};
  }

  /// Appends `count` blocks to `out`, owned by a sequence, or none at all and false. They follow
  /// on the last block of `out` where its neighbours are free; else the smallest run of free
  /// blocks that holds them all is taken, else the largest runs.
  bool Allocate(int32_t count, std::vector<BlockId>& out);
  void Hold(std::span<const BlockId> blocks, Owner owner);
  void Release(std::span<const BlockId> blocks, Owner owner);
  PoolCounts counts() const { return counts_; }
  /// True when the counts and the free runs agree with the state of every block; O(capacity).
  bool CheckIntegrity() const;

 private:
  struct Holders {
    uint16_t sequences = 0;
    uint16_t transfers = 0;
  };

  BlockPool(size_t block_bytes, int32_t capacity, std::byte* base);
  void AddRun(int32_t first, int32_t length);
  void TakeFromRun(int32_t first, int32_t count, std::vector<BlockId>& out);
  void Free(int32_t block);

  const size_t block_bytes_;
  const int32_t capacity_;
  std::byte* const base_;
  std::vector<Holders> holders_;  // [capacity]
  PoolCounts counts_;
  // Free runs, maximal: no two touch. The same runs twice: first > length, and (length, first).
  std::map<int32_t, int32_t> runs_;
  std::set<std::pair<int32_t, int32_t>> runs_by_length_;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_BLOCK_POOL_H_
