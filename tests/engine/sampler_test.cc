#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

namespace pdserve::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> RandomLogits(size_t count, uint32_t seed) {
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

uint32_t Pick(const std::vector<float>& logits, const SamplingSettings& settings,
              uint64_t position) {
  SamplerScratch scratch;
  return Sample(logits, settings, position, scratch).value;
}

// How often each token is drawn over many positions.
std::vector<double> Shares(const std::vector<float>& logits, const SamplingSettings& settings,
                           int draws) {
  std::vector<double> shares(logits.size());
  SamplerScratch scratch;
  for (int i = 0; i < draws; ++i) {
    shares[Sample(logits, settings, i, scratch).value] += 1.0 / draws;
  }
  return shares;
}

// The ids that top-k and top-p leave, by a whole sort.
std::vector<uint32_t> Allowed(const std::vector<float>& logits, const SamplingSettings& settings) {
  std::vector<uint32_t> order(logits.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  if (settings.top_k > 0) order.resize(std::min<size_t>(order.size(), settings.top_k));
  const auto weight = [&](uint32_t id) {
    return std::exp(double(logits[id] - logits[order[0]]) / settings.temperature);
  };
  double total = 0;
  for (const uint32_t id : order) total += weight(id);
  double sum = 0;
  size_t kept = 0;
  while (kept < order.size() && sum < settings.top_p * total) sum += weight(order[kept++]);
  order.resize(std::max<size_t>(kept, 1));
  return order;
}

TEST(SamplerTest, GreedyTakesTheHighestAndTheLowestIdOfEquals) {
  SamplingSettings greedy;
  greedy.temperature = 0;
  EXPECT_EQ(Pick({1, 5, 3, 5}, greedy, 0), 1u);
  EXPECT_EQ(Pick({-7}, greedy, 0), 0u);
}

TEST(SamplerTest, NonFiniteLogitsAreNotChosenBesideAFiniteOne) {
  const std::vector<float> logits = {kNan, kInfinity, -kInfinity, -1e30f, kNan};
  for (const float temperature : {0.0f, 1.0f, 1e-30f, 1e30f}) {
    for (const int32_t top_k : {0, 2}) {
      SamplingSettings settings{temperature, top_k == 0 ? 1.0f : 0.9f, top_k, 1, 0};
      for (uint64_t at = 0; at < 50; ++at) EXPECT_EQ(Pick(logits, settings, at), 3u);
    }
  }
}

TEST(SamplerTest, LogitsWithoutAFiniteOneStillGiveAToken) {
  for (const float temperature : {0.0f, 1.0f}) {
    SamplingSettings settings;
    settings.temperature = temperature;
    EXPECT_EQ(Pick({kNan, kInfinity, -kInfinity}, settings, 0), 0u);
  }
}

TEST(SamplerTest, SharesFollowTheSoftmax) {
  const std::vector<float> logits = RandomLogits(20, 5);
  SamplingSettings settings;
  settings.temperature = 0.8f;
  settings.seed = 99;
  double total = 0;
  for (const float logit : logits) total += std::exp(logit / 0.8);
  const auto shares = Shares(logits, settings, 40000);
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(shares[i], std::exp(logits[i] / 0.8) / total, 0.012) << i;
  }
}

TEST(SamplerTest, TopKAndTopPLeaveWhatAWholeSortLeaves) {
  const std::vector<float> logits = RandomLogits(60, 6);
  for (const auto& [top_k, top_p] : std::vector<std::pair<int32_t, float>>{
           {0, 0.3f}, {0, 0.9f}, {5, 1.0f}, {7, 0.8f}, {60, 0.99f}, {1000, 0.5f}, {0, 1e-9f}}) {
    const SamplingSettings settings{1.3f, top_p, top_k, 3, 0};
    std::vector<uint32_t> wanted = Allowed(logits, settings);
    std::sort(wanted.begin(), wanted.end());
    const auto shares = Shares(logits, settings, 20000);
    std::vector<uint32_t> seen;
    for (uint32_t i = 0; i < shares.size(); ++i) {
      if (shares[i] > 0) seen.push_back(i);
    }
    EXPECT_TRUE(std::includes(wanted.begin(), wanted.end(), seen.begin(), seen.end()));
    EXPECT_GE(seen.size() * 10, wanted.size() * 6) << top_k << " " << top_p;
    if (top_k > 0 && top_k <= 7) {
      EXPECT_EQ(seen, wanted) << top_k << " " << top_p;
    }
  }
}

TEST(SamplerTest, EqualLogitsAreTakenByIdWhenTopKCutsThroughThem) {
  SamplingSettings settings;
  settings.top_k = 3;
  const auto shares = Shares(std::vector<float>(100, 2.0f), settings, 3000);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(shares[i], 1.0 / 3, 0.04);
}

TEST(SamplerTest, AWideTopPSeesTheWholeVocabulary) {
  // All but flat: the prefix has to grow far before it is heavy enough.
  std::vector<float> logits(49152, 0.0f);
  logits[17] = 40.0f;
  SamplingSettings settings{5.0f, 0.999f, 0, 11, 0};
  const auto shares = Shares(logits, settings, 300);
  EXPECT_LT(shares[17], 0.2);
}

TEST(SamplerTest, TheTokenIsAFunctionOfSeedChoiceAndPosition) {
  const std::vector<float> logits(1000, 0.0f);
  SamplingSettings settings;
  settings.seed = 0x123456789abcdef0;
  const uint32_t token = Pick(logits, settings, 5);
  EXPECT_EQ(Pick(logits, settings, 5), token);
  int different = 0;
  for (uint64_t i = 1; i <= 20; ++i) {
    SamplingSettings other = settings;
    different += Pick(logits, settings, 5 + (i << 32)) != token;
    other.choice = static_cast<uint32_t>(i);
    different += Pick(logits, other, 5) != token;
    other = settings;
    other.seed ^= i << 40;
    different += Pick(logits, other, 5) != token;
  }
  EXPECT_GE(different, 57);
}

TEST(SamplerTest, DrawsAreTheSameOnEveryMachine) {
  // Recorded once: a change of these is a change of every seeded answer.
  std::vector<float> logits(1000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = float(i % 37) * 0.125f;
  const SamplingSettings all{0.7f, 1.0f, 0, 42, 1};
  const SamplingSettings best{1.1f, 0.95f, 40, 42, 1};
  std::vector<uint32_t> tokens;
  for (uint64_t i = 0; i < 4; ++i) tokens.push_back(Pick(logits, all, i));
  for (uint64_t i = 0; i < 4; ++i) tokens.push_back(Pick(logits, best, i));
  EXPECT_EQ(tokens, (std::vector<uint32_t>{29, 143, 220, 139, 36, 184, 295, 184}));
}

}  // namespace
}  // namespace pdserve::engine
