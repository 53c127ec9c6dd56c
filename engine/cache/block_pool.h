// The node's cache memory in blocks. A block has two possible owners, its sequences and a transfer
// operation, counted apart; only when both counts are zero is it free again, or cached: held by
// nobody, but its content findable by the exact tokens it stands for (prefix_cache.h).
// Invariants: free + cached + held by a sequence + held by a transfer alone = capacity; a findable
// block is never written again before it has been evicted, and only a cached one is evicted.
// Thread: the step loop's, but for capacity(), block_bytes(), base() and Address().
#ifndef PDSERVE_ENGINE_CACHE_BLOCK_POOL_H_
#define PDSERVE_ENGINE_CACHE_BLOCK_POOL_H_

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
#include "engine/cache/prefix_cache.h"

namespace pdserve::engine {

enum class Owner { kSequence, kTransfer };

struct PoolCounts {
  int32_t capacity = 0;
  int32_t free = 0;
  int32_t sequence = 0;  // at least one sequence holds it
  int32_t transfer = 0;  // held by transfers alone
  int32_t cached = 0;    // held by nobody, content findable

  /// What Allocate can give.
  int32_t available() const { return free + cached; }
  friend bool operator==(const PoolCounts&, const PoolCounts&) = default;
};

/// What the prefix cache knows of some tokens.
struct PrefixMatch {
  int32_t blocks = 0;  // whole blocks from the start
  int32_t cached = 0;  // of them, those that nobody holds: to take them leaves less to allocate

  /// Blocks that need not come out of the available ones. Others' allocations evict cached blocks
  /// only, so this stays until somebody lets a block go.
  int32_t held() const { return blocks - cached; }
};

class BlockPool {
 public:
  /// `prefix_block_tokens`: tokens in a block; 0 is no prefix cache, then nothing is ever found.
  /// ResourceExhausted where the memory can't be had; InvalidArgument below one block.
  static absl::StatusOr<std::unique_ptr<BlockPool>> Create(size_t block_bytes, size_t pool_bytes,
                                                           int32_t prefix_block_tokens = 0);
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
  /// blocks that holds them all is taken, else the largest runs. Where free blocks are short,
  /// cached ones are evicted, the least recently used first.
  bool Allocate(int32_t count, std::vector<BlockId>& out);
  void Hold(std::span<const BlockId> blocks, Owner owner);
  void Release(std::span<const BlockId> blocks, Owner owner);
  PoolCounts counts() const { return counts_; }
  /// True: no transfer holds the block, and no more than so many sequences.
  bool IsHeldOnlyBy(uint32_t sequences, BlockId block) const {
    const Holders& holders = holders_[block.value];
    return holders.sequences <= sequences && holders.transfers == 0;
  }

  bool has_prefix_cache() const { return prefixes_ != nullptr; }
  PrefixMatch FindPrefix(const Prefix& prefix) const;
  /// Appends the blocks that FindPrefix counts, held for a sequence, and returns their number. They
  /// are shared: nobody may write to them.
  int32_t TakePrefix(const Prefix& prefix, std::vector<BlockId>& out);
  /// Makes the whole blocks of `prefix.tokens` findable: `blocks` are theirs from the start, held
  /// by a sequence that took them or has computed them, and that writes to them no more. Where the
  /// tokens were known already, the known block takes the place of the sequence's own.
  void Keep(const Prefix& prefix, std::span<BlockId> blocks);

  /// True when counts, free runs and prefix cache agree with the state of every block; O(capacity).
  bool CheckIntegrity() const;

 private:
  struct Holders {
    uint32_t sequences = 0;
    uint32_t transfers = 0;

    bool held() const { return sequences + transfers > 0; }
  };

  BlockPool(size_t block_bytes, int32_t capacity, std::byte* base, int32_t prefix_block_tokens);
  void AddRun(int32_t first, int32_t length);
  void TakeFromRun(int32_t first, int32_t count, std::vector<BlockId>& out);
  void HoldForSequence(BlockId block);
  void LetGo(BlockId block);
  void Free(int32_t block);
  bool CheckRuns() const;

  const size_t block_bytes_;
  const int32_t capacity_;
  std::byte* const base_;
  std::vector<Holders> holders_;  // [capacity]
  PoolCounts counts_;
  std::unique_ptr<PrefixCache> prefixes_;  // nullptr: off
  // Free runs, maximal: no two touch. The same runs twice: first > length, and (length, first).
  std::map<int32_t, int32_t> runs_;
  std::set<std::pair<int32_t, int32_t>> runs_by_length_;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_CACHE_BLOCK_POOL_H_
