// What the tests of the kernels share: random matrices and activations that own their memory.
#ifndef PDSERVE_TESTS_ENGINE_OPS_TESTING_H_
#define PDSERVE_TESTS_ENGINE_OPS_TESTING_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/half.h"
#include "engine/ops.h"

namespace pdserve::engine {

inline std::mt19937 SeededRandom(uint32_t seed) {
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  return std::mt19937(seed);
}

/// The tables that run here; "portable" is the first.
inline std::vector<const Ops*> RunnableOps() {
  std::vector<const Ops*> found;
  for (const OpsVariant& variant : AllOps()) {
    if (variant.ops != nullptr) found.push_back(variant.ops);
  }
  return found;
}

inline std::vector<float> RandomFloats(std::mt19937& random, size_t count, float deviation = 1) {
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

/// Equal bit by bit, so that NaN equals itself and zeros have signs.
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// FNV-1a over the bits of values, on top of what came before.
inline uint64_t Digest(const std::vector<float>& values, uint64_t before = 0xcbf29ce484222325) {
  for (const float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    before = (before ^ bits) * 0x100000001b3;
  }
  return before;
}

/// A packed random matrix and the plain values it stands for, [rows padded][cols].
struct TestMatrix {
  PackedMatrix packed;
  std::vector<float> plain;
  std::vector<std::byte> memory;

  TestMatrix(std::mt19937& random, Packing packing, int32_t rows, int32_t cols) {
    size_t room = PackedBytes(packing, rows, cols) + 64;
    memory.resize(room);
    void* at = memory.data();
    auto* data = static_cast<std::byte*>(std::align(64, room - 64, at, room));
    packed = {packing, rows, cols, data};
    plain.resize(size_t(packed.tiles()) * kTileRows * cols);
    for (int32_t tile = 0; tile < packed.tiles(); ++tile) FillTile(random, tile);
  }

 private:
  bool Real(int32_t tile, int32_t row) const { return tile * kTileRows + row < packed.rows; }

  void FillTile(std::mt19937& random, int32_t tile) {
    std::byte* to = packed.data + tile * PackedTileBytes(packed.packing, packed.cols);
    float* values = plain.data() + size_t(tile) * kTileRows * packed.cols;
    if (packed.packing == Packing::kU4 || packed.packing == Packing::kU8) {
      FillQuantisedTile(random, tile, to, values);
      return;
    }
    for (int32_t at = 0; at < kTileRows * packed.cols; ++at) {
      const float value = RandomFloats(random, 1)[0];
      values[at] = packed.packing == Packing::kBf16 ? Bf16ToFloat(FloatToBf16(value)) : value;
      if (!Real(tile, at / packed.cols)) values[at] = 0;
    }
    PackFloatTile(packed.packing, packed.cols, values, to);
  }

  void FillQuantisedTile(std::mt19937& random, int32_t tile, std::byte* to, float* values) {
    const bool u4 = packed.packing == Packing::kU4;
    const int32_t blocks = packed.cols / kBlockCols;
    std::vector<uint8_t> q(size_t(kTileRows) * packed.cols);
    std::vector<float> scale(size_t(kTileRows) * blocks);
    std::vector<float> minimum(scale.size());
    for (size_t at = 0; at < scale.size(); ++at) {
      if (!Real(tile, static_cast<int32_t>(at) / blocks)) continue;
      scale[at] = HalfToFloat(FloatToHalf(RandomFloats(random, 1, 0.01f)[0]));
      minimum[at] = u4 ? HalfToFloat(FloatToHalf(RandomFloats(random, 1, 0.1f)[0])) : 0;
    }
    for (size_t at = 0; at < q.size(); ++at) {
      const size_t block = at / packed.cols * blocks + at % packed.cols / kBlockCols;
      if (Real(tile, static_cast<int32_t>(at) / packed.cols)) q[at] = random() % (u4 ? 16 : 256);
      values[at] = u4 ? scale[block] * q[at] + minimum[block] : scale[block] * (q[at] - 128);
    }
    PackQuantisedTile(packed.packing, packed.cols, {q.data(), scale.data(), minimum.data()}, to);
  }
};

/// Activations of some rows with their own memory, 8-bit ones made by `ops`.
struct TestActivations {
  int32_t rows;
  int32_t cols;
  std::vector<float> values;
  std::vector<int8_t> q;
  std::vector<int8_t> rest;
  std::vector<uint8_t> fine;
  std::vector<float> scale;
  std::vector<float> sum;

  TestActivations(const Ops& ops, std::vector<float> row_values, int32_t row_cols,
                  int32_t fine_below = 0)
      : rows(static_cast<int32_t>(row_values.size()) / row_cols),
        cols(row_cols),
        values(std::move(row_values)) {
    if (cols % kBlockCols != 0) return;
    const size_t panels = (rows + kPanelRows - 1) / kPanelRows;
    const size_t blocks = panels * kPanelRows * (cols / kBlockCols);
    q.resize(blocks * kBlockCols);
    rest.resize(blocks * kBlockCols);
    fine.resize(blocks);
    scale.resize(blocks);
    sum.resize(blocks);
    const QuantisedOut all{q.data(), rest.data(), fine.data(), scale.data(), sum.data()};
    for (int32_t row = 0; row < rows; ++row) {
      ops.quantise(&values[size_t(row) * cols], cols, fine_below, all.From(cols, row, 0));
    }
  }

  /// The block that holds a value.
  QuantisedRows BlockOf(int32_t row, int32_t col) const {
    const QuantisedRows all{q.data(), rest.data(), fine.data(), scale.data(), sum.data()};
    return all.From(cols, row, col);
  }
  double Quantised(int32_t row, int32_t col) const {
    const QuantisedRows block = BlockOf(row, col);
    const double more = *block.fine != 0 ? block.rest[col % kBlockCols] / 256.0 : 0;
    return (block.q[col % kBlockCols] + more) * *block.scale;
  }

  /// All rows; in 8 bits, or else exact.
  Activations View(bool int8) const {
    Activations view{rows, cols, values.data(), !int8, {}};
    if (int8) view.quantised = {q.data(), rest.data(), fine.data(), scale.data(), sum.data()};
    return view;
  }
  /// Rows [first, first + count) as activations of their own.
  TestActivations Part(const Ops& ops, int32_t first, int32_t count, int32_t fine_below) const {
    const auto begin = values.begin() + size_t(first) * cols;
    return TestActivations(ops, {begin, begin + size_t(count) * cols}, cols, fine_below);
  }
};

inline std::vector<float> Multiply(const Ops& ops, const PackedMatrix& w, const Activations& x) {
  std::vector<float> out(size_t(x.rows) * w.rows, -7.0f);
  ops.matmul(w, x, {0, w.tiles()}, {out.data(), w.rows, false});
  return out;
}

}  // namespace pdserve::engine

#endif  // PDSERVE_TESTS_ENGINE_OPS_TESTING_H_
