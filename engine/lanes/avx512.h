// 16 float lanes in one 512-bit register; avx512_bytes.h has what 8-bit products need. `Here` is a
// type of the including source, so that what is made from this stays there; see rows.h.
#ifndef PDSERVE_ENGINE_LANES_AVX512_H_
#define PDSERVE_ENGINE_LANES_AVX512_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "engine/lanes/rows.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

template <class Here>
struct Avx512Floats {
  using F = __m512;
  static constexpr int32_t kRowTile = 16;  // 16 sums, 8 weights, scale, minimum, and some to work
  static constexpr int kQueryTile = 6;     // by kVectorTile: 24 sums
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
  static F SwapPairs(F value) { return _mm512_permute_ps(value, 0xb1); }
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
  static F LowHalves(F pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
  }
  static F HighHalves(F pairs) {
    const __m512i mask = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs), mask));
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
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_AVX512_H_
