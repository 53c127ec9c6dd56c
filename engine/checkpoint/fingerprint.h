// The identity of what a node computes: nodes with unequal fingerprints never pair.
//   SHA-256( SHA-256(text, sizes of the files) | SHA-256 of each 4 MiB leaf of each, in order )
#ifndef PDSERVE_ENGINE_CHECKPOINT_FINGERPRINT_H_
#define PDSERVE_ENGINE_CHECKPOINT_FINGERPRINT_H_

#include <cstddef>
#include <span>
#include <string>

#include "common/ids.h"
#include "engine/device.h"

namespace pdserve::engine {

/// `files`: all model files, whole; `text`: what else decides over the results (architecture,
/// layout, numerics ...). Leaves are hashed on the team's threads.
Fingerprint ComputeFingerprint(std::span<const std::span<const std::byte>> files,
                               const std::string& text, Team& team);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_CHECKPOINT_FINGERPRINT_H_
