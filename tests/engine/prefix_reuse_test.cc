// Pool and prefix cache together: random lives of sequences and transfers over shared prefixes, and
// the model's results on blocks that another sequence has computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/batch.h"
#include "engine/cache/block_pool.h"
#include "engine/cache_layout.h"
#include "engine/model.h"
#include "tests/engine/model_runner.h"
#include "tests/testing/files.h"

namespace pdserve::engine::testing {
namespace {

constexpr int32_t kBlockTokens = 4;

struct Life {
  std::string salt;
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;
};

/// Sequences whose "computation" writes into each block what its chain of tokens demands, so that
/// every block that is found again can be compared with what was put into it.
class Simulation {
 public:
  Simulation(uint64_t seed, int32_t blocks) : random_(seed) {
    pool_ = *BlockPool::Create(64, 64 * static_cast<size_t>(blocks), kBlockTokens);
  }

  void Act() {
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        Begin();
        break;
      case 3:
        if (!lives_.empty()) Grow(Pick(lives_));
        break;
      case 4:
        if (!lives_.empty()) Ship(Pick(lives_));
        break;
      case 5:
        EndTransfer();
        break;
      default:
        EndLife();
    }
    for (const Life& life : lives_) ExpectContent(life);
    for (const Life& shipped : transfers_) ExpectContent(shipped);
  }

  void EndAll() {
    while (!lives_.empty()) EndLife();
    while (!transfers_.empty()) EndTransfer();
  }
  const BlockPool& pool() const { return *pool_; }
  int64_t reused_blocks() const { return reused_blocks_; }

 private:
  Life& Pick(std::vector<Life>& from) { return from[random_() % from.size()]; }

  void Begin() {
    Life life;
    life.salt = random_() % 4 == 0 ? "tenant" : "";
    const size_t length = 1 + random_() % 40;
    // Few distinct tokens, rarely changed: many common prefixes.
    for (size_t i = 0; i < length; ++i) {
      life.tokens.push_back(TokenId{static_cast<uint32_t>(random_() % 16 == 0)});
    }
    const Prefix prefix{life.salt, life.tokens};
    const PrefixMatch match = pool_->FindPrefix(prefix);
    const int32_t all = BlocksFor(static_cast<int64_t>(length), kBlockTokens);
    const int32_t wanted = all - match.blocks;
    if (wanted + match.cached > pool_->counts().available()) return;
    ASSERT_EQ(pool_->TakePrefix(prefix, life.blocks), match.blocks);
    reused_blocks_ += match.blocks;
    ExpectContent(life);  // before anything of it has been written
    ASSERT_TRUE(pool_->Allocate(wanted, life.blocks));
    Write(life, static_cast<size_t>(match.blocks));
    if (random_() % 4 != 0) pool_->Keep({life.salt, life.tokens}, life.blocks);
    lives_.push_back(std::move(life));
  }

  void Grow(Life& life) {
    pool_->Keep({life.salt, life.tokens}, life.blocks);
    const size_t known = life.tokens.size() / kBlockTokens;
    for (uint64_t i = random_() % 6; i > 0; --i) {
      const bool is_full = life.tokens.size() == life.blocks.size() * kBlockTokens;
      if (is_full && !pool_->Allocate(1, life.blocks)) break;
      life.tokens.push_back(TokenId{static_cast<uint32_t>(random_() % 2)});
    }
    Write(life, known);
  }

  void Ship(Life& life) {
    pool_->Keep({life.salt, life.tokens}, life.blocks);  // as the roles do: first known, then sent
    pool_->Hold(life.blocks, Owner::kTransfer);
    transfers_.push_back(life);
    if (random_() % 2 == 0) return;
    pool_->Release(life.blocks, Owner::kSequence);
    std::swap(life, lives_.back());
    lives_.pop_back();
  }

  void EndTransfer() {
    if (transfers_.empty()) return;
    std::swap(Pick(transfers_), transfers_.back());
    ExpectContent(transfers_.back());
    pool_->Release(transfers_.back().blocks, Owner::kTransfer);
    transfers_.pop_back();
  }

  void EndLife() {
    if (lives_.empty()) return;
    std::swap(Pick(lives_), lives_.back());
    Life& life = lives_.back();
    if (random_() % 4 != 0) pool_->Keep({life.salt, life.tokens}, life.blocks);
    pool_->Release(life.blocks, Owner::kSequence);
    lives_.pop_back();
  }

  /// What a block must hold: a number for its salt and every token up to its end.
  static uint64_t Content(const Life& life, size_t block_idx) {
    uint64_t chain = std::hash<std::string>{}(life.salt);
    const size_t end = std::min(life.tokens.size(), (block_idx + 1) * kBlockTokens);
    for (size_t i = 0; i < end; ++i) {
      chain = (chain + life.tokens[i].value + 1) * 0x9e3779b97f4a7c15;
    }
    return chain;
  }
  void Write(const Life& life, size_t first) {
    for (size_t i = first; i < life.blocks.size(); ++i) {
      const uint64_t content = Content(life, i);
      std::memcpy(pool_->Address(life.blocks[i]).data(), &content, sizeof(content));
    }
  }
  void ExpectContent(const Life& life) const {
    // A partial last block of a transfer may have been written on by its sequence.
    const size_t whole = life.tokens.size() / kBlockTokens;
    for (size_t i = 0; i < std::min(whole, life.blocks.size()); ++i) {
      uint64_t content = 0;
      std::memcpy(&content, pool_->Address(life.blocks[i]).data(), sizeof(content));
      ASSERT_EQ(content, Content(life, i)) << "block " << i;
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<BlockPool> pool_;
  std::vector<Life> lives_;
  std::vector<Life> transfers_;
  int64_t reused_blocks_ = 0;
};

TEST(PrefixReuseTest, RandomLivesKeepTheSumAndFindOnlyWhatWasPutIn) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Simulation simulation(seed, 40);
    for (int i = 0; i < 1500 && !::testing::Test::HasFailure(); ++i) {
      simulation.Act();
      const PoolCounts counts = simulation.pool().counts();
      ASSERT_EQ(counts.free + counts.cached + counts.sequence + counts.transfer, counts.capacity);
      ASSERT_TRUE(simulation.pool().CheckIntegrity()) << "after operation " << i;
    }
    simulation.EndAll();
    EXPECT_EQ(simulation.pool().counts().available(), 40);
    EXPECT_TRUE(simulation.pool().CheckIntegrity());
    EXPECT_GT(simulation.reused_blocks(), 500);
  }
}

class PrefixBitsTest : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};
INSTANTIATE_TEST_SUITE_P(Kinds, PrefixBitsTest,
                         ::testing::Values(std::pair("int8", "bf16"), std::pair("fp32", "fp32")),
                         [](const auto& info) { return std::string(info.param.first); });

/// Computes tokens [computed, end) in chunks on `blocks`; the last one's logits.
std::vector<float> Compute(Model& model, BlockPool& pool, const Life& life, size_t computed,
                           size_t chunk) {
  std::vector<float> logits(static_cast<size_t>(model.card().vocab_size));
  for (size_t at = computed; at < life.tokens.size(); at += chunk) {
    const size_t count = std::min(chunk, life.tokens.size() - at);
    Batch batch;
    batch.segments.push_back(
        {0, static_cast<int32_t>(count), static_cast<int32_t>(at), life.blocks});
    batch.tokens.assign(life.tokens.begin() + at, life.tokens.begin() + at + count);
    batch.logit_rows.push_back(static_cast<int32_t>(count) - 1);
    model.Forward(batch, pool.base(), logits.data());
  }
  return logits;
}

TEST_P(PrefixBitsTest, LogitsAfterAReusedPrefixAreTheSameBits) {
  ModelOptions options;
  options.path = pdserve::testing::TestData("gguf/tiny-llama.gguf");
  options.activations = GetParam().first;
  options.kv_dtype = GetParam().second;
  options.threads = 2;
  options.max_rows = 128;
  const auto model = MustLoad(options);
  const CacheLayout& layout = model->card().cache_layout;
  const size_t bytes = layout.block_bytes() * 24;
  Life long_one;
  for (uint32_t i = 0; i < 120; ++i) {
    long_one.tokens.push_back({(i * 7919 + 13) % static_cast<uint32_t>(model->card().vocab_size)});
  }
  for (const size_t common : {32, 33, 64, 95, 96, 119}) {
    Life second = long_one;
    for (size_t i = common; i < second.tokens.size(); ++i) second.tokens[i].value ^= 1;
    // Alone, on a pool that knows nothing.
    auto fresh = *BlockPool::Create(layout.block_bytes(), bytes);
    Life alone = second;
    ASSERT_TRUE(fresh->Allocate(4, alone.blocks));
    const std::vector<float> wanted = Compute(*model, *fresh, alone, 0, 120);

    auto pool = *BlockPool::Create(layout.block_bytes(), bytes, layout.block_tokens);
    Life first = long_one;
    ASSERT_TRUE(pool->Allocate(4, first.blocks));
    Compute(*model, *pool, first, 0, 17);
    pool->Keep({"", first.tokens}, first.blocks);
    pool->Release(first.blocks, Owner::kSequence);
    const PrefixMatch match = pool->FindPrefix({"", second.tokens});
    ASSERT_EQ(match.blocks, static_cast<int32_t>(common) / layout.block_tokens);
    ASSERT_EQ(pool->TakePrefix({"", second.tokens}, second.blocks), match.blocks);
    ASSERT_TRUE(pool->Allocate(4 - match.blocks, second.blocks));
    const auto reused = static_cast<size_t>(match.blocks * layout.block_tokens);
    EXPECT_EQ(Compute(*model, *pool, second, reused, 11), wanted) << common;
  }
}

}  // namespace
}  // namespace pdserve::engine::testing
