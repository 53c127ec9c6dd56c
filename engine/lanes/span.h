// Queries meet a packed tile of cached tokens (tile.h), over 16 float lanes; see rows.h for what L
// is. Each query keeps a running maximum m, sum s and weighted values o:
//   m' = max(m, scores), p = exp(score - m'), s' = s exp(m - m') + sum p, o' = o exp(m - m') + p V.
// A score and a value are sums over words in order; so queries share nothing but the packed tile.
#ifndef PDSERVE_ENGINE_LANES_SPAN_H_
#define PDSERVE_ENGINE_LANES_SPAN_H_

#include <cstddef>
#include <cstdint>

#include "engine/lanes/rows.h"
#include "engine/lanes/tile.h"
#include "engine/ops.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

/// Queries next to each other: words as the tile's keys have them, and states: o [columns], s
/// [kLanes] to be added up, m and padding [kLanes].
struct QueryRun {
  const float* words;
  int32_t word_stride;
  float* states;
  int32_t state_stride;
};

template <class L, bool bf16>
struct TileKernel {
  using F = typename L::F;
  using Tile = PackedTile<L, bf16>;
  static constexpr int32_t kVectors = L::kVectorTile;

  /// Q queries that see the tile's first `tokens` tokens.
  template <int Q>
  static void Run(const Tile& tile, int32_t tokens, const QueryRun& run) {
    alignas(64) float scores[Q][kTileTokens];  // then weights, as words
    F shrink[Q];
    for (int32_t vector = 0; vector * kLanes < tokens; vector += kVectors) {
      Score<Q>(tile, vector, run, scores);
    }
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
      float* state = run.states + q * run.state_stride + tile.columns;
      shrink[q] = Soften(tokens, scores[q], state);
    }
    int32_t column = 0;
    for (; column + kVectors * kLanes <= tile.columns; column += kVectors * kLanes) {
      Weigh<Q, kVectors>(tile, {tokens, column}, run, scores, shrink);
    }
    for (; column < tile.columns; column += kLanes) {
      Weigh<Q, 1>(tile, {tokens, column}, run, scores, shrink);
    }
  }

  template <int Q>
  static void Score(const Tile& tile, int32_t vector, const QueryRun& run,
                    float (*scores)[kTileTokens]) {
    F total[Q][kVectors];
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) total[q][c] = L::Set(0.0f);
    }
    const float* keys = tile.keys + vector * kLanes;
    for (int32_t word = 0; word < tile.words; ++word, keys += kTileTokens) {
      F key[kVectors];
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) key[c] = L::Load(keys + c * kLanes);
#pragma GCC unroll 8
      for (int q = 0; q < Q; ++q) {
        const F query = L::Set(run.words[q * run.word_stride + word]);
#pragma GCC unroll 4
        for (int c = 0; c < kVectors; ++c) total[q][c] = Tile::Dot(key[c], query, total[q][c]);
      }
    }
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) L::Store(scores[q] + (vector + c) * kLanes, total[q][c]);
    }
  }

  /// Scores to weights; the state's sum and maximum (at `state`). Returns exp(m - m').
  static F Soften(int32_t tokens, float* scores, float* state) {
    const F nothing = L::Set(-__builtin_inff());
    F score[kTileVectors];
    F largest = nothing;
#pragma GCC unroll 4
    for (int c = 0; c < kTileVectors; ++c) {
      const int32_t count = tokens - c * kLanes;
      score[c] =
          count <= 0 ? nothing : L::Keep(L::Load(scores + c * kLanes), count, -__builtin_inff());
      largest = L::Max(largest, score[c]);
    }
    const float here = L::Largest(largest);
    const float before = state[kLanes];
    const F maximum = L::Set(before > here ? before : here);
    const F shrink = Exp<L>(L::Sub(L::Set(before), maximum));
    F sum = L::Mul(L::Load(state), shrink);
#pragma GCC unroll 4
    for (int c = 0; c < kTileVectors; ++c) {
      score[c] = Exp<L>(L::Sub(score[c], maximum));
      sum = L::Add(sum, score[c]);
    }
    L::Store(state, sum);
    state[kLanes] = L::First(maximum);
    if constexpr (bf16) {
#pragma GCC unroll 2
      for (int c = 0; c < kTileVectors; c += 2) {
        L::Store(scores + c / 2 * kLanes, L::RoundPairs(score[c], score[c + 1]));
      }
    } else {
#pragma GCC unroll 4
      for (int c = 0; c < kTileVectors; ++c) L::Store(scores + c * kLanes, score[c]);
    }
    return shrink;
  }

  struct Part {
    int32_t tokens;  // the first ones
    int32_t column;
  };

  template <int Q, int C>
  static void Weigh(const Tile& tile, Part part, const QueryRun& run,
                    const float (*weights)[kTileTokens], const F* shrink) {
    float* states = run.states + part.column;
    F total[Q][C];
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        total[q][c] = L::Mul(L::Load(states + q * run.state_stride + c * kLanes), shrink[q]);
      }
    }
    const float* values = tile.values + part.column;
    const int32_t whole = part.tokens / Tile::kPerWord;
    for (int32_t word = 0; word < whole; ++word, values += tile.columns) {
      F value[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) value[c] = L::Load(values + c * kLanes);
      Add<Q, C>(value, word, weights, total);
    }
    if (whole * Tile::kPerWord < part.tokens) {  // the next token's value may be anything
      F value[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) value[c] = L::ClearHigh(L::Load(values + c * kLanes));
      Add<Q, C>(value, whole, weights, total);
    }
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        L::Store(states + q * run.state_stride + c * kLanes, total[q][c]);
      }
    }
  }

  template <int Q, int C>
  [[gnu::always_inline]] static void Add(const F (&value)[C], int32_t word,
                                         const float (*weights)[kTileTokens], F (&total)[Q][C]) {
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
      const F weight = L::Set(weights[q][word]);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) total[q][c] = Tile::Dot(value[c], weight, total[q][c]);
    }
  }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_SPAN_H_
