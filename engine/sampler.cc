#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace pdserve::engine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kRunLength = 512;  // weights summed one by one before sums are summed

constexpr float kDeepest = 87.0f;  // weights below e^-87 are 0

// Philox4x32-10 (Salmon et al., 2011): ten rounds over a 128-bit counter with a 64-bit key.
std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, uint64_t seed) {
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t{0xD2511F53} * counter[0];
    const uint64_t right = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(right >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(right),
               static_cast<uint32_t>(left >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(left)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

// In [0, 1), with 53 random bits.
double Uniform(const SamplingSettings& settings, uint64_t position) {
  const auto words = Philox(
      {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), settings.choice, 0},
      settings.seed);
  return static_cast<double>((uint64_t{words[0]} << 32 | words[1]) >> 11) * 0x1p-53;
}

// e^x for x <= 0 to within 2e-7, by plain float arithmetic: the same bits on every machine, which
// a library's exp does not promise. 0 below -kDeepest.
inline float Exp(float x) {
  const float clamped = x < -kDeepest ? -kDeepest : x;
  const float shifted = clamped * 1.44269504f + 12582912.0f;  // 1.5 * 2^23 rounds to an integer
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) - 0x4B400000u + 127u) << 23;
  const float result = p * std::bit_cast<float>(exponent);
  return x < -kDeepest ? 0.0f : result;
}

// The best of the finite logits, the lowest id of equals; 0 where none is finite.
uint32_t Best(std::span<const float> logits) {
  uint32_t best = 0;
  float value = -kInfinity;
  for (uint32_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > value && logits[id] < kInfinity) {
      value = logits[id];
      best = id;
    }
  }
  return best;
}

// One draw from `logits`; a token's weight is e^((logit - highest) / temperature).
class Draw {
 public:
  Draw(std::span<const float> logits, const SamplingSettings& settings, SamplerScratch& scratch)
      : logits_(logits), settings_(settings), scratch_(scratch) {
    highest_ = logits[Best(logits)];
    if (!std::isfinite(highest_)) finite_ = false;
  }

  bool any_finite() const { return finite_; }

  // From all tokens, in id order.
  uint32_t FromAll(double uniform) {
    const double total = WeighAll();
    return Pick(uniform * total, [](size_t i) { return static_cast<uint32_t>(i); });
  }

  // From the tokens that top-k and top-p leave, best first.
  uint32_t FromBest(double uniform) {
    const double share = settings_.top_p < 1.0f ? settings_.top_p : 2.0;
    const bool top_k = settings_.top_k > 0;
    const size_t limit = top_k ? size_t(settings_.top_k) : logits_.size();
    const double total = top_k ? 0 : WeighAll();
    // The tokens above a threshold are a prefix of the sorted order: as soon as it is long or heavy
    // enough for the answer, the rest need not be sorted.
    for (float depth = 8;; depth *= 2) {
      const bool all = Gather(depth);
      SortBest(limit);
      if (top_k && scratch_.order.size() < limit && !all) continue;
      const double sum = top_k ? WeighBest() : total;
      if (Cut(share * sum) || all || top_k) break;
    }
    const double kept = WeighBest();
    return Pick(uniform * kept, [this](size_t i) { return scratch_.order[i]; });
  }

 private:
  float WeightOf(float logit) const {
    const float x = (logit - highest_) / settings_.temperature;
    const float weight = Exp(x);
    return x <= 0.0f ? weight : 0.0f;  // no weight for NaN and infinities
  }

  double WeighAll() {
    scratch_.weights.resize(logits_.size());
    const float highest = highest_;
    const float temperature = settings_.temperature;
    const float* logits = logits_.data();
    float* weights = scratch_.weights.data();
    const size_t count = logits_.size();
    for (size_t i = 0; i < count; ++i) {
      const float x = (logits[i] - highest) / temperature;
      const float weight = Exp(x);
      weights[i] = x <= 0.0f ? weight : 0.0f;
    }
    return Sum();
  }

  double WeighBest() {
    scratch_.weights.resize(scratch_.order.size());
    for (size_t i = 0; i < scratch_.order.size(); ++i) {
      scratch_.weights[i] = WeightOf(logits_[scratch_.order[i]]);
    }
    return Sum();
  }

  double RunSum(size_t first) const {
    const size_t last = std::min(first + kRunLength, scratch_.weights.size());
    std::array<double, 8> lanes = {};
    size_t i = first;
    for (; i + 8 <= last; i += 8) {
      for (size_t lane = 0; lane < 8; ++lane) lanes[lane] += scratch_.weights[i + lane];
    }
    for (; i < last; ++i) lanes[0] += scratch_.weights[i];
    return std::accumulate(lanes.begin(), lanes.end(), 0.0);
  }

  double Sum() const {
    double sum = 0;
    for (size_t i = 0; i < scratch_.weights.size(); i += kRunLength) sum += RunSum(i);
    return sum;
  }

  // Collects the ids within `depth` temperatures of the best; true when none with a weight is left
  // out.
  bool Gather(float depth) {
    scratch_.order.clear();
    const float lowest = highest_ - depth * settings_.temperature;
    const bool all = !(lowest > -std::numeric_limits<float>::max());
    for (uint32_t id = 0; id < logits_.size(); ++id) {
      const bool finite = logits_[id] <= highest_ && logits_[id] > -kInfinity;
      if (finite && (all || logits_[id] >= lowest)) scratch_.order.push_back(id);
    }
    return all || depth > kDeepest;
  }

  void SortBest(size_t limit) {
    const auto better = [this](uint32_t a, uint32_t b) {
      return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
    };
    auto& order = scratch_.order;
    if (limit < order.size()) {
      std::nth_element(order.begin(), order.begin() + limit, order.end(), better);
      order.resize(limit);
    }
    std::sort(order.begin(), order.end(), better);
  }

  // Keeps the shortest prefix whose weight reaches `mass`; false: the whole does not.
  bool Cut(double mass) {
    double sum = 0;
    for (size_t i = 0; i < scratch_.order.size(); ++i) {
      sum += WeightOf(logits_[scratch_.order[i]]);
      if (sum >= mass) {
        scratch_.order.resize(i + 1);
        return true;
      }
    }
    return false;
  }

  // The token at which the running sum of the weights passes `mass`; the last one with a weight
  // where rounding keeps the sum below.
  template <typename IdAt>
  uint32_t Pick(double mass, IdAt id_at) const {
    const auto& weights = scratch_.weights;
    double sum = 0;
    size_t run_first = 0;
    for (size_t first = 0; first < weights.size(); first += kRunLength) {
      const double run = RunSum(first);
      if (run <= 0) continue;
      run_first = first;
      if (sum + run > mass) break;
      sum += run;
    }
    size_t picked = run_first;
    for (size_t i = run_first; i < std::min(run_first + kRunLength, weights.size()); ++i) {
      if (weights[i] <= 0) continue;
      picked = i;
      sum += weights[i];
      if (sum > mass) break;
    }
    return id_at(picked);
  }

  const std::span<const float> logits_;
  const SamplingSettings& settings_;
  SamplerScratch& scratch_;
  float highest_ = 0;
  bool finite_ = true;
};

}  // namespace

TokenId Sample(std::span<const float> logits, const SamplingSettings& settings, uint64_t position,
               SamplerScratch& scratch) {
  if (!(settings.temperature > 0) || settings.top_k == 1) return {Best(logits)};
  Draw draw(logits, settings, scratch);
  if (!draw.any_finite()) return {0};
  const double uniform = Uniform(settings, position);
  const bool narrowed = settings.top_k > 0 || settings.top_p < 1.0f;
  return {narrowed ? draw.FromBest(uniform) : draw.FromAll(uniform)};
}

}  // namespace pdserve::engine
