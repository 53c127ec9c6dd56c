// Kernels for AVX2 with FMA and F16C: the templates of engine/lanes over two 256-bit registers.
#include <immintrin.h>

#include "engine/lanes/rows.h"
#include "engine/lanes/table.h"
#include "engine/ops.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {
namespace {

struct Avx2 {
  static constexpr int kHalf = 8;  // lanes of a register
  struct F {
    __m256 low;
    __m256 high;
  };
  static constexpr int32_t kRowTile = 4;
  static constexpr int kQueryTile = 3;
  static constexpr int kVectorTile = 1;

  static F Set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static F Load(const float* at) { return {_mm256_loadu_ps(at), _mm256_loadu_ps(at + kHalf)}; }
  static void Store(float* at, F value) {
    _mm256_storeu_ps(at, value.low);
    _mm256_storeu_ps(at + kHalf, value.high);
  }
  static F LoadPart(const float* at, int32_t count) { return PartsByCopy<Avx2>::Load(at, count); }
  static void StorePart(float* at, int32_t count, F value) {
    PartsByCopy<Avx2>::Store(at, count, value);
  }
  static F Keep(F value, int32_t count, float other) {
    return PartsByCopy<Avx2>::Keep(value, count, other);
  }

  static F Add(F a, F b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static F Sub(F a, F b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  static F Mul(F a, F b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static F Div(F a, F b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
  static F Min(F a, F b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
  static F Max(F a, F b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
  static F Fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static float First(F value) { return _mm256_cvtss_f32(value.low); }

  /// value where x >= limit or x is NaN, else 0.
  static F ZeroBelow(F x, float limit, F value) {
    const __m256 bound = _mm256_set1_ps(limit);
    return {_mm256_and_ps(_mm256_cmp_ps(x.low, bound, _CMP_NLT_UQ), value.low),
            _mm256_and_ps(_mm256_cmp_ps(x.high, bound, _CMP_NLT_UQ), value.high)};
  }
  /// 2^n of n + 12582912.0.
  static F PowerOfTwo(F shifted) { return {HalfPower(shifted.low), HalfPower(shifted.high)}; }
  static __m256 HalfPower(__m256 shifted) {
    const __m256i n = _mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(n, 23));
  }

  /// Lanes l and l + 8, then l + 4, l + 2, l + 1.
  static float Sum(F value) {
    const __m256 a = _mm256_add_ps(value.low, value.high);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
  }
  static float Largest(F value) {
    const __m256 a = _mm256_max_ps(value.low, value.high);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
  }
  static F SwapPairs(F value) {
    return {_mm256_permute_ps(value.low, 0xb1), _mm256_permute_ps(value.high, 0xb1)};
  }
  /// 16 rows of 16 words become 16 columns.
  static void Transpose(F (&w)[kLanes]) {
    __m256 part[4][kHalf];  // [row half * 2 + column half]
#pragma GCC unroll 8
    for (int i = 0; i < kHalf; ++i) {
      part[0][i] = w[i].low;
      part[1][i] = w[i].high;
      part[2][i] = w[i + kHalf].low;
      part[3][i] = w[i + kHalf].high;
    }
    for (auto& square : part) TransposeEight(square);
#pragma GCC unroll 8
    for (int i = 0; i < kHalf; ++i) {
      w[i] = {part[0][i], part[2][i]};
      w[i + kHalf] = {part[1][i], part[3][i]};
    }
  }
  static void TransposeEight(__m256 (&w)[kHalf]) {
    __m256 s[kHalf];
#pragma GCC unroll 2
    for (int i = 0; i < kHalf; i += 4) {  // 4 x 4 words in both 128-bit parts
      const __m256 a = _mm256_unpacklo_ps(w[i], w[i + 1]);
      const __m256 b = _mm256_unpackhi_ps(w[i], w[i + 1]);
      const __m256 c = _mm256_unpacklo_ps(w[i + 2], w[i + 3]);
      const __m256 d = _mm256_unpackhi_ps(w[i + 2], w[i + 3]);
      s[i] = _mm256_shuffle_ps(a, c, 0x44);
      s[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
      s[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
      s[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm256_permute2f128_ps(s[i], s[i + 4], 0x20);
      w[i + 4] = _mm256_permute2f128_ps(s[i], s[i + 4], 0x31);
    }
  }
  /// Word i: value i of `low` below value i of `high`, 16 bits each.
  static F Interleave(const std::byte* low, const std::byte* high) {
    return {InterleaveEight(low, high), InterleaveEight(low + 16, high + 16)};
  }
  static __m256 InterleaveEight(const std::byte* low, const std::byte* high) {
    const __m256i below = _mm256_cvtepu16_epi32(Load8x16(low));
    const __m256i above = _mm256_slli_epi32(_mm256_cvtepu16_epi32(Load8x16(high)), 16);
    return _mm256_castsi256_ps(_mm256_or_si256(below, above));
  }
  static F DotPairs(F a, F b, F sum) { return FusePairs<Avx2>(a, b, sum); }
  static F LowHalves(F pairs) { return {LowHalf(pairs.low), LowHalf(pairs.high)}; }
  static __m256 LowHalf(__m256 pairs) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(pairs), 16));
  }
  static F ClearHigh(F pairs) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0xffff));
    return {_mm256_and_ps(pairs.low, mask), _mm256_and_ps(pairs.high, mask)};
  }
  static F HighHalves(F pairs) {
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int32_t>(0xffff0000)));
    return {_mm256_and_ps(pairs.low, mask), _mm256_and_ps(pairs.high, mask)};
  }
  /// Word i: values 2 i and 2 i + 1 of low's and then high's 16, as bf16.
  static F RoundPairs(F low, F high) {
    alignas(64) std::byte pairs[4 * kLanes];
    StoreBf16(pairs, low);
    StoreBf16(pairs + 2 * kLanes, high);
    return Load(reinterpret_cast<const float*>(pairs));
  }

  static __m128i Load8x16(const std::byte* at) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
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
    return {_mm256_cvtph_ps(Load8x16(at)), _mm256_cvtph_ps(Load8x16(at + 16))};
  }
  static void StoreBf16(std::byte* at, F value) {
    const __m256i packed = _mm256_packus_epi32(Narrow(value.low), Narrow(value.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm256_permute4x64_epi64(packed, 0xd8));
  }
  static __m256i Narrow(__m256 value) {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i high = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), quiet, nan);
  }

  static float LargestMagnitude(const float* values) {
    __m256i largest = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < kBlockCols; i += kHalf) {
      const __m256i bits = _mm256_castps_si256(_mm256_loadu_ps(values + i));
      largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    }
    __m128i b =
        _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    b = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(b));
  }
  static BlockSums RoundBlock(const float* values, float inverse, int8_t* q) {
    __m256i rounded[4];
    __m256i sum = _mm256_setzero_si256();
    __m256i squares = sum;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256 scaled =
          _mm256_mul_ps(_mm256_loadu_ps(values + i * kHalf), _mm256_set1_ps(inverse));
      rounded[i] = _mm256_cvtps_epi32(scaled);
      sum = _mm256_add_epi32(sum, rounded[i]);
      squares = _mm256_add_epi32(squares, _mm256_mullo_epi32(rounded[i], rounded[i]));
    }
    StoreBytes(q, rounded);
    return {SumOf(sum), SumOf(squares)};
  }
  static int32_t RestBlock(const float* values, float inverse, const int8_t* q, int8_t* rest) {
    __m256i rests[4];
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(q + i * kHalf));
      const __m256 rounded = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
      const __m256 scaled =
          _mm256_mul_ps(_mm256_loadu_ps(values + i * kHalf), _mm256_set1_ps(inverse));
      const __m256 steps =
          _mm256_mul_ps(_mm256_sub_ps(scaled, rounded), _mm256_set1_ps(1 << kRestBits));
      rests[i] = _mm256_min_epi32(_mm256_cvtps_epi32(steps), _mm256_set1_epi32(127));
      sum = _mm256_add_epi32(sum, rests[i]);
    }
    StoreBytes(rest, rests);
    return SumOf(sum);
  }
  static void StoreBytes(int8_t* q, const __m256i (&words)[4]) {
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(words[0], words[1]),
                                             _mm256_packs_epi32(words[2], words[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(bytes, order));
  }
  static int32_t SumOf(__m256i words) {
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0xb1));
    return _mm_cvtsi128_si32(b);
  }

  /// A block of quantised weights: 4 columns of 8 rows in each register.
  struct Weights {
    __m256i group[kGroups][2];
  };
  static __m256i LoadBytes(const std::byte* at) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  }
  static Weights LoadU4(const std::byte* quants) {
    const __m256i mask = _mm256_set1_epi8(15);
    Weights w;
#pragma GCC unroll 8
    for (int i = 0; i < kGroups; ++i) {
      const __m256i both = LoadBytes(quants + i * 32);
      w.group[i / 2 * 2][i % 2] = _mm256_and_si256(both, mask);
      w.group[i / 2 * 2 + 1][i % 2] = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
    }
    return w;
  }
  static Weights LoadU8(const std::byte* quants) {
    Weights w;
#pragma GCC unroll 16
    for (int i = 0; i < 2 * kGroups; ++i) w.group[i / 2][i % 2] = LoadBytes(quants + i * 32);
    return w;
  }
  static int32_t LoadFour(const int8_t* q) {
    int32_t four;
    __builtin_memcpy(&four, q, sizeof(four));
    return four;
  }
  struct I {
    __m256i low;
    __m256i high;
  };
  static F ToFloat(I sums) { return {_mm256_cvtepi32_ps(sums.low), _mm256_cvtepi32_ps(sums.high)}; }
  /// Pairs and then the whole block fit 16 bits: 8 * 2 * 15 * 128 = 30,720.
  static I DotU4(const Weights& w, const int8_t* q) {
    __m256i low = _mm256_setzero_si256();
    __m256i high = low;
#pragma GCC unroll 8
    for (int j = 0; j < kGroups; ++j) {
      const __m256i four = _mm256_set1_epi32(LoadFour(q + j * kGroupCols));
      low = _mm256_add_epi16(low, _mm256_maddubs_epi16(w.group[j][0], four));
      high = _mm256_add_epi16(high, _mm256_maddubs_epi16(w.group[j][1], four));
    }
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(low, ones), _mm256_madd_epi16(high, ones)};
  }
  static I DotU8(const Weights& w, const int8_t* q) { return {DotHalf(w, q, 0), DotHalf(w, q, 1)}; }
  /// 255 * 127 * 2 overflows 16 bits: widened first. Registers hold rows 0, 1, 4, 5 and 2, 3, 6, 7.
  static __m256i DotHalf(const Weights& w, const int8_t* q, int half) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i even = zero;
    __m256i odd = zero;
#pragma GCC unroll 8
    for (int j = 0; j < kGroups; ++j) {
      const __m256i four = _mm256_cvtepi8_epi16(_mm_set1_epi32(LoadFour(q + j * kGroupCols)));
      const __m256i bytes = w.group[j][half];
      even = _mm256_add_epi32(even, _mm256_madd_epi16(_mm256_unpacklo_epi8(bytes, zero), four));
      odd = _mm256_add_epi32(odd, _mm256_madd_epi16(_mm256_unpackhi_epi8(bytes, zero), four));
    }
    return _mm256_hadd_epi32(even, odd);
  }
  /// Column k of the block as floats.
  static F Column(const Weights& w, int k) {
    return {HalfColumn(w.group[k / kGroupCols][0], 8 * (k % kGroupCols)),
            HalfColumn(w.group[k / kGroupCols][1], 8 * (k % kGroupCols))};
  }
  static __m256 HalfColumn(__m256i group, int shift) {
    const __m256i bytes = _mm256_srli_epi32(group, shift);
    return _mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(255)));
  }
};

constexpr Ops kOps = LanesTable<Avx2>("avx2");

}  // namespace

const Ops* avx2_ops() {
  const bool runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  return runs ? &kOps : nullptr;
}

}  // namespace pdserve::engine
