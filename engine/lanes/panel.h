// The product kernel over 16 float lanes (one tile's rows), written once for every instruction set;
// see rows.h for what L is. A few activation rows, "a panel", are copied side by side and then
// meet one tile after the other: the sums of a panel stay in registers, weights are unpacked once
// for all its rows. Every sum runs over the columns in order, one fused multiply-add after the
// other, whatever the panel's size.
#ifndef PDSERVE_ENGINE_LANES_PANEL_H_
#define PDSERVE_ENGINE_LANES_PANEL_H_

#include <cstddef>
#include <cstdint>

#include "engine/ops.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

inline constexpr int32_t kPanelBlocks = 64;  // 2,048 quantised columns at once
inline constexpr int32_t kPanelCols = 256;   // float columns at once
inline constexpr int32_t kTilesAtOnce = 32;
inline constexpr int32_t kAhead = 8192;             // how far ahead of the weights in use to fetch
inline constexpr size_t kTileSetBytes = 256 << 10;  // weights that stay in L2 for all panels

/// Columns [first, first + count) of tiles [first_tile, last_tile) for the panel's rows.
struct PanelJob {
  TileSource w;
  TileRange tiles;
  int32_t first_col;
  int32_t cols;
  bool first;  // sums start at zero
};

template <class L>
struct PanelScratch {
  alignas(64) std::byte panel[kPanelBlocks * L::kPanelRows * (kBlockCols + 8)];
  alignas(64) float weights[kPanelCols * kTileRows];
  alignas(64) float sums[kTilesAtOnce * L::kPanelRows * kTileRows];  // [tile][row][n]
};

/// 8-bit activations with a quantised matrix. Panel: for each block [rows][32] q, then [rows]
/// scales, then [rows] sums.
template <class L, Packing packing>
struct QuantisedProduct {
  using F = typename L::F;
  static constexpr int32_t kChunkCols = kPanelBlocks * kBlockCols;

  static void Gather(const Activations& x, int32_t row, int32_t rows, const PanelJob& job,
                     std::byte* panel) {
    const int32_t all_blocks = x.cols / kBlockCols;
    const int32_t first = job.first_col / kBlockCols;
    for (int32_t block = first; block < first + job.cols / kBlockCols; ++block) {
      float* scales = reinterpret_cast<float*>(panel + rows * kBlockCols);
      for (int32_t m = 0; m < rows; ++m) {
        __builtin_memcpy(panel + m * kBlockCols,
                         x.q + size_t(row + m) * x.cols + size_t(block) * kBlockCols, kBlockCols);
        scales[m] = x.scale[size_t(row + m) * all_blocks + block];
        scales[rows + m] = x.sum[size_t(row + m) * all_blocks + block];
      }
      panel += rows * (kBlockCols + 8);
    }
  }

  template <int M>
  static void Run(const PanelJob& job, PanelScratch<L>& scratch) {
    float* sums = scratch.sums;
    for (int32_t tile = job.tiles.first; tile < job.tiles.last; ++tile) {
      AddTile<M>(job, job.w.data + size_t(tile) * job.w.tile_bytes, scratch.panel, sums);
      sums += M * kTileRows;
    }
  }

  template <int M>
  static void AddTile(const PanelJob& job, const std::byte* tile, const std::byte* panel,
                      float* sums) {
    const int32_t first = job.first_col / kBlockCols;
    const int32_t blocks = job.cols / kBlockCols;
    const std::byte* quants = tile + size_t(first) * kQuantStride;
    const std::byte* scales =
        packing == Packing::kU4
            ? quants + kU4Quants
            : tile + size_t(job.w.cols / kBlockCols) * kU8Quants + size_t(first) * kScaleBytes;
    F total[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      total[m] = job.first ? L::Set(0.0f) : L::Load(sums + m * kTileRows);
    }
    for (int32_t block = 0; block < blocks; ++block) {
      AddBlock<M>(quants, scales, panel, total);
      quants += kQuantStride;
      scales += kScaleStride;
      panel += M * (kBlockCols + 8);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) L::Store(sums + m * kTileRows, total[m]);
  }

  template <int M>
  [[gnu::always_inline]] static void AddBlock(const std::byte* quants, const std::byte* scales,
                                              const std::byte* panel, F (&total)[M]) {
    const F scale = L::LoadHalf(scales);
    const F minimum = packing == Packing::kU4 ? L::LoadHalf(scales + kScaleBytes)
                                              : L::Mul(L::Set(kU8Zero), scale);
    const typename L::Weights w = packing == Packing::kU4 ? L::LoadU4(quants) : L::LoadU8(quants);
    L::template Prefetch<packing == Packing::kU4 ? kU4Block : kU8Quants>(quants + kAhead);
    const float* row_scale = reinterpret_cast<const float*>(panel + M * kBlockCols);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const F dot = packing == Packing::kU4 ? L::DotU4(w, panel + m * kBlockCols)
                                            : L::DotU8(w, panel + m * kBlockCols);
      total[m] = L::Fma(dot, L::Mul(scale, L::Set(row_scale[m])), total[m]);
      total[m] = L::Fma(minimum, L::Set(row_scale[M + m]), total[m]);
    }
  }

  static constexpr int32_t kQuantStride = packing == Packing::kU4 ? kU4Block : kU8Quants;
  static constexpr int32_t kScaleStride = packing == Packing::kU4 ? kU4Block : kScaleBytes;
};

/// Float activations with any matrix. Panel: [column][rows].
template <class L, Packing packing>
struct FloatProduct {
  using F = typename L::F;
  static constexpr int32_t kChunkCols = kPanelCols;

  static void Gather(const Activations& x, int32_t row, int32_t rows, const PanelJob& job,
                     std::byte* panel) {
    float* to = reinterpret_cast<float*>(panel);
    for (int32_t m = 0; m < rows; ++m) {
      const float* from = x.values + size_t(row + m) * x.cols + job.first_col;
      for (int32_t k = 0; k < job.cols; ++k) to[k * rows + m] = from[k];
    }
  }

  template <int M>
  static void Run(const PanelJob& job, PanelScratch<L>& scratch) {
    float* sums = scratch.sums;
    const float* panel = reinterpret_cast<const float*>(scratch.panel);
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
      const std::byte* from = tile + size_t(job.first_col) * kTileRows * 2;
      for (int32_t k = 0; k < job.cols; ++k) {
        L::Store(room + k * kTileRows, L::LoadBf16(from + k * kTileRows * 2));
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

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_PANEL_H_
