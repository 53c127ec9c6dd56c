// Kernels for AVX-512 with VNNI and BF16: those of ops_avx512.cc, with bf16 pairs multiplied by
// vdpbf16ps. Equal bits (but where a float is below 2^-126, which counts as zero here).
#include <immintrin.h>

#include "engine/lanes/avx512.h"
#include "engine/lanes/avx512_bytes.h"
#include "engine/lanes/rows.h"
#include "engine/lanes/table.h"
#include "engine/ops.h"

namespace pdserve::engine {
namespace {

struct Here {};
struct Lanes : Avx512Floats<Here>, Avx512Bytes<Here> {
  static F DotPairs(F a, F b, F sum) {
    return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
  static F RoundPairs(F low, F high) { return reinterpret_cast<F>(_mm512_cvtne2ps_pbh(high, low)); }
};

constexpr Ops kOps = LanesTable<Lanes>("avx512bf16");

}  // namespace

const Ops* avx512bf16_ops() {
  const bool runs = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") &&
                    __builtin_cpu_supports("f16c") && __builtin_cpu_supports("fma");
  return runs ? &kOps : nullptr;
}

}  // namespace pdserve::engine
