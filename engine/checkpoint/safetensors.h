// Safetensors files as a pure function of bytes: tensors as views into them. The header is read
// piece by piece, without a tree of it, and no deeper than the format goes; every length, shape,
// product and range is checked against the bytes that are there. What Parse lets through: names
// are unique, each tensor's bytes lie whole inside the file and are not shared with another.
//
//   u64 length | header: JSON, `length` bytes | data, offsets counted from here
//   header: {"__metadata__": {text: text ..}, name: {"dtype", "shape", "data_offsets"} ..}
#ifndef PDSERVE_ENGINE_CHECKPOINT_SAFETENSORS_H_
#define PDSERVE_ENGINE_CHECKPOINT_SAFETENSORS_H_

#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/tensor.h"

namespace pdserve::engine {

/// In the order of the header. InvalidArgument says what is wrong, and with which tensor.
absl::StatusOr<std::vector<Tensor>> ParseSafetensors(std::span<const std::byte> bytes);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_CHECKPOINT_SAFETENSORS_H_
