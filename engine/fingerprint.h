// The identity of what a node computes: nodes with unequal fingerprints never pair.
//   SHA-256( SHA-256(text) | SHA-256 of each 4 MiB leaf of the file, in order )
#ifndef PDSERVE_ENGINE_FINGERPRINT_H_
#define PDSERVE_ENGINE_FINGERPRINT_H_

#include <cstddef>
#include <span>
#include <string_view>

#include "common/ids.h"
#include "engine/device.h"

namespace pdserve::engine {

/// `file`: the whole model file; `text`: what else decides over the results (architecture, layout,
/// numerics ...). Leaves are hashed on the team's threads.
Fingerprint ComputeFingerprint(std::span<const std::byte> file, std::string_view text, Team& team);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_FINGERPRINT_H_
