// What the kernel files know beyond ops.h: where things lie inside a packed tile, and the getters
// of the tables. A source compiled for one instruction set may use constants from here and call the
// functions, which are compiled elsewhere; it must not emit inline functions that others share.
//
// kU4, per 32 columns: 256 B of nibbles, 16 fp16 scales, 16 fp16 minima (320 B), one after another.
// kU8: per 32 columns 512 B of bytes, one after another; then per 32 columns 16 fp16 scales.
// Quantised bytes: four-column group g (0..7), row r, column c of the group is byte 64 g + 4 r + c;
// kU4 keeps groups 2 j (low nibble) and 2 j + 1 (high nibble) in the same 64 bytes.
// kFp32: per column 16 values, one for each row. kBf16: per two columns the same, of pairs, the
// first column's below; an odd last column is followed by zeros.
#ifndef PDSERVE_ENGINE_OPS_LAYOUT_H_
#define PDSERVE_ENGINE_OPS_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "engine/ops.h"

namespace pdserve::engine {

inline constexpr int32_t kGroupCols = 4;
inline constexpr int32_t kGroups = kBlockCols / kGroupCols;
inline constexpr int32_t kU4Quants = kTileRows * kBlockCols / 2;
inline constexpr int32_t kU8Quants = kTileRows * kBlockCols;
inline constexpr int32_t kScaleBytes = kTileRows * 2;
inline constexpr int32_t kU4Block = kU4Quants + 2 * kScaleBytes;
/// kU8 keeps no minimum: Q8_0 is stored as w + 128.
inline constexpr float kU8Zero = -128.0f;

/// A fine block's rest counts in steps of 2^-kRestBits of its scale.
inline constexpr int kRestBits = 8;
inline constexpr float kRestUnit = 1.0f / (1 << kRestBits);

/// Where a value of a kBf16 tile lies.
constexpr size_t Bf16Offset(int32_t row, int32_t col) {
  return (size_t(col / 2) * kTileRows + row) * 4 + col % 2 * 2;
}

/// Floats of a head, padded to whole lanes of 16.
constexpr int32_t PaddedDim(int32_t head_dim) { return (head_dim + 15) / 16 * 16; }

/// AttentionArgs with the cache's arithmetic done.
struct AttentionShape {
  size_t k_offset;  // of this layer and head, in a cache block
  size_t v_offset;
  int32_t block_tokens;
  int32_t head_dim;
  bool bf16;
};
AttentionShape ShapeOf(const AttentionArgs& args);

struct TileSource {
  const std::byte* data;
  size_t tile_bytes;
  int32_t rows;
  int32_t cols;
};
TileSource SourceOf(const PackedMatrix& w);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_OPS_LAYOUT_H_
