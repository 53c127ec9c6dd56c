#include "engine/cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace pdserve::engine {
namespace {

constexpr int32_t kBlockTokens = 4;

std::vector<TokenId> Tokens(std::initializer_list<uint32_t> runs) {
  std::vector<TokenId> tokens;
  for (uint32_t run : runs) {
    for (uint32_t i = 0; i < kBlockTokens; ++i) tokens.push_back(TokenId{run * 10 + i});
  }
  return tokens;
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  /// Makes the runs known under blocks first, first + 1, ...; returns the blocks that stand for
  /// them.
  std::vector<BlockId> Insert(const std::string& salt, std::initializer_list<uint32_t> runs,
                              uint32_t first) {
    const auto tokens = Tokens(runs);
    std::vector<BlockId> chain;
    for (size_t i = 1; i <= runs.size(); ++i) {
      const Prefix prefix{salt, std::span(tokens).first(i * kBlockTokens)};
      const BlockId own{first + static_cast<uint32_t>(i) - 1};
      chain.push_back(cache_.Insert(prefix, chain, own));
    }
    return chain;
  }
  std::vector<BlockId> Find(const std::string& salt, std::initializer_list<uint32_t> runs) {
    const auto tokens = Tokens(runs);
    return cache_.Find({salt, tokens});
  }
  void Rest(const std::vector<BlockId>& blocks) {
    for (BlockId block : blocks) cache_.Rest(block);
  }
  uint32_t Evict() { return cache_.EvictOldest().value; }

  PrefixCache cache_{16, kBlockTokens};
};

std::vector<BlockId> Ids(std::initializer_list<uint32_t> values) {
  std::vector<BlockId> ids;
  for (uint32_t value : values) ids.push_back(BlockId{value});
  return ids;
}

TEST_F(PrefixCacheTest, TheLongestKnownRunOfWholeBlocksIsFound) {
  Insert("", {1, 2, 3}, 0);
  EXPECT_EQ(Find("", {1, 2, 3}), Ids({0, 1, 2}));
  EXPECT_EQ(Find("", {1, 2, 3, 4}), Ids({0, 1, 2}));
  EXPECT_EQ(Find("", {1, 2, 4}), Ids({0, 1}));
  EXPECT_EQ(Find("", {2, 3}), Ids({}));
  auto tokens = Tokens({1, 2});
  tokens.pop_back();
  EXPECT_EQ(cache_.Find({"", tokens}), Ids({0}));
}

TEST_F(PrefixCacheTest, TheSameRunAfterAnotherStartIsAnotherBlock) {
  Insert("", {1, 2}, 0);
  Insert("", {3, 2}, 4);
  EXPECT_EQ(Find("", {1, 2}), Ids({0, 1}));
  EXPECT_EQ(Find("", {3, 2}), Ids({4, 5}));
  EXPECT_TRUE(cache_.CheckIntegrity());
}

TEST_F(PrefixCacheTest, OneTenantNeverFindsAnothers) {
  Insert("a", {1, 2}, 0);
  EXPECT_EQ(Find("b", {1, 2}), Ids({}));
  EXPECT_EQ(Find("", {1, 2}), Ids({}));
  Insert("b", {1, 2}, 4);
  EXPECT_EQ(Find("b", {1, 2}), Ids({4, 5}));
  EXPECT_EQ(Find("a", {1, 2}), Ids({0, 1}));
}

TEST_F(PrefixCacheTest, WhatIsKnownKeepsItsBlock) {
  Insert("", {1, 2}, 0);
  EXPECT_EQ(Insert("", {1, 2, 3}, 8), Ids({0, 1, 10}));
  EXPECT_FALSE(cache_.contains(BlockId{8}));
  EXPECT_TRUE(cache_.CheckIntegrity());
}

TEST_F(PrefixCacheTest, LeavesGoFirstAndTheLongestRestedOnesBeforeOthers) {
  const auto old = Insert("", {1, 2}, 0);
  const auto shared = Insert("", {1, 3}, 4);  // 0, 5
  const auto recent = Insert("", {7}, 9);
  cache_.Rest(old[1]);
  cache_.Rest(recent[0]);
  cache_.Rest(shared[1]);
  cache_.Rest(old[0]);  // the root of two leaves
  EXPECT_EQ(Evict(), 1u);
  EXPECT_EQ(Evict(), 9u);
  EXPECT_EQ(Evict(), 5u);
  EXPECT_EQ(Evict(), 0u);
  EXPECT_EQ(cache_.num_known(), 0u);
  EXPECT_TRUE(cache_.CheckIntegrity());
}

TEST_F(PrefixCacheTest, WhatWakesIsNotEvictedAndRestsAnew) {
  const auto first = Insert("", {1}, 0);
  const auto second = Insert("", {2}, 1);
  Rest(first);
  Rest(second);
  cache_.Wake(first[0]);
  EXPECT_EQ(Evict(), 1u);
  EXPECT_TRUE(cache_.contains(first[0]));
  cache_.Rest(first[0]);
  EXPECT_EQ(Evict(), 0u);
}

TEST_F(PrefixCacheTest, AnEvictedBlockMayStandForOtherTokens) {
  Rest(Insert("a", {1, 2}, 0));
  Evict();
  Evict();
  Insert("b", {2, 1}, 0);
  EXPECT_EQ(Find("a", {1, 2}), Ids({}));
  EXPECT_EQ(Find("b", {2, 1}), Ids({0, 1}));
  EXPECT_TRUE(cache_.CheckIntegrity());
}

TEST_F(PrefixCacheTest, ASaltIsForgottenWithItsLastBlock) {
  for (uint32_t i = 0; i < 100; ++i) {
    Rest(Insert("salt " + std::to_string(i), {1}, 0));
    Evict();
    EXPECT_TRUE(cache_.CheckIntegrity());
  }
}

}  // namespace
}  // namespace pdserve::engine
