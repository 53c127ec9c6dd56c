#include "engine/cache/block_pool.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace pdserve::engine {
namespace {

std::unique_ptr<BlockPool> MakePool(int32_t blocks) {
  return *BlockPool::Create(64, 64 * static_cast<size_t>(blocks));
}

std::vector<uint32_t> Values(const std::vector<BlockId>& blocks) {
  std::vector<uint32_t> values;
  for (BlockId block : blocks) values.push_back(block.value);
  return values;
}

TEST(BlockPoolTest, APoolBelowOneBlockIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(BlockPool::Create(64, 63).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(BlockPool::Create(0, 63).status()));
}

TEST(BlockPoolTest, MemoryThatCannotBeHadIsAnError) {
  EXPECT_TRUE(absl::IsResourceExhausted(BlockPool::Create(1 << 20, size_t{1} << 62).status()));
}

TEST(BlockPoolTest, AllocationIsAllOrNothing) {
  auto pool = MakePool(4);
  std::vector<BlockId> blocks;
  EXPECT_FALSE(pool->Allocate(5, blocks));
  EXPECT_TRUE(blocks.empty());
  EXPECT_TRUE(pool->Allocate(4, blocks));
  EXPECT_FALSE(pool->Allocate(1, blocks));
  EXPECT_EQ(blocks.size(), 4u);
}

TEST(BlockPoolTest, ABlockIsFreeOnlyWhenBothOwnersHaveLetGo) {
  auto pool = MakePool(2);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool->Allocate(1, blocks));
  pool->Hold(blocks, Owner::kTransfer);
  EXPECT_EQ(pool->counts(), (PoolCounts{2, 1, 1, 0}));
  pool->Release(blocks, Owner::kSequence);
  EXPECT_EQ(pool->counts(), (PoolCounts{2, 1, 0, 1}));
  EXPECT_TRUE(pool->CheckIntegrity());
  pool->Release(blocks, Owner::kTransfer);
  EXPECT_EQ(pool->counts(), (PoolCounts{2, 2, 0, 0}));
}

TEST(BlockPoolTest, SequencesThatShareABlockAreCounted) {
  auto pool = MakePool(1);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool->Allocate(1, blocks));
  pool->Hold(blocks, Owner::kSequence);
  pool->Release(blocks, Owner::kSequence);
  EXPECT_EQ(pool->counts().sequence, 1);
  pool->Release(blocks, Owner::kSequence);
  EXPECT_EQ(pool->counts().free, 1);
}

TEST(BlockPoolTest, TheSmallestRunThatFitsIsTaken) {
  auto pool = MakePool(10);
  std::vector<BlockId> all;
  ASSERT_TRUE(pool->Allocate(10, all));
  const auto release = [&](std::vector<BlockId> blocks) {
    pool->Release(blocks, Owner::kSequence);
  };
  release({all[0], all[1], all[2], all[3]});
  release({all[6], all[7]});
  std::vector<BlockId> two;
  ASSERT_TRUE(pool->Allocate(2, two));
  EXPECT_EQ(Values(two), (std::vector<uint32_t>{6, 7}));
}

TEST(BlockPoolTest, GrowthContinuesTheRunWhereTheNeighbourIsFree) {
  auto pool = MakePool(8);
  std::vector<BlockId> a;
  std::vector<BlockId> b;
  ASSERT_TRUE(pool->Allocate(2, a));
  ASSERT_TRUE(pool->Allocate(2, b));
  pool->Release(a, Owner::kSequence);  // 0 and 1 are the smaller run now
  ASSERT_TRUE(pool->Allocate(1, b));
  EXPECT_EQ(Values(b), (std::vector<uint32_t>{2, 3, 4}));
}

std::vector<TokenId> SomeTokens(uint32_t first, size_t count) {
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < count; ++i) tokens.push_back(TokenId{first + i});
  return tokens;
}

class CachingPoolTest : public ::testing::Test {
 protected:
  static constexpr int32_t kBlockTokens = 2;

  /// The blocks of a sequence that has computed `tokens`, findable.
  std::vector<BlockId> Computed(const std::vector<TokenId>& tokens) {
    std::vector<BlockId> blocks;
    EXPECT_TRUE(pool_->Allocate(static_cast<int32_t>(tokens.size() / kBlockTokens), blocks));
    pool_->Keep({"", tokens}, blocks);
    return blocks;
  }

  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(64, 64 * 6, kBlockTokens);
};

TEST_F(CachingPoolTest, BlocksOfAnEndedSequenceAreCachedAndFoundAgain) {
  const auto tokens = SomeTokens(1, 6);
  const auto blocks = Computed(tokens);
  pool_->Release(blocks, Owner::kSequence);
  EXPECT_EQ(pool_->counts(), (PoolCounts{6, 3, 0, 0, 3}));
  const PrefixMatch match = pool_->FindPrefix({"", tokens});
  EXPECT_EQ(match.blocks, 3);
  EXPECT_EQ(match.cached, 3);
  std::vector<BlockId> taken;
  EXPECT_EQ(pool_->TakePrefix({"", std::span(tokens).first(2 * kBlockTokens)}, taken), 2);
  EXPECT_EQ(Values(taken), Values({blocks[0], blocks[1]}));
  EXPECT_EQ(pool_->counts(), (PoolCounts{6, 3, 2, 0, 1}));
  EXPECT_EQ(pool_->FindPrefix({"", tokens}).cached, 1);
  EXPECT_TRUE(pool_->CheckIntegrity());
}

TEST_F(CachingPoolTest, FreeBlocksGoBeforeCachedOnesAndHeldOnesNever) {
  const auto held = SomeTokens(1, 4);
  const auto cached = SomeTokens(11, 4);
  Computed(held);
  pool_->Release(Computed(cached), Owner::kSequence);
  std::vector<BlockId> fresh;
  ASSERT_TRUE(pool_->Allocate(2, fresh));
  EXPECT_EQ(pool_->counts().cached, 2);
  ASSERT_TRUE(pool_->Allocate(1, fresh));
  EXPECT_EQ(pool_->FindPrefix({"", cached}).blocks, 1);  // the leaf went
  EXPECT_FALSE(pool_->Allocate(2, fresh));
  ASSERT_TRUE(pool_->Allocate(1, fresh));
  EXPECT_EQ(pool_->FindPrefix({"", cached}).blocks, 0);
  EXPECT_EQ(pool_->FindPrefix({"", held}).blocks, 2);
  EXPECT_TRUE(pool_->CheckIntegrity());
}

TEST_F(CachingPoolTest, ABlockInATransferIsNotEvicted) {
  const auto tokens = SomeTokens(1, 8);
  const auto blocks = Computed(tokens);
  pool_->Hold(blocks, Owner::kTransfer);
  pool_->Release(blocks, Owner::kSequence);
  std::vector<BlockId> fresh;
  EXPECT_FALSE(pool_->Allocate(3, fresh));
  ASSERT_TRUE(pool_->Allocate(2, fresh));
  EXPECT_EQ(pool_->FindPrefix({"", tokens}).blocks, 4);
  pool_->Release(blocks, Owner::kTransfer);
  EXPECT_EQ(pool_->counts(), (PoolCounts{6, 0, 2, 0, 4}));
}

TEST_F(CachingPoolTest, WhatTwoHaveComputedIsKeptOnce) {
  const auto tokens = SomeTokens(1, 4);
  const auto first = Computed(tokens);
  const auto second = Computed(tokens);
  EXPECT_EQ(Values(first), Values(second));
  EXPECT_EQ(pool_->counts(), (PoolCounts{6, 4, 2, 0, 0}));
  EXPECT_FALSE(pool_->IsHeldOnlyBy(1, first[0]));
  EXPECT_TRUE(pool_->IsHeldOnlyBy(2, first[0]));
  pool_->Release(first, Owner::kSequence);
  EXPECT_TRUE(pool_->IsHeldOnlyBy(1, first[0]));
  pool_->Hold(first, Owner::kTransfer);
  EXPECT_FALSE(pool_->IsHeldOnlyBy(1, first[0]));
}

TEST_F(CachingPoolTest, TheLastPartOfABlockIsNotKept) {
  auto tokens = SomeTokens(1, 4);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool_->Allocate(2, blocks));
  pool_->Keep({"", std::span(tokens).first(3)}, blocks);
  EXPECT_EQ(pool_->FindPrefix({"", tokens}).blocks, 1);
  pool_->Release(blocks, Owner::kSequence);
  EXPECT_EQ(pool_->counts(), (PoolCounts{6, 5, 0, 0, 1}));
}

TEST(BlockPoolTest, WithoutAPrefixCacheNothingIsFoundAndNothingStays) {
  auto pool = MakePool(2);
  const auto tokens = SomeTokens(1, 64);
  std::vector<BlockId> blocks;
  ASSERT_TRUE(pool->Allocate(2, blocks));
  pool->Keep({"", tokens}, blocks);
  EXPECT_EQ(pool->FindPrefix({"", tokens}).blocks, 0);
  pool->Release(blocks, Owner::kSequence);
  EXPECT_EQ(pool->counts(), (PoolCounts{2, 2, 0, 0, 0}));
}

TEST(BlockPoolTest, AddressesAreBlocksOfTheBase) {
  auto pool = MakePool(3);
  EXPECT_EQ(pool->Address(BlockId{2}).data(), pool->base() + 128);
  EXPECT_EQ(pool->Address(BlockId{2}).size(), 64u);
}

TEST(BlockPoolTest, RandomUseKeepsTheInvariant) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    auto pool = MakePool(50);
    std::vector<std::pair<std::vector<BlockId>, Owner>> held;
    for (int i = 0; i < 2000; ++i) {
      if (random() % 2 == 0) {
        std::vector<BlockId> blocks;
        const auto count = static_cast<int32_t>(random() % 12);
        const bool fits = count <= pool->counts().free;
        ASSERT_EQ(pool->Allocate(count, blocks), fits);
        if (!fits) continue;
        if (random() % 2 == 0) {
          pool->Hold(blocks, Owner::kTransfer);
          held.emplace_back(blocks, Owner::kTransfer);
        }
        held.emplace_back(blocks, Owner::kSequence);
      } else if (!held.empty()) {
        std::swap(held[random() % held.size()], held.back());
        pool->Release(held.back().first, held.back().second);
        held.pop_back();
      }
      ASSERT_TRUE(pool->CheckIntegrity());
      const PoolCounts counts = pool->counts();
      ASSERT_EQ(counts.free + counts.sequence + counts.transfer, counts.capacity);
    }
    for (const auto& [blocks, owner] : held) pool->Release(blocks, owner);
    EXPECT_EQ(pool->counts().free, 50);
  }
}

}  // namespace
}  // namespace pdserve::engine
