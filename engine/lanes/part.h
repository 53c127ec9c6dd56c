// Queries of a few rows and the tokens of one part: tile after tile, each packed once for all of
// them (tile.h), span.h does each meeting. See rows.h for what L is.
#ifndef PDSERVE_ENGINE_LANES_PART_H_
#define PDSERVE_ENGINE_LANES_PART_H_

#include <cstddef>
#include <cstdint>

#include "engine/lanes/rows.h"
#include "engine/lanes/span.h"
#include "engine/lanes/tile.h"
#include "engine/ops.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

inline constexpr int32_t kQueriesAtOnce = 96;  // queries that pass a tile together

/// A few rows' queries, the heads of a row next to each other.
struct QueryRows {
  int32_t row;  // first, of the call's
  int32_t rows;
  int32_t head;  // first, of the group's
  int32_t heads;
  int32_t first_tokens;  // that the first row sees
};

template <class L>
size_t OffsetOf(const AttentionShape& shape, const QueryRows& queries, int32_t query,
                int32_t stride) {
  const int32_t row = queries.row + query / queries.heads;
  const int32_t head = queries.head + query % queries.heads;
  return size_t(row) * stride + size_t(head) * shape.head_dim;
}

template <class L, bool bf16>
class PartAttender {
 public:
  using F = typename L::F;
  PartAttender(const AttentionArgs& args, const AttentionShape& shape, const QueryRows& queries)
      : args_(args),
        shape_(shape),
        queries_(queries),
        state_stride_(PaddedDim(shape.head_dim) + 2 * kLanes) {
    Prepare();
  }

  /// states [queries][state]: of the part's tokens alone.
  void AddPart(int32_t part, float* states) {
    for (int32_t i = 0; i < queries_.rows * queries_.heads; ++i) {
      float* state = states + size_t(i) * state_stride_;
      __builtin_memset(state, 0, state_stride_ * sizeof(float));
      state[state_stride_ - kLanes] = -__builtin_inff();
    }
    const int32_t first = part * kPartTokens;
    const int32_t all = queries_.first_tokens + queries_.rows - 1;
    const int32_t end = all < first + kPartTokens ? all : first + kPartTokens;
    FindRows(first, all, here_);
    for (int32_t token = first; token < end; token += kTileTokens) {
      FindRows(token + kTileTokens, all, next_);
      tile_.Pack(here_, next_, shape_.head_dim);
      Meet(token, states);
      here_ = next_;
    }
  }

 private:
  /// The queries as words, times the scale.
  void Prepare() {
    constexpr int32_t kDims = bf16 ? 2 * kLanes : kLanes;
    const F scale = L::Set(args_.scale);
    word_stride_ = (shape_.head_dim + kDims - 1) / kDims * kLanes;
    float* to = words_;
    for (int32_t i = 0; i < queries_.rows * queries_.heads; ++i) {
      const float* from = args_.query + OffsetOf<L>(shape_, queries_, i, args_.query_stride);
      for (int32_t dim = 0; dim < shape_.head_dim; dim += kDims, to += kLanes) {
        const int32_t left = shape_.head_dim - dim;
        F words = L::Mul(L::LoadPart(from + dim, left), scale);
        if constexpr (bf16) {
          const F high =
              left > kLanes ? L::LoadPart(from + dim + kLanes, left - kLanes) : L::Set(0);
          words = L::RoundPairs(words, L::Mul(high, scale));
        }
        L::Store(to, words);
      }
    }
  }

  void FindRows(int32_t first, int32_t end, TileRows& rows) const {
    const size_t row_bytes = size_t(shape_.head_dim) * (shape_.bf16 ? 2 : 4);
    const int32_t left = end - first;
    rows.tokens = left < 0 ? 0 : left < kTileTokens ? left : kTileTokens;
    rows.v_offset = shape_.v_offset - shape_.k_offset;
    for (int32_t i = 0; i < rows.tokens;) {
      int32_t in_block = (first + i) % shape_.block_tokens;
      const std::byte* key =
          args_.blocks[(first + i) / shape_.block_tokens] + shape_.k_offset + in_block * row_bytes;
      for (; i < rows.tokens && in_block < shape_.block_tokens; ++in_block, key += row_bytes) {
        rows.key[i++] = key;
      }
    }
  }

  /// All queries with one tile. Rows that see all of it go together; the others alone.
  void Meet(int32_t first_token, float* states) const {
    const int32_t all = tile_.tokens;
    for (int32_t row = 0; row < queries_.rows; ++row) {
      const int32_t sees = queries_.first_tokens + row - first_token;
      if (sees <= 0) continue;
      const bool whole = sees >= all;
      const int32_t end = (whole ? queries_.rows : row + 1) * queries_.heads;
      for (int32_t i = row * queries_.heads; i < end; i += L::kQueryTile) {
        RunTile<L::kQueryTile>(end - i, whole ? all : sees,
                               {words_ + i * word_stride_, word_stride_,
                                states + size_t(i) * state_stride_, state_stride_});
      }
      if (whole) return;
    }
  }

  template <int Q>
  void RunTile(int32_t count, int32_t tokens, const QueryRun& run) const {
    if (count >= Q) return TileKernel<L, bf16>::template Run<Q>(tile_, tokens, run);
    if constexpr (Q > 1) RunTile<Q - 1>(count, tokens, run);
  }

  const AttentionArgs& args_;
  const AttentionShape& shape_;
  const QueryRows& queries_;
  const int32_t state_stride_;
  int32_t word_stride_ = 0;
  alignas(64) float words_[kQueriesAtOnce * kMaxHeadDim / PackedTile<L, bf16>::kPerWord];
  PackedTile<L, bf16> tile_;
  TileRows here_;
  TileRows next_;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_PART_H_
