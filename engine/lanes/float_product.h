// Panels of float activations, or of pairs of bf16, meet tiles of weights; see panel.h, and rows.h
// for L.
#ifndef PDSERVE_ENGINE_LANES_FLOAT_PRODUCT_H_
#define PDSERVE_ENGINE_LANES_FLOAT_PRODUCT_H_

#include <cstddef>
#include <cstdint>

#include "engine/lanes/panel.h"
#include "engine/lanes/rows.h"
#include "engine/ops.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

/// Float activations with any matrix. Panel: [column][rows].
template <class L, Packing packing>
struct FloatProduct {
  using F = typename L::F;
  static constexpr int32_t kChunkCols = kPanelCols;

  static void Prepare(const Activations& x, int32_t row, int32_t rows, const PanelJob& job,
                      PanelScratch<L>& scratch) {
    float* to = scratch.panel;
    for (int32_t m = 0; m < rows; ++m) {
      const float* from = x.values + size_t(row + m) * x.cols + job.first_col;
      for (int32_t k = 0; k < job.cols; ++k) to[k * rows + m] = from[k];
    }
  }

  template <int M>
  static void Run(const PanelJob& job, PanelScratch<L>& scratch) {
    float* sums = scratch.sums;
    const float* panel = scratch.panel;
    for (int32_t tile = job.tiles.first; tile < job.tiles.last; ++tile) {
      const std::byte* data = job.w.data + size_t(tile) * job.w.tile_bytes;
      const float* weights = Unpack(job, data, scratch.weights);
      F total[M];
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        total[m] = job.first ? L::Set(0.0f) : L::Load(sums + m * kTileRows);
      }
      for (int32_t k = 0; k < job.cols; ++k) {
        const F w = L::Load(weights + k * kTileRows);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) total[m] = L::Fma(w, L::Set(panel[k * M + m]), total[m]);
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) L::Store(sums + m * kTileRows, total[m]);
      sums += M * kTileRows;
    }
  }

  /// The job's columns as floats, [column][kTileRows], in `room` or where they lie.
  static const float* Unpack(const PanelJob& job, const std::byte* tile, float* room) {
    if constexpr (packing == Packing::kFp32) {
      return reinterpret_cast<const float*>(tile) + size_t(job.first_col) * kTileRows;
    } else if constexpr (packing == Packing::kBf16) {
      const float* from = reinterpret_cast<const float*>(tile + Bf16Offset(0, job.first_col));
      for (int32_t k = 0; k < job.cols; ++k) {
        const F pairs = L::Load(from + k / 2 * kTileRows);
        L::Store(room + k * kTileRows, k % 2 == 0 ? L::LowHalves(pairs) : L::HighHalves(pairs));
      }
    } else {
      const int32_t all_blocks = job.w.cols / kBlockCols;
      for (int32_t k = 0; k < job.cols; k += kBlockCols) {
        UnpackBlock(tile, all_blocks, (job.first_col + k) / kBlockCols, room + k * kTileRows);
      }
    }
    return room;
  }

  static void UnpackBlock(const std::byte* tile, int32_t all_blocks, int32_t block, float* room) {
    constexpr bool kU4 = packing == Packing::kU4;
    const std::byte* quants = tile + size_t(block) * (kU4 ? kU4Block : kU8Quants);
    const std::byte* scales =
        kU4 ? quants + kU4Quants
            : tile + size_t(all_blocks) * kU8Quants + size_t(block) * kScaleBytes;
    const F scale = L::LoadHalf(scales);
    const F minimum = kU4 ? L::LoadHalf(scales + kScaleBytes) : L::Mul(L::Set(kU8Zero), scale);
    const typename L::Weights w = kU4 ? L::LoadU4(quants) : L::LoadU8(quants);
#pragma GCC unroll 32
    for (int k = 0; k < kBlockCols; ++k) {
      L::Store(room + k * kTileRows, L::Fma(scale, L::Column(w, k), minimum));
    }
  }
};

/// Activations rounded to bf16 with bf16 weights. Panel: [rows][kPairStride] pairs of columns.
template <class L>
struct PairProduct {
  using F = typename L::F;
  static constexpr int32_t kChunkCols = kPanelCols;
  static constexpr int32_t kPairStride = kPanelCols / 2 + kLanes;  // rows in different cache sets

  static void Prepare(const Activations& x, int32_t row, int32_t rows, const PanelJob& job,
                      PanelScratch<L>& scratch) {
    float* to = scratch.panel;
    for (int32_t m = 0; m < rows; ++m, to += kPairStride) {
      const float* from = x.values + size_t(row + m) * x.cols + job.first_col;
      for (int32_t k = 0; k < job.cols; k += 2 * kLanes) {
        const int32_t left = job.cols - k;
        const F low = L::LoadPart(from + k, left);
        const F high = left > kLanes ? L::LoadPart(from + k + kLanes, left - kLanes) : L::Set(0.0f);
        L::Store(to + k / 2, L::RoundPairs(low, high));
      }
    }
  }

  template <int M>
  static void Run(const PanelJob& job, PanelScratch<L>& scratch) {
    float* sums = scratch.sums;
    const float* panel = scratch.panel;
    const int32_t pairs = (job.cols + 1) / 2;
    for (int32_t tile = job.tiles.first; tile < job.tiles.last; ++tile) {
      const std::byte* data = job.w.data + size_t(tile) * job.w.tile_bytes;
      const std::byte* weights = data + Bf16Offset(0, job.first_col);
      F total[M];
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) {
        total[m] = job.first ? L::Set(0.0f) : L::Load(sums + m * kTileRows);
      }
      for (int32_t k = 0; k < pairs; ++k, weights += kTileRows * 4) {
        const F w = L::Load(reinterpret_cast<const float*>(weights));
        L::template Prefetch<kTileRows * 4>(weights + kAhead);
#pragma GCC unroll 16
        for (int m = 0; m < M; ++m) {
          total[m] = L::DotPairs(w, L::Set(panel[m * kPairStride + k]), total[m]);
        }
      }
#pragma GCC unroll 16
      for (int m = 0; m < M; ++m) L::Store(sums + m * kTileRows, total[m]);
      sums += M * kTileRows;
    }
  }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_FLOAT_PRODUCT_H_
