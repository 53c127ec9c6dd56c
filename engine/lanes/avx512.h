// 16 float lanes in one 512-bit register, with VNNI. `Here` is a type of the including source, so
// that what is made from this stays there; see rows.h.
#ifndef PDSERVE_ENGINE_LANES_AVX512_H_
#define PDSERVE_ENGINE_LANES_AVX512_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "engine/lanes/rows.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

template <class Here>
struct Avx512 {
  using F = __m512;
  static constexpr int32_t kPanelRows = 16;  // 16 sums, 8 weights, scale, minimum, and some to work
  static constexpr int kQueryTile = 6;       // by kVectorTile: 24 sums
  static constexpr int kVectorTile = 4;

  static F Set(float value) { return _mm512_set1_ps(value); }
  static F Load(const float* at) { return _mm512_loadu_ps(at); }
  static void Store(float* at, F value) { _mm512_storeu_ps(at, value); }
  static __mmask16 FirstLanes(int32_t count) {
    return static_cast<__mmask16>(count >= kLanes ? 0xffff : (1u << count) - 1);
  }
  static F LoadPart(const float* at, int32_t count) {
    if (count >= kLanes) return Load(at);
    return _mm512_maskz_loadu_ps(FirstLanes(count), at);
  }
  static void StorePart(float* at, int32_t count, F value) {
    if (count >= kLanes) return Store(at, value);
    _mm512_mask_storeu_ps(at, FirstLanes(count), value);
  }
  static F Keep(F value, int32_t count, float other) {
    return _mm512_mask_blend_ps(FirstLanes(count), Set(other), value);
  }

  static F Add(F a, F b) { return _mm512_add_ps(a, b); }
  static F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F Div(F a, F b) { return _mm512_div_ps(a, b); }
  static F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F Min(F a, F b) { return _mm512_min_ps(a, b); }
  static F Max(F a, F b) { return _mm512_max_ps(a, b); }
  static float First(F value) { return _mm512_cvtss_f32(value); }

  /// value where x >= limit or x is NaN, else 0.
  static F ZeroBelow(F x, float limit, F value) {
    const __mmask16 keep = _mm512_cmp_ps_mask(x, Set(limit), _CMP_NLT_UQ);
    return _mm512_maskz_mov_ps(keep, value);
  }
  /// 2^n of n + 12582912.0.
  static F PowerOfTwo(F shifted) {
    const __m512i n = _mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(n, 23));
  }

  /// Lanes l and l + 8, then l + 4, l + 2, l + 1.
  static float Sum(F value) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps(value, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
  }
  static float Largest(F value) {
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps(value, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
  }
  /// 16 rows of 16 words become 16 columns.
  static void Transpose(F (&w)[kLanes]) {
    F s[kLanes];
#pragma GCC unroll 4
    for (int i = 0; i < kLanes; i += 4) {  // 4 x 4 words in every 128-bit part
      const F a = _mm512_unpacklo_ps(w[i], w[i + 1]);
      const F b = _mm512_unpackhi_ps(w[i], w[i + 1]);
      const F c = _mm512_unpacklo_ps(w[i + 2], w[i + 3]);
      const F d = _mm512_unpackhi_ps(w[i + 2], w[i + 3]);
      s[i] = _mm512_shuffle_ps(a, c, 0x44);
      s[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
      s[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
      s[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // then 4 x 4 parts
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {
        const F a = odd ? Odd(s[i], s[i + 4]) : Even(s[i], s[i + 4]);
        const F b = odd ? Odd(s[i + 8], s[i + 12]) : Even(s[i + 8], s[i + 12]);
        w[i + 4 * odd] = Even(a, b);
        w[i + 4 * odd + 8] = Odd(a, b);
      }
    }
  }
  static F Even(F a, F b) { return _mm512_shuffle_f32x4(a, b, 0x88); }
  static F Odd(F a, F b) { return _mm512_shuffle_f32x4(a, b, 0xdd); }
  static __m512i WidenHalves(const std::byte* at) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  /// Word i: value i of `low` below value i of `high`, 16 bits each.
  static F Interleave(const std::byte* low, const std::byte* high) {
    const __m512i shifted = _mm512_slli_epi32(WidenHalves(high), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(WidenHalves(low), shifted));
  }
  /// Pairs with the high one zero.
  static F ClearHigh(F pairs) {
    const __m512i mask = _mm512_set1_epi32(0xffff);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), mask));
  }
  /// Asks for the lines of [at, at + bytes); beyond any memory does no harm. Inline by force: GCC
  /// drops calls of a function that does nothing else.
  template <int bytes>
  [[gnu::always_inline]] static void Prefetch(const std::byte* at) {
#pragma GCC unroll 8
    for (int i = 0; i < bytes; i += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(at) + i, _MM_HINT_T0);
    }
  }
  static F LoadHalf(const std::byte* at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  }
  static F LoadBf16(const std::byte* at) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(WidenHalves(at), 16));
  }
  static void StoreBf16(std::byte* at, F value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), RoundHalves(value));
  }
  static __m256i RoundHalves(F value) {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_mask_blend_epi32(nan, _mm512_srli_epi32(up, 16), quiet);
    return _mm512_cvtepi32_epi16(rounded);
  }

  static float LargestMagnitude(const float* values) {
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    const __m512i low = _mm512_and_si512(_mm512_castps_si512(Load(values)), mask);
    const __m512i high = _mm512_and_si512(_mm512_castps_si512(Load(values + kLanes)), mask);
    const int32_t largest = _mm512_reduce_max_epi32(_mm512_max_epi32(low, high));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(largest)));
  }
  static int32_t RoundBlock(const float* values, float inverse, int8_t* q) {
    const F factor = Set(inverse);
    const __m512i low = _mm512_cvtps_epi32(Mul(Load(values), factor));
    const __m512i high = _mm512_cvtps_epi32(Mul(Load(values + kLanes), factor));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtsepi32_epi8(low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + kLanes), _mm512_cvtsepi32_epi8(high));
    return _mm512_reduce_add_epi32(_mm512_add_epi32(low, high));
  }

  /// A block of quantised weights: 4 columns of 16 rows in each register.
  struct Weights {
    __m512i group[kGroups];
  };
  static Weights LoadU4(const std::byte* quants) {
    const __m512i mask = _mm512_set1_epi8(15);
    Weights w;
#pragma GCC unroll 4
    for (int j = 0; j < kGroups / 2; ++j) {
      const __m512i both = _mm512_loadu_si512(quants + j * 64);
      w.group[2 * j] = _mm512_and_si512(both, mask);
      w.group[2 * j + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
    }
    return w;
  }
  static Weights LoadU8(const std::byte* quants) {
    Weights w;
#pragma GCC unroll 8
    for (int j = 0; j < kGroups; ++j) w.group[j] = _mm512_loadu_si512(quants + j * 64);
    return w;
  }
  static F DotU8(const Weights& w, const std::byte* q) {
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < kGroups; ++j) {
      int32_t four;
      __builtin_memcpy(&four, q + j * kGroupCols, sizeof(four));
      sum = _mm512_dpbusd_epi32(sum, w.group[j], _mm512_set1_epi32(four));
    }
    return _mm512_cvtepi32_ps(sum);
  }
  static F DotU4(const Weights& w, const std::byte* q) { return DotU8(w, q); }
  /// Column k of the block as floats.
  static F Column(const Weights& w, int k) {
    const __m512i bytes = _mm512_srli_epi32(w.group[k / kGroupCols], 8 * (k % kGroupCols));
    return _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(255)));
  }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_AVX512_H_
