// The node's cache memory in blocks. A block has two possible owners, its sequences and a transfer
// operation, counted apart; it is free again only when both counts are zero.
// Invariant: free + held by a sequence + held by a transfer alone = capacity.
// Thread: the step loop's, but for capacity(), base() and Address().
#ifndef PDSERVE_ENGINE_BLOCK_POOL_H_
#define PDSERVE_ENGINE_BLOCK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
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

  /// `count` blocks owned by a sequence, in runs of neighbours where there are any (best fit), or
  /// none at all and false.
  bool Allocate(int32_t count, std::vector<BlockId>& out);
  void Hold(std::span<const BlockId> blocks, Owner owner);
  void Release(std::span<const BlockId> blocks, Owner owner);
  PoolCounts counts() const { return counts_; }
  /// True when the counts agree with the state of every block; O(capacity).
  bool CheckIntegrity() const;

 private:
  BlockPool(size_t block_bytes, int32_t capacity, std::byte* base);

  struct Holders {
    uint16_t sequences = 0;
    uint16_t transfers = 0;
  };
  const size_t block_bytes_;
  const int32_t capacity_;
  std::byte* const base_;
  std::vector<Holders> holders_;  // [capacity]
  PoolCounts counts_;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_BLOCK_POOL_H_
