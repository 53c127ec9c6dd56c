#include <algorithm>
#include <chrono>
#include <cstdint>

#include "bench/peak.h"

namespace pdserve::engine {
namespace {

constexpr int kChains = 12;  // of dependent products: more than latency times units
constexpr int64_t kSteps = 1'000'000;

// Written out: a compiler may move or merge what it can see through. What the registers hold does
// not matter to the speed.
void MultiplyInRegisters() {
  for (int64_t step = 0; step < kSteps; ++step) {
    asm volatile(
        ".irp chain,0,1,2,3,4,5,6,7,8,9,10,11\n"
        "vpdpbusd %%zmm13, %%zmm12, %%zmm\\chain\n"
        ".endr\n"
        :
        :
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
          "xmm11", "xmm12", "xmm13");
  }
}

}  // namespace

double MeasureVnniPeak(Team& team) {
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vnni")) return 0;
  using Clock = std::chrono::steady_clock;
  double best = 0;
  for (int round = 0; round < 10; ++round) {
    const auto start = Clock::now();
    team.Run(team.threads(), 1, [](int32_t /*thread*/, Share /*one*/) { MultiplyInRegisters(); });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, team.threads() * 64 * 2.0 * kChains * kSteps / seconds);
  }
  return best;
}

}  // namespace pdserve::engine
