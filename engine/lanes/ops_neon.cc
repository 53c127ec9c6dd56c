// Kernels for AArch64 with the dot product of signed bytes: the templates of engine/lanes over four
// 128-bit registers.
#include <arm_neon.h>
#include <sys/auxv.h>

#include "engine/lanes/neon.h"
#include "engine/lanes/neon_bytes.h"
#include "engine/lanes/rows.h"
#include "engine/lanes/table.h"
#include "engine/ops.h"

namespace pdserve::engine {
namespace {

/// Of unsigned bytes above 127 by way of w - 128: what is missing then, 128 sum(q), is there first.
struct Dot {
  static int32x4_t Start(const int8_t* q) {
    const int8x16_t ones = vdupq_n_s8(1);
    const int32x4_t low = vdotq_s32(vdupq_n_s32(0), vld1q_s8(q), ones);
    return vdupq_n_s32(128 * vaddvq_s32(vdotq_s32(low, vld1q_s8(q + kLanes), ones)));
  }
  static int32x4_t Sum(int32x4_t sum, uint8x16_t weights, int8x16_t four) {
    return vdotq_s32(sum, vreinterpretq_s8_u8(veorq_u8(weights, vdupq_n_u8(128))), four);
  }
  /// Of weights up to 127.
  static int32x4_t SumSmall(int32x4_t sum, uint8x16_t weights, int8x16_t four) {
    return vdotq_s32(sum, vreinterpretq_s8_u8(weights), four);
  }
};

struct Lanes : NeonFloats<Dot>, NeonBytes<Dot> {
  using NeonFloats<Dot>::F;
  static F DotPairs(F a, F b, F sum) { return FusePairs<Lanes>(a, b, sum); }
};

constexpr Ops kOps = LanesTable<Lanes>("neon");

}  // namespace

const Ops* neon_ops() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 ? &kOps : nullptr; }

}  // namespace pdserve::engine
