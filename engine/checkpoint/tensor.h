// One weight tensor as a model file holds it, whatever the file's format. Plain values; the bytes
// are a view into the mapped file, which must outlive it.
#ifndef PDSERVE_ENGINE_CHECKPOINT_TENSOR_H_
#define PDSERVE_ENGINE_CHECKPOINT_TENSOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/gguf_blocks.h"

namespace pdserve::engine {

struct Tensor {
  std::string name;  // in the file
  const TensorType* type = nullptr;
  uint32_t num_dims = 0;
  // dims[0]: length of a row; none is 0. Of more than four, the last holds all that are left.
  std::array<uint64_t, 4> dims = {1, 1, 1, 1};
  std::span<const std::byte> bytes;  // exactly the tensor's; of any alignment

  uint64_t cols() const { return dims[0]; }
  uint64_t rows() const { return dims[1] * dims[2] * dims[3]; }
};

/// A name from a file, as it may stand in an error message: short and printable.
std::string Printable(std::string_view name);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_CHECKPOINT_TENSOR_H_
