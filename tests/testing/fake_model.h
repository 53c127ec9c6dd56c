// A model whose arithmetic is a hash. Its logits are a pure function of the tokens before them, but
// it knows those tokens from the cache alone: each position's entry names token, position and the
// chain up to it, in every layer, K and V. A cache that is wrong anywhere changes the output, and
// is counted. So "split output equals Continue()" says that every byte of a hand-over was right.
#ifndef PDSERVE_TESTS_TESTING_FAKE_MODEL_H_
#define PDSERVE_TESTS_TESTING_FAKE_MODEL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/generation.h"
#include "engine/model.h"
#include "engine/sampler.h"

namespace pdserve::testing {

class FakeModel final : public engine::Model {
 public:
  static constexpr int32_t kVocab = 64;
  static constexpr uint32_t kEnd = 0;  // the only end token

  explicit FakeModel(int32_t max_context_tokens = 4096);

  const engine::ModelCard& card() const override { return card_; }
  void Forward(const engine::Batch& batch, std::byte* pool, float* logits) override;

  /// The output tokens that a generation must get, end token included; needs no cache.
  static std::vector<uint32_t> Continue(const engine::Generation& generation,
                                        int32_t max_context_tokens = 4096);

  /// Cache entries that were not what the sequence's tokens demand.
  int64_t corruptions() const { return corruptions_; }
  int64_t forwards() const { return forwards_; }

  /// Called at the start of each Forward, on the loop's thread; set before the loop starts.
  std::function<void(const engine::Batch&)> on_forward;

 private:
  uint64_t ReadChain(const engine::BatchSegment& segment, const std::byte* pool);

  engine::ModelCard card_;
  std::atomic<int64_t> corruptions_{0};
  std::atomic<int64_t> forwards_{0};
};

}  // namespace pdserve::testing

#endif  // PDSERVE_TESTS_TESTING_FAKE_MODEL_H_
