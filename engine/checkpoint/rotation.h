// Rotary position embedding: radians per position of each pair of a head, with the scalings that
// model files ask for. Pure functions, loading thread.
//   plain:   base^(-2 i / dims)
//   linear:  plain / factor
//   llama3:  plain where the wavelength is short, plain / factor where it is long, a blend between
#ifndef PDSERVE_ENGINE_CHECKPOINT_ROTATION_H_
#define PDSERVE_ENGINE_CHECKPOINT_ROTATION_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/parameters.h"

namespace pdserve::engine {

/// [dims / 2], from the parameters "rope.freq_base" and "rope.scaling.*". InvalidArgument names a
/// scaling that is not known, or a value that makes no sense.
absl::StatusOr<std::vector<double>> ReadRotation(const Parameters& parameters, int32_t dims);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_CHECKPOINT_ROTATION_H_
