// The tensor types of GGUF files: names and block sizes of all of them, and the values of those
// that are read. Bits are turned into what engine/ops.h packs: (q, scale, minimum) or floats.
// Pure functions, any thread.
#ifndef PDSERVE_ENGINE_GGUF_BLOCKS_H_
#define PDSERVE_ENGINE_GGUF_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/ops.h"

namespace pdserve::engine {

/// A tensor type: a row is whole blocks of `block_values` values in `block_bytes` bytes each.
struct TensorType {
  uint32_t id = 0;
  std::string_view name;
  uint32_t block_values = 1;
  uint32_t block_bytes = 1;
  /// How its weights are kept for the kernels; absent where the type is not read.
  std::optional<Packing> packing;
};

/// Null: no such type, or one that was removed from the format.
const TensorType* FindTensorType(uint32_t id);

/// A row as kU4 and kU8 hold it: value = scale * q + minimum.
struct QuantisedRow {
  uint8_t* q;      // [cols]
  float* scale;    // [cols / kBlockCols]
  float* minimum;  // [cols / kBlockCols]
};
/// One row of a type packed as kU4 or kU8.
void UnpackQuantisedRow(const TensorType& type, const std::byte* row, int32_t cols,
                        const QuantisedRow& out);
/// One row of a type packed as kBf16 or kFp32: values[cols].
void UnpackFloatRow(const TensorType& type, const std::byte* row, int32_t cols, float* values);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_GGUF_BLOCKS_H_
