// Kernels for AArch64 with bf16 and with unsigned times signed bytes: those of ops_neon.cc, equal
// bit by bit. Pairs of bf16 meet by BFMLALT and BFMLALB, each a fused multiply-add in float; BFDOT
// rounds otherwise.
#include <arm_neon.h>
#include <sys/auxv.h>

#include "engine/lanes/neon.h"
#include "engine/lanes/neon_bytes.h"
#include "engine/lanes/rows.h"
#include "engine/lanes/table.h"
#include "engine/ops.h"

namespace pdserve::engine {
namespace {

struct Dot {
  static int32x4_t Start(const int8_t* /*q*/) { return vdupq_n_s32(0); }
  static int32x4_t Sum(int32x4_t sum, uint8x16_t weights, int8x16_t four) {
    return vusdotq_s32(sum, weights, four);
  }
  static int32x4_t SumSmall(int32x4_t sum, uint8x16_t weights, int8x16_t four) {
    return vusdotq_s32(sum, weights, four);
  }
};

struct Lanes : NeonFloats<Dot>, NeonBytes<Dot> {
  using NeonFloats<Dot>::F;
  static F DotPairs(F a, F b, F sum) {
    return Each([&](int i) {
      const bfloat16x8_t x = vreinterpretq_bf16_f32(a.part[i]);
      const bfloat16x8_t y = vreinterpretq_bf16_f32(b.part[i]);
      return vbfmlalbq_f32(vbfmlaltq_f32(sum.part[i], x, y), x, y);
    });
  }
  static F RoundPairs(F low, F high) {
    return Each([&](int i) {
      const F& from = i < 2 ? low : high;
      const bfloat16x8_t half = vcvtq_low_bf16_f32(from.part[i % 2 * 2]);
      return vreinterpretq_f32_bf16(vcvtq_high_bf16_f32(half, from.part[i % 2 * 2 + 1]));
    });
  }
};

constexpr Ops kOps = LanesTable<Lanes>("neonbf16");

}  // namespace

const Ops* neonbf16_ops() {
  const bool runs = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 &&
                    (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0 &&
                    (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  return runs ? &kOps : nullptr;
}

}  // namespace pdserve::engine
