// A tile of cached tokens, packed once for all queries that meet it: keys [word of dims][token],
// values [word of tokens][dim], where a word is a pair of bf16 or one float. Tiles begin at
// multiples of kTileTokens. See rows.h for what L is.
#ifndef PDSERVE_ENGINE_LANES_TILE_H_
#define PDSERVE_ENGINE_LANES_TILE_H_

#include <cstddef>
#include <cstdint>

#include "engine/lanes/rows.h"
#include "engine/ops.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

inline constexpr int32_t kTileTokens = 64;
inline constexpr int32_t kTileVectors = kTileTokens / kLanes;

/// Where the rows of up to kTileTokens tokens lie in the cache: K, and V v_offset bytes later.
struct TileRows {
  const std::byte* key[kTileTokens];
  size_t v_offset;
  int32_t tokens;
};

/// A packed tile of heads of head_dim; columns of values are padded to whole lanes.
template <class L, bool bf16>
struct PackedTile {
  using F = typename L::F;
  static constexpr int32_t kPerWord = bf16 ? 2 : 1;

  alignas(64) float keys[kMaxHeadDim / kPerWord * kTileTokens];
  alignas(64) float values[kMaxHeadDim * kTileTokens / kPerWord];
  int32_t tokens;
  int32_t words;    // of dims
  int32_t columns;  // head_dim, padded

  static F Dot(F a, F b, F sum) {
    if constexpr (bf16) return L::DotPairs(a, b, sum);
    return L::Fma(a, b, sum);
  }

  /// Also asks for the rows of the tile to come: a few lines at a time, since blocks lie far apart
  /// and the hardware does not follow.
  void Pack(const TileRows& rows, const TileRows& next, int32_t head_dim) {
    tokens = rows.tokens;
    words = head_dim / kPerWord;
    columns = PaddedDim(head_dim);
    for (int32_t token = 0; token < kTileTokens; token += kLanes) {
      for (int32_t word = 0; word < words; word += kLanes) {
        PackKeys(rows, token, word);
        Fetch(next, token, kLanes, size_t(word) * 4);
      }
    }
    for (int32_t token = 0; token < tokens; token += kPerWord) {
      PackValues(rows, token, head_dim);
      for (int32_t word = 0; word < words; word += kLanes) {
        Fetch(next, token, kPerWord, size_t(word) * 4 + rows.v_offset);
      }
    }
  }

  /// One line of each of the rows [first, first + count).
  static void Fetch(const TileRows& rows, int32_t first, int32_t count, size_t offset) {
    for (int32_t i = first; i < first + count && i < rows.tokens; ++i) {
      L::template Prefetch<64>(rows.key[i] + offset);
    }
  }

  void PackKeys(const TileRows& rows, int32_t first, int32_t word) {
    F part[kLanes];
    float* to = keys + word * kTileTokens + first;
    if (rows.tokens >= first + kLanes && words >= word + kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) part[i] = L::Load(Words(rows.key[first + i]) + word);
      L::Transpose(part);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) L::Store(to + i * kTileTokens, part[i]);
      return;
    }
    for (int32_t i = 0; i < kLanes; ++i) {
      const bool there = first + i < rows.tokens;
      part[i] = there ? L::LoadPart(Words(rows.key[first + i]) + word, words - word) : L::Set(0.0f);
    }
    L::Transpose(part);
    for (int32_t i = 0; i < kLanes && i < words - word; ++i) {
      L::Store(to + i * kTileTokens, part[i]);
    }
  }

  void PackValues(const TileRows& rows, int32_t token, int32_t head_dim) {
    float* to = values + token / kPerWord * columns;
    const std::byte* from = rows.key[token] + rows.v_offset;
    if constexpr (bf16) {
      const bool alone = token + 1 == rows.tokens;
      const std::byte* after = alone ? nullptr : rows.key[token + 1] + rows.v_offset;
      int32_t dim = 0;
      for (; after != nullptr && dim + kLanes <= head_dim; dim += kLanes) {
        L::Store(to + dim, L::Interleave(from + size_t(dim) * 2, after + size_t(dim) * 2));
      }
      for (; dim < head_dim; dim += kLanes) {
        L::Store(to + dim, PartOfPair(from, after, dim, head_dim));
      }
    } else {
      for (int32_t dim = 0; dim < head_dim; dim += kLanes) {
        L::Store(to + dim, L::LoadPart(Words(from) + dim, head_dim - dim));
      }
    }
  }

  static F PartOfPair(const std::byte* low, const std::byte* high, int32_t dim, int32_t head_dim) {
    const size_t at = size_t(dim) * 2;
    const int32_t left = head_dim - dim;
    alignas(64) std::byte part[2][2 * kLanes] = {};
    const size_t bytes = size_t(left < kLanes ? left : kLanes) * 2;
    __builtin_memcpy(part[0], low + at, bytes);
    if (high != nullptr) __builtin_memcpy(part[1], high + at, bytes);
    return L::Interleave(part[0], part[1]);
  }

  static const float* Words(const std::byte* at) { return reinterpret_cast<const float*>(at); }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_TILE_H_
