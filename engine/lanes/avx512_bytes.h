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
    const __m256i bytes = ToBytes(_mm512_mul_ps(_mm512_loadu_ps(values), factor),
                                  _mm512_mul_ps(_mm512_loadu_ps(values + kLanes), factor));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), bytes);
    return SumsOf(bytes);
  }
  static int32_t RestBlock(const float* values, float inverse, const int8_t* q, int8_t* rest) {
    const __m256i bytes =
        ToBytes(RestOf(values, inverse, q), RestOf(values + kLanes, inverse, q + kLanes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(rest), bytes);
    return SumsOf(bytes).q;
  }
  static __m512 RestOf(const float* values, float inverse, const int8_t* q) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(q));
    const __m512 rounded = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(values), _mm512_set1_ps(inverse));
    return _mm512_mul_ps(_mm512_sub_ps(scaled, rounded), _mm512_set1_ps(1 << kRestBits));
  }
  /// Rounded, half to even, to at most 127.
  static __m256i ToBytes(__m512 low, __m512 high) {
    return _mm256_set_m128i(_mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(high)),
                            _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(low)));
  }
  /// Squares are right for bytes from -127 on.
  static BlockSums SumsOf(__m256i bytes) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i size = _mm256_abs_epi8(bytes);
    const __m256i q = _mm256_dpbusd_epi32(zero, _mm256_set1_epi8(1), bytes);
    const __m256i squares = _mm256_dpbusd_epi32(zero, size, size);
    const __m256i both = _mm256_hadd_epi32(q, squares);  // q, q, squares, squares, twice
    __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xb1));
    return {_mm_cvtsi128_si32(sums), _mm_extract_epi32(sums, 2)};
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
  static I DotU8(const Weights& w, const int8_t* q) {
    __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < kGroups; ++j) {
      int32_t four;
      __builtin_memcpy(&four, q + j * kGroupCols, sizeof(four));
      sum = _mm512_dpbusd_epi32(sum, w.group[j], _mm512_set1_epi32(four));
    }
    return sum;
  }
  static I DotU4(const Weights& w, const int8_t* q) { return DotU8(w, q); }
  static __m512 ToFloat(I sums) { return _mm512_cvtepi32_ps(sums); }
  /// Column k of the block as floats.
  static __m512 Column(const Weights& w, int k) {
    const __m512i bytes = _mm512_srli_epi32(w.group[k / kGroupCols], 8 * (k % kGroupCols));
    return _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(255)));
  }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_AVX512_BYTES_H_
