// Kernels for AVX-512 with VNNI but no bf16: the templates of engine/lanes over one 512-bit
// register.
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
  static F DotPairs(F a, F b, F sum) { return FusePairs<Lanes>(a, b, sum); }
  /// Word i: values 2 i and 2 i + 1 of low's and then high's 16, as bf16.
  static F RoundPairs(F low, F high) {
    const __m512i pairs = _mm512_castsi256_si512(RoundHalves(low));
    return _mm512_castsi512_ps(_mm512_inserti64x4(pairs, RoundHalves(high), 1));
  }
};

constexpr Ops kOps = LanesTable<Lanes>("avx512");

}  // namespace

const Ops* avx512_ops() {
  const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("f16c") &&
                    __builtin_cpu_supports("fma");
  return runs ? &kOps : nullptr;
}

}  // namespace pdserve::engine
