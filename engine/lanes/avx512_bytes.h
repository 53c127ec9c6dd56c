// 8-bit activations and quantised weights with AVX-512 and VNNI; the other half of avx512.h's
// lanes.
#ifndef PDSERVE_ENGINE_LANES_AVX512_BYTES_H_
#define PDSERVE_ENGINE_LANES_AVX512_BYTES_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "engine/lanes/rows.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

template <class Here>
struct Avx512Bytes {
  static float LargestMagnitude(const float* values) {
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    const __m512i low = _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(values)), mask);
    const __m512i high =
        _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(values + kLanes)), mask);
    const int32_t largest = _mm512_reduce_max_epi32(_mm512_max_epi32(low, high));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(largest)));
  }
  static BlockSums RoundBlock(const float* values, float inverse, int8_t* q) {
    const __m512 factor = _mm512_set1_ps(inverse);
    const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(values), factor));
    const __m512i high =
        _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(values + kLanes), factor));
    StoreBytes(q, low, high);
    const __m512i squares = _mm512_add_epi32(Square(low), Square(high));
    return {_mm512_reduce_add_epi32(_mm512_add_epi32(low, high)), _mm512_reduce_add_epi32(squares)};
  }
  static __m512i Square(__m512i small) {
    const __m512i size = _mm512_abs_epi32(small);
    return _mm512_madd_epi16(size, size);
  }
  static void StoreBytes(int8_t* q, __m512i low, __m512i high) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtsepi32_epi8(low));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + kLanes), _mm512_cvtsepi32_epi8(high));
  }
  static int32_t RestBlock(const float* values, float inverse, const int8_t* q, int8_t* rest) {
    const __m512i low = RestOf(values, inverse, q);
    const __m512i high = RestOf(values + kLanes, inverse, q + kLanes);
    StoreBytes(rest, low, high);
    return _mm512_reduce_add_epi32(_mm512_add_epi32(low, high));
  }
  static __m512i RestOf(const float* values, float inverse, const int8_t* q) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    const __m512 rounded = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(values), _mm512_set1_ps(inverse));
    const __m512 rest = _mm512_sub_ps(scaled, rounded);
    const __m512i steps = _mm512_cvtps_epi32(_mm512_mul_ps(rest, _mm512_set1_ps(1 << kRestBits)));
    return _mm512_min_epi32(steps, _mm512_set1_epi32(127));
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
  using I = __m512i;
  static I DotU8(const Weights& w, const std::byte* q) {
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < kGroups; ++j) {
      int32_t four;
      __builtin_memcpy(&four, q + j * kGroupCols, sizeof(four));
      sum = _mm512_dpbusd_epi32(sum, w.group[j], _mm512_set1_epi32(four));
    }
    return sum;
  }
  static I DotU4(const Weights& w, const std::byte* q) { return DotU8(w, q); }
  static __m512 ToFloat(I sums) { return _mm512_cvtepi32_ps(sums); }
  /// Column k of the block as floats.
  static __m512 Column(const Weights& w, int k) {
    const __m512i bytes = _mm512_srli_epi32(w.group[k / kGroupCols], 8 * (k % kGroupCols));
    return _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(255)));
  }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_AVX512_BYTES_H_
