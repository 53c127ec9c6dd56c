// Where in a cache block a value lies; nobody else does this arithmetic.
// A block holds `block_tokens` tokens of one sequence, all layers, contiguously:
// [layer][K|V][kv head][token][dim]. A layer's slice of a block is contiguous, so is a block.
#ifndef PDSERVE_ENGINE_CACHE_LAYOUT_H_
#define PDSERVE_ENGINE_CACHE_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace pdserve::engine {

enum class KvDtype { kBf16, kFp32 };

/// Blocks that `tokens` tokens of one sequence take.
inline int32_t BlocksFor(int64_t tokens, int32_t block_tokens) {
  return static_cast<int32_t>((tokens + block_tokens - 1) / block_tokens);
}

struct CacheLayout {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t block_tokens = 32;
  KvDtype dtype = KvDtype::kBf16;

  size_t element_bytes() const { return dtype == KvDtype::kBf16 ? 2 : 4; }
  /// One head's K (or V) of one layer in one block: [token][dim].
  size_t head_bytes() const { return size_t(block_tokens) * head_dim * element_bytes(); }
  size_t layer_bytes() const { return 2 * size_t(num_kv_heads) * head_bytes(); }
  size_t block_bytes() const { return size_t(num_layers) * layer_bytes(); }
  size_t k_offset(int32_t layer, int32_t kv_head) const {
    return size_t(layer) * layer_bytes() + size_t(kv_head) * head_bytes();
  }
  size_t v_offset(int32_t layer, int32_t kv_head) const {
    return k_offset(layer, kv_head) + size_t(num_kv_heads) * head_bytes();
  }
  int32_t blocks_for(int64_t tokens) const { return BlocksFor(tokens, block_tokens); }
  /// Canonical text; equal layouts have equal texts. Part of the fingerprint.
  std::string Describe() const;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_CACHE_LAYOUT_H_
