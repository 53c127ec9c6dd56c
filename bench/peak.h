// What the machine's arithmetic could do at best: the limit that engine_bench's rows stand beside.
// Any thread; one file per processor family.
#ifndef PDSERVE_BENCH_PEAK_H_
#define PDSERVE_BENCH_PEAK_H_

#include "engine/device.h"

namespace pdserve::engine {

/// Operations (a multiplication or an addition) per second of 8-bit dot products by AVX-512 VNNI,
/// all threads of `team` together, operands in registers; 0 where the processor has none.
double MeasureVnniPeak(Team& team);

}  // namespace pdserve::engine

#endif  // PDSERVE_BENCH_PEAK_H_
