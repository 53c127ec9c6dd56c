#include "engine/gguf_blocks.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "engine/half.h"

namespace pdserve::engine {
namespace {

enum : uint32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30 };

// Numbers that are missing here (4, 5, 31 to 33, 36 to 38) were removed from the format.
constexpr TensorType kTypes[] = {
    {kF32, "F32", 1, 4, Packing::kFp32},
    {kF16, "F16", 1, 2, Packing::kFp32},
    {kQ4_0, "Q4_0", 32, 18, Packing::kU4},
    {kQ4_1, "Q4_1", 32, 20, Packing::kU4},
    {6, "Q5_0", 32, 22, {}},
    {7, "Q5_1", 32, 24, {}},
    {kQ8_0, "Q8_0", 32, 34, Packing::kU8},
    {9, "Q8_1", 32, 36, {}},
    {10, "Q2_K", 256, 84, {}},
    {11, "Q3_K", 256, 110, {}},
    {12, "Q4_K", 256, 144, {}},
    {13, "Q5_K", 256, 176, {}},
    {14, "Q6_K", 256, 210, {}},
    {15, "Q8_K", 256, 292, {}},
    {16, "IQ2_XXS", 256, 66, {}},
    {17, "IQ2_XS", 256, 74, {}},
    {18, "IQ3_XXS", 256, 98, {}},
    {19, "IQ1_S", 256, 50, {}},
    {20, "IQ4_NL", 32, 18, {}},
    {21, "IQ3_S", 256, 110, {}},
    {22, "IQ2_S", 256, 82, {}},
    {23, "IQ4_XS", 256, 136, {}},
    {24, "I8", 1, 1, {}},
    {25, "I16", 1, 2, {}},
    {26, "I32", 1, 4, {}},
    {27, "I64", 1, 8, {}},
    {28, "F64", 1, 8, {}},
    {29, "IQ1_M", 256, 56, {}},
    {kBF16, "BF16", 1, 2, Packing::kBf16},
    {34, "TQ1_0", 256, 54, {}},
    {35, "TQ2_0", 256, 66, {}},
    {39, "MXFP4", 32, 17, {}},
    {40, "NVFP4", 64, 36, {}},
};

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

float HalfAt(const std::byte* at) { return HalfToFloat(Load<uint16_t>(at)); }

// 16 bytes: value i in the low half of byte i, value i + 16 in the high half.
void UnpackNibbles(const std::byte* nibbles, uint8_t* q) {
  for (int i = 0; i < 16; ++i) {
    const auto byte = std::to_integer<uint8_t>(nibbles[i]);
    q[i] = byte & 15;
    q[i + 16] = byte >> 4;
  }
}

}  // namespace

const TensorType* FindTensorType(uint32_t id) {
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [id](const TensorType& type) { return type.id == id; });
  return found == std::end(kTypes) ? nullptr : found;
}

void UnpackQuantisedRow(const TensorType& type, const std::byte* row, int32_t cols,
                        const QuantisedRow& out) {
  PD_CHECK(type.id == kQ4_0 || type.id == kQ4_1 || type.id == kQ8_0);
  for (int32_t block = 0; block < cols / kBlockCols; ++block) {
    const std::byte* at = row + size_t(block) * type.block_bytes;
    uint8_t* q = out.q + size_t(block) * kBlockCols;
    const float d = HalfAt(at);
    out.scale[block] = d;
    if (type.id == kQ4_0) {  // (q - 8) * d; the product is exact
      out.minimum[block] = -8.0f * d;
      UnpackNibbles(at + 2, q);
    } else if (type.id == kQ4_1) {  // q * d + m
      out.minimum[block] = HalfAt(at + 2);
      UnpackNibbles(at + 4, q);
    } else {  // signed bytes, moved up by 128
      out.minimum[block] = -128.0f * d;
      for (int i = 0; i < kBlockCols; ++i) {
        q[i] = std::to_integer<uint8_t>(at[2 + i]) ^ uint8_t { 0x80 };
      }
    }
  }
}

void UnpackFloatRow(const TensorType& type, const std::byte* row, int32_t cols, float* values) {
  PD_CHECK(type.id == kF32 || type.id == kF16 || type.id == kBF16);
  if (type.id == kF32) {
    std::memcpy(values, row, size_t(cols) * sizeof(float));
    return;
  }
  for (int32_t k = 0; k < cols; ++k) {
    const auto bits = Load<uint16_t>(row + size_t(k) * 2);
    values[k] = type.id == kF16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
  }
}

}  // namespace pdserve::engine
