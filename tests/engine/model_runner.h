// Drives a Model the way a step loop would: sequences with blocks of their own in one pool, batches
// of whatever rows a test wants together.
#ifndef PDSERVE_TESTS_ENGINE_MODEL_RUNNER_H_
#define PDSERVE_TESTS_ENGINE_MODEL_RUNNER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/check.h"
#include "engine/batch.h"
#include "engine/model.h"

namespace pdserve::engine::testing {

inline std::unique_ptr<Model> MustLoad(const ModelOptions& options) {
  auto model = LoadModel(options);
  if (!model.ok()) std::fprintf(stderr, "%s\n", model.status().ToString().c_str());
  PD_CHECK(model.ok());
  return *std::move(model);
}

inline std::vector<TokenId> Tokens(std::span<const uint32_t> ids) {
  std::vector<TokenId> tokens;
  for (const uint32_t id : ids) tokens.push_back({id});
  return tokens;
}

inline uint32_t ArgMax(std::span<const float> logits) {
  return static_cast<uint32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class ModelRunner {
 public:
  /// Work of one sequence in the next batch.
  struct Piece {
    int32_t sequence;
    std::vector<TokenId> tokens;
    bool all_logits = false;  // else of the last token
  };

  ModelRunner(Model& model, int32_t num_sequences, int32_t max_tokens)
      : model_(model), layout_(model.card().cache_layout), sequences_(num_sequences) {
    const int32_t each = layout_.blocks_for(max_tokens);
    pool_.resize(size_t(num_sequences) * each * layout_.block_bytes());
    // Neighbouring tokens' blocks lie apart, and in descending order.
    for (int32_t i = 0; i < each; ++i) {
      for (int32_t s = 0; s < num_sequences; ++s) {
        sequences_[s].blocks.push_back({uint32_t((each - 1 - i) * num_sequences + s)});
      }
    }
  }

  /// Logits in piece order, [wanted rows][vocab].
  std::vector<float> Step(const std::vector<Piece>& pieces) {
    Batch batch;
    for (const Piece& piece : pieces) {
      State& state = sequences_[piece.sequence];
      const auto count = static_cast<int32_t>(piece.tokens.size());
      batch.segments.push_back({batch.num_rows(), count, state.computed, state.blocks});
      for (int32_t i = piece.all_logits ? 0 : count - 1; i < count; ++i) {
        batch.logit_rows.push_back(batch.num_rows() + i);
      }
      batch.tokens.insert(batch.tokens.end(), piece.tokens.begin(), piece.tokens.end());
      state.computed += count;
    }
    std::vector<float> logits(batch.logit_rows.size() * model_.card().vocab_size);
    model_.Forward(batch, pool_.data(), logits.data());
    return logits;
  }

  /// Feeds tokens in chunks; logits of all of them, [tokens][vocab].
  std::vector<float> FeedAll(int32_t sequence, std::span<const TokenId> tokens, int32_t chunk) {
    std::vector<float> all;
    for (size_t at = 0; at < tokens.size(); at += chunk) {
      const auto part = tokens.subspan(at, std::min<size_t>(chunk, tokens.size() - at));
      const auto logits = Step({{sequence, {part.begin(), part.end()}, true}});
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

  /// Feeds tokens in chunks; logits of the last one.
  std::vector<float> Feed(int32_t sequence, std::span<const TokenId> tokens, int32_t chunk) {
    std::vector<float> logits;
    for (size_t at = 0; at < tokens.size(); at += chunk) {
      const auto part = tokens.subspan(at, std::min<size_t>(chunk, tokens.size() - at));
      logits = Step({{sequence, {part.begin(), part.end()}}});
    }
    return logits;
  }

  std::span<const std::byte> pool() const { return pool_; }

 private:
  struct State {
    std::vector<BlockId> blocks;
    int32_t computed = 0;
  };
  Model& model_;
  const CacheLayout layout_;
  std::vector<State> sequences_;
  std::vector<std::byte> pool_;
};

}  // namespace pdserve::engine::testing

#endif  // PDSERVE_TESTS_ENGINE_MODEL_RUNNER_H_
