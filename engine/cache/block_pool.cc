#include "engine/cache/block_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/check.h"

namespace pdserve::engine {

absl::StatusOr<std::unique_ptr<BlockPool>> BlockPool::Create(size_t block_bytes, size_t pool_bytes,
                                                             int32_t prefix_block_tokens) {
  if (block_bytes == 0 || pool_bytes < block_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a cache pool of ", pool_bytes, " bytes holds no block of ", block_bytes, " bytes"));
  }
  const size_t most = std::numeric_limits<int32_t>::max();
  const auto capacity = static_cast<int32_t>(std::min(pool_bytes / block_bytes, most));
  const size_t bytes = size_t(capacity) * block_bytes;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for a cache pool of ", bytes, " bytes, errno ", errno));
  }
  return std::unique_ptr<BlockPool>(
      new BlockPool(block_bytes, capacity, static_cast<std::byte*>(memory), prefix_block_tokens));
}

BlockPool::BlockPool(size_t block_bytes, int32_t capacity, std::byte* base,
                     int32_t prefix_block_tokens)
    : block_bytes_(block_bytes), capacity_(capacity), base_(base), holders_(capacity) {
  if (prefix_block_tokens > 0) {
    prefixes_ = std::make_unique<PrefixCache>(capacity, prefix_block_tokens);
  }
  counts_.capacity = capacity;
  counts_.free = capacity;
  AddRun(0, capacity);
}

BlockPool::~BlockPool() { munmap(base_, size_t(capacity_) * block_bytes_); }

void BlockPool::AddRun(int32_t first, int32_t length) {
  runs_.emplace(first, length);
  runs_by_length_.emplace(length, first);
}

void BlockPool::TakeFromRun(int32_t first, int32_t count, std::vector<BlockId>& out) {
  const auto run = runs_.find(first);
  PD_CHECK(run != runs_.end() && run->second >= count);
  const int32_t length = run->second;
  runs_by_length_.erase({length, first});
  runs_.erase(run);
  if (length > count) AddRun(first + count, length - count);
  for (int32_t block = first; block < first + count; ++block) {
    holders_[block].sequences = 1;
    out.push_back(BlockId{static_cast<uint32_t>(block)});
  }
  counts_.free -= count;
  counts_.sequence += count;
}

bool BlockPool::Allocate(int32_t count, std::vector<BlockId>& out) {
  PD_CHECK(count >= 0);
  if (count > counts_.available()) return false;
  while (count > counts_.free) {
    const BlockId evicted = prefixes_->EvictOldest();
    --counts_.cached;
    Free(static_cast<int32_t>(evicted.value));
  }
  if (count > 0 && !out.empty()) {  // grow in place, so that neighbours make one piece
    const auto run = runs_.find(static_cast<int32_t>(out.back().value) + 1);
    if (run != runs_.end()) {
      const int32_t taken = std::min(count, run->second);
      TakeFromRun(run->first, taken, out);
      count -= taken;
    }
  }
  while (count > 0) {
    auto best = runs_by_length_.lower_bound({count, 0});
    if (best == runs_by_length_.end()) best = std::prev(best);
    const int32_t taken = std::min(count, best->first);
    TakeFromRun(best->second, taken, out);
    count -= taken;
  }
  return true;
}

void BlockPool::HoldForSequence(BlockId block) {
  Holders& holders = holders_[block.value];
  if (!holders.held()) {
    prefixes_->Wake(block);
    --counts_.cached;
    ++counts_.transfer;  // for a moment
  }
  if (holders.sequences++ > 0) return;
  --counts_.transfer;
  ++counts_.sequence;
}

void BlockPool::Hold(std::span<const BlockId> blocks, Owner owner) {
  for (BlockId block : blocks) {
    Holders& holders = holders_[block.value];
    PD_CHECK(holders.held());  // a free block is had by Allocate only, a cached one by TakePrefix
    if (owner == Owner::kTransfer) {
      ++holders.transfers;
    } else {
      HoldForSequence(block);
    }
  }
}

void BlockPool::Release(std::span<const BlockId> blocks, Owner owner) {
  for (BlockId block : blocks) {
    Holders& holders = holders_[block.value];
    if (owner == Owner::kSequence) {
      PD_CHECK(holders.sequences > 0);
      if (--holders.sequences > 0) continue;
      --counts_.sequence;
      ++counts_.transfer;
    } else {
      PD_CHECK(holders.transfers > 0);
      --holders.transfers;
    }
    if (!holders.held()) LetGo(block);
  }
}

void BlockPool::LetGo(BlockId block) {
  --counts_.transfer;
  if (prefixes_ != nullptr && prefixes_->contains(block)) {
    ++counts_.cached;
    prefixes_->Rest(block);
  } else {
    Free(static_cast<int32_t>(block.value));
  }
}

PrefixMatch BlockPool::FindPrefix(const Prefix& prefix) const {
  PrefixMatch match;
  if (prefixes_ == nullptr) return match;
  for (BlockId block : prefixes_->Find(prefix)) {
    ++match.blocks;
    if (!holders_[block.value].held()) ++match.cached;
  }
  return match;
}

int32_t BlockPool::TakePrefix(const Prefix& prefix, std::vector<BlockId>& out) {
  if (prefixes_ == nullptr) return 0;
  const std::vector<BlockId> found = prefixes_->Find(prefix);
  for (BlockId block : found) HoldForSequence(block);
  out.insert(out.end(), found.begin(), found.end());
  return static_cast<int32_t>(found.size());
}

void BlockPool::Keep(const Prefix& prefix, std::span<BlockId> blocks) {
  if (prefixes_ == nullptr) return;
  const auto block_tokens = static_cast<size_t>(prefixes_->block_tokens());
  const size_t whole = prefix.tokens.size() / block_tokens;
  PD_CHECK(whole <= blocks.size());
  size_t known = whole;  // a known block of a sequence has known ones before it
  while (known > 0 && !prefixes_->contains(blocks[known - 1])) --known;
  for (size_t i = known; i < whole; ++i) {
    const BlockId own = blocks[i];
    const BlockId kept = prefixes_->Insert(
        {prefix.salt, prefix.tokens.first((i + 1) * block_tokens)}, blocks.first(i), own);
    if (kept == own) continue;
    HoldForSequence(kept);
    Release({&own, 1}, Owner::kSequence);
    blocks[i] = kept;
  }
}

void BlockPool::Free(int32_t block) {
  ++counts_.free;
  int32_t first = block;
  int32_t length = 1;
  auto next = runs_.lower_bound(block);
  if (next != runs_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == block) {
      first = before->first;
      length += before->second;
      runs_by_length_.erase({before->second, before->first});
      runs_.erase(before);
    }
  }
  if (next != runs_.end() && next->first == block + 1) {
    length += next->second;
    runs_by_length_.erase({next->second, next->first});
    runs_.erase(next);
  }
  AddRun(first, length);
}

bool BlockPool::CheckRuns() const {
  int32_t in_runs = 0;
  int32_t end = -1;  // of the run before; runs are maximal, so the next begins beyond it
  for (const auto& [first, length] : runs_) {
    if (first <= end || length <= 0 || first + length > capacity_) return false;
    if (!runs_by_length_.contains({length, first})) return false;
    for (int32_t block = first; block < first + length; ++block) {
      if (holders_[block].held()) return false;
    }
    in_runs += length;
    end = first + length;
  }
  return in_runs == counts_.free && runs_by_length_.size() == runs_.size();
}

bool BlockPool::CheckIntegrity() const {
  PoolCounts seen;
  seen.capacity = capacity_;
  size_t known = 0;
  for (int32_t i = 0; i < capacity_; ++i) {
    const Holders& holders = holders_[i];
    const BlockId block{static_cast<uint32_t>(i)};
    const bool is_known = prefixes_ != nullptr && prefixes_->contains(block);
    if (is_known && prefixes_->resting(block) == holders.held()) return false;
    known += is_known ? 1 : 0;
    if (holders.sequences > 0) {
      ++seen.sequence;
    } else if (holders.transfers > 0) {
      ++seen.transfer;
    } else if (is_known) {
      ++seen.cached;
    } else {
      ++seen.free;
    }
  }
  if (prefixes_ != nullptr && (!prefixes_->CheckIntegrity() || known != prefixes_->num_known())) {
    return false;
  }
  return seen == counts_ && CheckRuns();
}

}  // namespace pdserve::engine
