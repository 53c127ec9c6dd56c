// The attention kernel over 16 float lanes, written once for every instruction set; see rows.h
// for what L is. Cached tokens are taken in spans of at most kSpanTokens, cut where cache blocks
// end; each query keeps a running maximum m, sum s and weighted values o (in its output row):
//   m' = max(m, scores), p = exp(score - m'), s' = s exp(m - m') + sum p, o' = o exp(m - m') + p V.
// A score is 16 partial sums over dims d, d + 16, ..., then added pairwise; so queries that share a
// span share nothing but the loaded keys and values.
#ifndef PDSERVE_ENGINE_LANES_SPAN_H_
#define PDSERVE_ENGINE_LANES_SPAN_H_

#include <cstddef>
#include <cstdint>

#include "engine/lanes/rows.h"
#include "engine/ops.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

inline constexpr int32_t kQueriesAtOnce = 48;  // queries that pass a span together
inline constexpr int32_t kQueryTile = 4;       // queries that share a loaded key or value
inline constexpr int32_t kFewQueries = 8;      // up to here keys and values are used in place

/// Keys or values of one span: token t's at data + t * stride, as they are in the cache or, with
/// `plain`, as floats padded to whole lanes. Rows used in place are asked for ahead of their use:
/// a few at a time, since blocks lie far apart and the hardware does not follow.
template <class L, bool plain>
struct SpanRows {
  const std::byte* data;
  size_t stride;
  const std::byte* ahead;  // the same rows of a later block
  template <int dims>
  [[gnu::always_inline]] void Fetch(int32_t token, int32_t dim) const {
    if constexpr (!plain) {
      L::template Prefetch<dims * 2>(ahead + size_t(token) * stride + size_t(dim) * 2);
    }
  }
  typename L::F Load(int32_t token, int32_t dim) const {
    const std::byte* row = data + size_t(token) * stride;
    if constexpr (plain) return L::Load(reinterpret_cast<const float*>(row) + dim);
    return L::LoadBf16(row + size_t(dim) * 2);
  }
};

/// Up to kQueryTile queries that see the same tokens of the span.
struct QueryTile {
  const float* query[kQueryTile];
  float* out[kQueryTile];
  float* maximum;
  float* sum;
};

struct SpanShape {
  int32_t tokens;
  int32_t head_dim;
  float scale;
};

/// One span for a tile of Q queries.
template <class L, class Rows, int Q>
struct SpanKernel {
  using F = typename L::F;
  struct Scratch {
    alignas(64) float partial[Q][kLanes][kLanes];  // [query][token][lane]
    alignas(64) float scores[Q][2 * kLanes];       // [query][token]; weights after Soften
    F shrink[Q];
  };

  static void Run(const SpanShape& shape, const Rows& keys, const Rows& values,
                  const QueryTile& tile) {
    Scratch scratch;
    for (int32_t first = 0; first < kSpanTokens; first += kLanes) {
      const int32_t count = shape.tokens - first;
      if (count <= 0) {
        for (int q = 0; q < Q; ++q) L::Store(scratch.scores[q] + first, L::Set(kNothing));
        continue;
      }
      for (int32_t token = 0; token < (count < kLanes ? count : kLanes); token += L::kKeyTile) {
        Dot(shape, keys, tile, first + token, scratch);
      }
      for (int q = 0; q < Q; ++q) {
        const F scores = L::Mul(L::SumEach(scratch.partial[q]), L::Set(shape.scale));
        L::Store(scratch.scores[q] + first, L::Keep(scores, count, kNothing));
      }
    }
    for (int q = 0; q < Q; ++q) Soften(q, tile, scratch);
    AddValues(shape, values, tile, scratch);
  }

  static constexpr float kNothing = -__builtin_inff();

  /// Partial sums of L::kKeyTile tokens from `token` on; past the last token, of the last.
  static void Dot(const SpanShape& shape, const Rows& keys, const QueryTile& tile, int32_t token,
                  Scratch& scratch) {
    constexpr int T = L::kKeyTile;
    int32_t at[T];
    for (int t = 0; t < T; ++t) {
      const int32_t wanted = token + t;
      at[t] = wanted < shape.tokens ? wanted : shape.tokens - 1;
    }
    F total[T][Q];
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q) total[t][q] = L::Set(0.0f);
    }
    for (int32_t dim = 0; dim < shape.head_dim; dim += kLanes) {
      F query[Q];
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q) query[q] = L::LoadPart(tile.query[q] + dim, shape.head_dim - dim);
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        const F key = keys.Load(at[t], dim);
        if (dim % 32 == 0) keys.template Fetch<32>(at[t], dim);
#pragma GCC unroll 4
        for (int q = 0; q < Q; ++q) total[t][q] = L::Fma(key, query[q], total[t][q]);
      }
    }
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q) L::Store(scratch.partial[q][token % kLanes + t], total[t][q]);
    }
  }

  /// Scores to weights, and the query's running maximum and sum.
  static void Soften(int q, const QueryTile& tile, Scratch& scratch) {
    const F low = L::Load(scratch.scores[q]);
    const F high = L::Load(scratch.scores[q] + kLanes);
    const float span_maximum = L::Largest(L::Max(low, high));
    const float maximum = tile.maximum[q] > span_maximum ? tile.maximum[q] : span_maximum;
    const F shift = L::Set(maximum);
    const F low_weight = Exp<L>(L::Sub(low, shift));
    const F high_weight = Exp<L>(L::Sub(high, shift));
    L::Store(scratch.scores[q], low_weight);
    L::Store(scratch.scores[q] + kLanes, high_weight);
    scratch.shrink[q] = Exp<L>(L::Sub(L::Set(tile.maximum[q]), shift));
    tile.sum[q] =
        tile.sum[q] * L::First(scratch.shrink[q]) + L::Sum(L::Add(low_weight, high_weight));
    tile.maximum[q] = maximum;
  }

  static void AddValues(const SpanShape& shape, const Rows& values, const QueryTile& tile,
                        const Scratch& scratch) {
    int32_t dim = 0;
    for (; dim + L::kValueTile * kLanes <= shape.head_dim; dim += L::kValueTile * kLanes) {
      AddColumns<L::kValueTile>(shape, values, tile, dim, scratch);
    }
    for (; dim < shape.head_dim; dim += kLanes) AddColumns<1>(shape, values, tile, dim, scratch);
  }

  template <int C>
  static void AddColumns(const SpanShape& shape, const Rows& values, const QueryTile& tile,
                         int32_t dim, const Scratch& scratch) {
    const int32_t left = shape.head_dim - dim;
    F total[Q][C];
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        const F old = L::LoadPart(tile.out[q] + dim + c * kLanes, left - c * kLanes);
        total[q][c] = L::Mul(old, scratch.shrink[q]);
      }
    }
    for (int32_t token = 0; token < shape.tokens; ++token) {
      F value[C];
      values.template Fetch<C * kLanes>(token, dim);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) value[c] = values.Load(token, dim + c * kLanes);
#pragma GCC unroll 4
      for (int q = 0; q < Q; ++q) {
        const F weight = L::Set(scratch.scores[q][token]);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) total[q][c] = L::Fma(weight, value[c], total[q][c]);
      }
    }
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        L::StorePart(tile.out[q] + dim + c * kLanes, left - c * kLanes, total[q][c]);
      }
    }
  }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_SPAN_H_
