// 16 float lanes in four 128-bit registers of AArch64; neon_bytes.h has what 8-bit products need.
// `Here` is a type of the including source, so that what is made from this stays there; see rows.h.
#ifndef PDSERVE_ENGINE_LANES_NEON_H_
#define PDSERVE_ENGINE_LANES_NEON_H_

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "engine/lanes/rows.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

template <class Here>
struct NeonFloats {
  using Part = float32x4_t;
  static constexpr int kParts = 4;
  static constexpr int kPart = 4;  // lanes of a register
  struct F {
    Part part[kParts];
  };
  static constexpr int32_t kRowTile = 4;  // 16 sums of the 32 registers
  static constexpr int kQueryTile = 4;
  static constexpr int kVectorTile = 1;

  template <class Body>
  [[gnu::always_inline]] static F Each(const Body& body) {
    return {{body(0), body(1), body(2), body(3)}};
  }

  static F Set(float value) {
    return Each([&](int) { return vdupq_n_f32(value); });
  }
  static F Load(const float* at) {
    return Each([&](int i) { return vld1q_f32(at + i * kPart); });
  }
  static void Store(float* at, F value) {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) vst1q_f32(at + i * kPart, value.part[i]);
  }
  static F LoadPart(const float* at, int32_t count) {
    return PartsByCopy<NeonFloats>::Load(at, count);
  }
  static void StorePart(float* at, int32_t count, F value) {
    PartsByCopy<NeonFloats>::Store(at, count, value);
  }
  static F Keep(F value, int32_t count, float other) {
    return PartsByCopy<NeonFloats>::Keep(value, count, other);
  }

  static F Add(F a, F b) {
    return Each([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
  }
  static F Sub(F a, F b) {
    return Each([&](int i) { return vsubq_f32(a.part[i], b.part[i]); });
  }
  static F Mul(F a, F b) {
    return Each([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
  }
  static F Div(F a, F b) {
    return Each([&](int i) { return vdivq_f32(a.part[i], b.part[i]); });
  }
  static F Fma(F a, F b, F c) {
    return Each([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
  }
  /// As on x86: b where either is NaN, or both are zero.
  static F Min(F a, F b) {
    return Each(
        [&](int i) { return vbslq_f32(vcltq_f32(a.part[i], b.part[i]), a.part[i], b.part[i]); });
  }
  static F Max(F a, F b) {
    return Each([&](int i) { return Larger(a.part[i], b.part[i]); });
  }
  static float First(F value) { return vgetq_lane_f32(value.part[0], 0); }

  /// value where x >= limit or x is NaN, else 0.
  static F ZeroBelow(F x, float limit, F value) {
    return Each([&](int i) {
      const uint32x4_t below = vcltq_f32(x.part[i], vdupq_n_f32(limit));
      return vreinterpretq_f32_u32(vbicq_u32(BitsOf(value.part[i]), below));
    });
  }
  /// 2^n of n + 12582912.0.
  static F PowerOfTwo(F shifted) {
    return Each([&](int i) {
      const uint32x4_t n = vaddq_u32(BitsOf(shifted.part[i]), vdupq_n_u32(127));
      return vreinterpretq_f32_u32(vshlq_n_u32(n, 23));
    });
  }
  static uint32x4_t BitsOf(Part value) { return vreinterpretq_u32_f32(value); }
  /// Lanes l and l + 8, then l + 4, l + 2, l + 1.
  static float Sum(F value) {
    const Part a = vaddq_f32(value.part[0], value.part[2]);
    const Part b = vaddq_f32(a, vaddq_f32(value.part[1], value.part[3]));
    const float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
    return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
  }
  static float Largest(F value) {
    const Part a = Larger(value.part[0], value.part[2]);
    Part b = Larger(a, Larger(value.part[1], value.part[3]));
    b = Larger(b, vextq_f32(b, b, 2));
    return vgetq_lane_f32(Larger(b, vextq_f32(b, b, 1)), 0);
  }
  static Part Larger(Part a, Part b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static F SwapPairs(F value) {
    return Each([&](int i) { return vrev64q_f32(value.part[i]); });
  }
  /// 16 rows of 16 words become 16 columns.
  static void Transpose(F (&w)[kLanes]) {
    F to[kLanes];
#pragma GCC unroll 16
    for (int at = 0; at < kLanes; ++at) {
      TransposeFour(w + at / 4 * 4, at % 4, to + at % 4 * 4, at / 4);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) w[i] = to[i];
  }
  /// Four rows' part to another part of four rows.
  static void TransposeFour(const F* w, int part, F* to, int to_part) {
    const Part a = vzip1q_f32(w[0].part[part], w[2].part[part]);
    const Part b = vzip2q_f32(w[0].part[part], w[2].part[part]);
    const Part c = vzip1q_f32(w[1].part[part], w[3].part[part]);
    const Part d = vzip2q_f32(w[1].part[part], w[3].part[part]);
    to[0].part[to_part] = vzip1q_f32(a, c);
    to[1].part[to_part] = vzip2q_f32(a, c);
    to[2].part[to_part] = vzip1q_f32(b, d);
    to[3].part[to_part] = vzip2q_f32(b, d);
  }

  static uint16x4_t LoadHalves(const std::byte* at) {
    return vld1_u16(reinterpret_cast<const uint16_t*>(at));
  }
  /// Word i: value i of `low` below value i of `high`, 16 bits each.
  static F Interleave(const std::byte* low, const std::byte* high) {
    return Each([&](int i) {
      const uint32x4_t above = vshll_n_u16(LoadHalves(high + i * 8), 16);
      return vreinterpretq_f32_u32(vorrq_u32(vmovl_u16(LoadHalves(low + i * 8)), above));
    });
  }
  static F LowHalves(F pairs) {
    return Each(
        [&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(BitsOf(pairs.part[i]), 16)); });
  }
  static F HighHalves(F pairs) { return Masked(pairs, 0xffff0000u); }
  /// Pairs with the high one zero.
  static F ClearHigh(F pairs) { return Masked(pairs, 0xffffu); }
  static F Masked(F pairs, uint32_t mask) {
    return Each([&](int i) {
      return vreinterpretq_f32_u32(vandq_u32(BitsOf(pairs.part[i]), vdupq_n_u32(mask)));
    });
  }
  /// Asks for the lines of [at, at + bytes); beyond any memory does no harm.
  template <int bytes>
  [[gnu::always_inline]] static void Prefetch(const std::byte* at) {
#pragma GCC unroll 8
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(at + i);
  }
  static F LoadHalf(const std::byte* at) {
    return Each([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(LoadHalves(at + i * 8))); });
  }
  static void StoreBf16(std::byte* at, F value) {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) {
      vst1_u16(reinterpret_cast<uint16_t*>(at + i * 8), RoundHalves(value.part[i]));
    }
  }
  static uint16x4_t RoundHalves(Part value) {
    const uint32x4_t bits = BitsOf(value);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(vceqq_f32(value, value), up, quiet), 16);
  }
  /// Word i: values 2 i and 2 i + 1 of low's and then high's 16, as bf16.
  static F RoundPairs(F low, F high) {
    return Each([&](int i) {
      const F& from = i < kParts / 2 ? low : high;
      const int at = i % 2 * 2;
      return vreinterpretq_f32_u16(
          vcombine_u16(RoundHalves(from.part[at]), RoundHalves(from.part[at + 1])));
    });
  }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_NEON_H_
