// 8-bit activations and quantised weights on AArch64; the other half of neon.h's lanes. Dot, a type
// of the including source, is how four unsigned weights meet four signed activations, exactly.
#ifndef PDSERVE_ENGINE_LANES_NEON_BYTES_H_
#define PDSERVE_ENGINE_LANES_NEON_BYTES_H_

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "engine/lanes/neon.h"
#include "engine/lanes/rows.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

template <class Dot>
struct NeonBytes {
  using F = typename NeonFloats<Dot>::F;
  static constexpr int kParts = NeonFloats<Dot>::kParts;
  static constexpr int kPart = NeonFloats<Dot>::kPart;

  static float LargestMagnitude(const float* values) {
    uint32x4_t largest = vdupq_n_u32(0);
#pragma GCC unroll 8
    for (int i = 0; i < kBlockCols; i += kPart) {
      const uint32x4_t bits = vreinterpretq_u32_f32(vld1q_f32(values + i));
      largest = vmaxq_u32(largest, vbicq_u32(bits, vdupq_n_u32(0x80000000u)));
    }
    return vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32(vmaxvq_u32(largest))), 0);
  }
  static BlockSums RoundBlock(const float* values, float inverse, int8_t* q) {
    int32x4_t sum = vdupq_n_s32(0);
    int32x4_t squares = sum;
#pragma GCC unroll 2
    for (int i = 0; i < kBlockCols; i += kLanes) {
      const int8x16_t bytes =
          ToBytes([&](int k) { return vmulq_n_f32(vld1q_f32(values + i + k), inverse); });
      vst1q_s8(q + i, bytes);
      sum = vdotq_s32(sum, bytes, vdupq_n_s8(1));
      squares = vdotq_s32(squares, bytes, bytes);
    }
    return {vaddvq_s32(sum), vaddvq_s32(squares)};
  }
  static int32_t RestBlock(const float* values, float inverse, const int8_t* q, int8_t* rest) {
    int32x4_t sum = vdupq_n_s32(0);
#pragma GCC unroll 2
    for (int i = 0; i < kBlockCols; i += kLanes) {
      float rounded[kLanes];
      for (int k = 0; k < kLanes; ++k) rounded[k] = static_cast<float>(q[i + k]);
      const int8x16_t bytes = ToBytes([&](int k) {
        const float32x4_t scaled = vmulq_n_f32(vld1q_f32(values + i + k), inverse);
        return vmulq_n_f32(vsubq_f32(scaled, vld1q_f32(rounded + k)), 1 << kRestBits);
      });
      vst1q_s8(rest + i, bytes);
      sum = vdotq_s32(sum, bytes, vdupq_n_s8(1));
    }
    return vaddvq_s32(sum);
  }
  /// 16 values, from 0, 4, 8 and 12 on, rounded, half to even, to at most 127.
  template <class Four>
  static int8x16_t ToBytes(const Four& four) {
    const auto eight = [&](int at) {
      return vqmovn_high_s32(vqmovn_s32(vcvtnq_s32_f32(four(at))), vcvtnq_s32_f32(four(at + 4)));
    };
    return vqmovn_high_s16(vqmovn_s16(eight(0)), eight(8));
  }

  /// A block of quantised weights: 4 columns of 4 rows in each register.
  struct Weights {
    uint8x16_t group[kGroups][kParts];
  };
  static uint8x16_t LoadBytes(const std::byte* at) {
    return vld1q_u8(reinterpret_cast<const uint8_t*>(at));
  }
  static Weights LoadU4(const std::byte* quants) {
    Weights w;
#pragma GCC unroll 16
    for (int i = 0; i < kGroups / 2 * kParts; ++i) {
      const uint8x16_t both = LoadBytes(quants + i * 16);
      w.group[i / kParts * 2][i % kParts] = vandq_u8(both, vdupq_n_u8(15));
      w.group[i / kParts * 2 + 1][i % kParts] = vshrq_n_u8(both, 4);
    }
    return w;
  }
  static Weights LoadU8(const std::byte* quants) {
    Weights w;
#pragma GCC unroll 32
    for (int i = 0; i < kGroups * kParts; ++i) {
      w.group[i / kParts][i % kParts] = LoadBytes(quants + i * 16);
    }
    return w;
  }
  struct I {
    int32x4_t part[kParts];
  };
  static F ToFloat(I sums) {
    return NeonFloats<Dot>::Each([&](int i) { return vcvtq_f32_s32(sums.part[i]); });
  }
  static I DotU4(const Weights& w, const int8_t* q) {
    return Dots(w, q, vdupq_n_s32(0), [](int32x4_t sum, uint8x16_t weights, int8x16_t four) {
      return Dot::SumSmall(sum, weights, four);
    });
  }
  static I DotU8(const Weights& w, const int8_t* q) {
    return Dots(w, q, Dot::Start(q), [](int32x4_t sum, uint8x16_t weights, int8x16_t four) {
      return Dot::Sum(sum, weights, four);
    });
  }
  template <class Add>
  [[gnu::always_inline]] static I Dots(const Weights& w, const int8_t* q, int32x4_t start,
                                       const Add& add) {
    I sums = {{start, start, start, start}};
#pragma GCC unroll 8
    for (int j = 0; j < kGroups; ++j) {
      int32_t bytes;
      __builtin_memcpy(&bytes, q + j * kGroupCols, sizeof(bytes));
      const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(bytes));
#pragma GCC unroll 4
      for (int i = 0; i < kParts; ++i) sums.part[i] = add(sums.part[i], w.group[j][i], four);
    }
    return sums;
  }
  /// Column k of the block as floats.
  static F Column(const Weights& w, int k) {
    return NeonFloats<Dot>::Each([&](int i) {
      const uint32x4_t words = vreinterpretq_u32_u8(w.group[k / kGroupCols][i]);
      const uint32x4_t shifted = vshlq_u32(words, vdupq_n_s32(-8 * (k % kGroupCols)));
      return vcvtq_f32_u32(vandq_u32(shifted, vdupq_n_u32(255)));
    });
  }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_NEON_BYTES_H_
