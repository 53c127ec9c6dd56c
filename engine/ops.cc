#include "engine/ops.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/half.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

// One getter per word of the ops variants, defined in its file; null where it can't run here.
#define X(word) const Ops* word##_ops();
#include "engine/ops_list.inc"
#undef X

namespace {

size_t RoundUpTo64(size_t bytes) { return (bytes + 63) / 64 * 64; }

void StoreHalf(float value, std::byte* at) {
  const uint16_t bits = FloatToHalf(value);
  std::memcpy(at, &bits, sizeof(bits));
}

float LoadHalf(const std::byte* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return HalfToFloat(bits);
}

std::byte* Quants(Packing packing, int32_t block, std::byte* tile) {
  return tile + size_t(block) * (packing == Packing::kU4 ? kU4Block : kU8Quants);
}

std::byte* Scales(Packing packing, int32_t blocks, int32_t block, std::byte* tile) {
  if (packing == Packing::kU4) return Quants(packing, block, tile) + kU4Quants;
  return tile + size_t(blocks) * kU8Quants + size_t(block) * kScaleBytes;
}

/// The byte of (row, column in block), and for kU4 whether it is the high nibble.
struct Place {
  int32_t byte;
  bool high;
};
Place PlaceOf(Packing packing, int32_t row, int32_t column) {
  const int32_t group = column / kGroupCols;
  const int32_t in_group = row * kGroupCols + column % kGroupCols;
  if (packing == Packing::kU4) return {group / 2 * 64 + in_group, group % 2 == 1};
  return {group * 64 + in_group, false};
}

/// A row's part of a block; must agree with PlaceOf, and is quick, since a model's start waits for
/// it.
void PackRow(Packing packing, const uint8_t* q, int32_t row, std::byte* quants) {
  std::byte* to = quants + row * kGroupCols;
  if (packing == Packing::kU8) {
    for (int32_t group = 0; group < kGroups; ++group, q += kGroupCols, to += 64) {
      std::memcpy(to, q, kGroupCols);
    }
    return;
  }
  for (int32_t pair = 0; pair < kGroups / 2; ++pair, q += 2 * kGroupCols, to += 64) {
    for (int32_t c = 0; c < kGroupCols; ++c) to[c] = std::byte(q[c] | q[kGroupCols + c] << 4);
  }
}

int32_t QuantAt(Packing packing, const std::byte* quants, Place place) {
  const int32_t byte = std::to_integer<int32_t>(quants[place.byte]);
  if (packing == Packing::kU8) return byte;
  return place.high ? byte >> 4 : byte & 15;
}

void UnpackQuantisedRow(Packing packing, int32_t cols, std::byte* tile, int32_t row,
                        float* values) {
  const int32_t blocks = cols / kBlockCols;
  for (int32_t block = 0; block < blocks; ++block) {
    const std::byte* quants = Quants(packing, block, tile);
    const std::byte* scales = Scales(packing, blocks, block, tile);
    const float scale = LoadHalf(scales + 2 * row);
    const float minimum =
        packing == Packing::kU4 ? LoadHalf(scales + kScaleBytes + 2 * row) : kU8Zero * scale;
    for (int32_t k = 0; k < kBlockCols; ++k) {
      const int32_t q = QuantAt(packing, quants, PlaceOf(packing, row, k));
      values[block * kBlockCols + k] = scale * static_cast<float>(q) + minimum;
    }
  }
}

}  // namespace

size_t PackedTileBytes(Packing packing, int32_t cols) {
  const size_t blocks = size_t(cols) / kBlockCols;
  switch (packing) {
    case Packing::kU4:
      return blocks * kU4Block;
    case Packing::kU8:
      return RoundUpTo64(blocks * (kU8Quants + kScaleBytes));
    case Packing::kBf16:
      return size_t(cols + 1) / 2 * kTileRows * 4;
    case Packing::kFp32:
      break;
  }
  return size_t(cols) * kTileRows * 4;
}

size_t PackedBytes(Packing packing, int32_t rows, int32_t cols) {
  return size_t((rows + kTileRows - 1) / kTileRows) * PackedTileBytes(packing, cols);
}

void PackQuantisedTile(Packing packing, int32_t cols, const QuantisedTile& plain, std::byte* tile) {
  std::memset(tile, 0, PackedTileBytes(packing, cols));
  const int32_t blocks = cols / kBlockCols;
  for (int32_t block = 0; block < blocks; ++block) {
    std::byte* quants = Quants(packing, block, tile);
    std::byte* scales = Scales(packing, blocks, block, tile);
    for (int32_t row = 0; row < kTileRows; ++row) {
      const size_t at = size_t(row) * blocks + block;
      StoreHalf(plain.scale[at], scales + 2 * row);
      if (packing == Packing::kU4) StoreHalf(plain.minimum[at], scales + kScaleBytes + 2 * row);
      const uint8_t* q = plain.q + size_t(row) * cols + size_t(block) * kBlockCols;
      PackRow(packing, q, row, quants);
    }
  }
}

void PackFloatTile(Packing packing, int32_t cols, const float* values, std::byte* tile) {
  std::memset(tile, 0, PackedTileBytes(packing, cols));
  for (int32_t k = 0; k < cols; ++k) {
    for (int32_t row = 0; row < kTileRows; ++row) {
      const float value = values[size_t(row) * cols + k];
      if (packing == Packing::kFp32) {
        std::memcpy(tile + (size_t(k) * kTileRows + row) * 4, &value, 4);
      } else {
        const uint16_t bits = FloatToBf16(value);
        std::memcpy(tile + Bf16Offset(row, k), &bits, 2);
      }
    }
  }
}

void UnpackRow(const PackedMatrix& matrix, int32_t row, float* values) {
  std::byte* tile = matrix.data + row / kTileRows * PackedTileBytes(matrix.packing, matrix.cols);
  row %= kTileRows;
  if (matrix.packing == Packing::kU4 || matrix.packing == Packing::kU8) {
    return UnpackQuantisedRow(matrix.packing, matrix.cols, tile, row, values);
  }
  for (int32_t k = 0; k < matrix.cols; ++k) {
    if (matrix.packing == Packing::kFp32) {
      std::memcpy(values + k, tile + (size_t(k) * kTileRows + row) * 4, 4);
      continue;
    }
    uint16_t bits;
    std::memcpy(&bits, tile + Bf16Offset(row, k), sizeof(bits));
    values[k] = Bf16ToFloat(bits);
  }
}

AttentionShape ShapeOf(const AttentionArgs& args) {
  const CacheLayout& layout = *args.layout;
  return {layout.k_offset(args.layer, args.kv_head), layout.v_offset(args.layer, args.kv_head),
          layout.block_tokens, layout.head_dim, layout.dtype == KvDtype::kBf16};
}

TileSource SourceOf(const PackedMatrix& w) {
  return {w.data, PackedTileBytes(w.packing, w.cols), w.rows, w.cols};
}

std::vector<OpsVariant> AllOps() {
  return {
#define X(word) {#word, word##_ops()},
#include "engine/ops_list.inc"
#undef X
  };
}

absl::StatusOr<const Ops*> FindOps(std::string_view name) {
  const Ops* found = nullptr;
  std::string names;
  for (const OpsVariant& variant : AllOps()) {
    if (variant.ops == nullptr) continue;
    absl::StrAppend(&names, names.empty() ? "" : ", ",
                    absl::string_view(variant.name.data(), variant.name.size()));
    // The list goes from the slowest to the fastest.
    if (name == "auto" || name == variant.name) found = variant.ops;
  }
  if (found != nullptr) return found;
  return absl::NotFoundError(absl::StrCat("no kernels '",
                                          absl::string_view(name.data(), name.size()),
                                          "' on this machine; there are: ", names));
}

}  // namespace pdserve::engine
