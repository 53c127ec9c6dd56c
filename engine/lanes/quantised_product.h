// Panels of 8-bit activations meet tiles of quantised weights; see panel.h, and rows.h for L.
#ifndef PDSERVE_ENGINE_LANES_QUANTISED_PRODUCT_H_
#define PDSERVE_ENGINE_LANES_QUANTISED_PRODUCT_H_

#include <cstddef>
#include <cstdint>

#include "engine/lanes/panel.h"
#include "engine/lanes/rows.h"
#include "engine/ops.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

/// 8-bit activations with a quantised matrix. Panel: for each block [rows][32] q, then [rows]
/// scales, then [rows] sums. The rests of fine blocks, few among many, are added one by one behind
/// the chunk's columns.
template <class L, Packing packing>
struct QuantisedProduct {
  using F = typename L::F;
  static constexpr int32_t kChunkCols = kPanelBlocks * kBlockCols;

  static void Gather(const Activations& x, int32_t row, int32_t rows, const PanelJob& job,
                     PanelScratch<L>& scratch) {
    const int32_t all_blocks = x.cols / kBlockCols;
    const int32_t first = job.first_col / kBlockCols;
    std::byte* panel = scratch.panel;
    scratch.num_rests = 0;
    for (int32_t block = 0; block < job.cols / kBlockCols; ++block) {
      float* scales = reinterpret_cast<float*>(panel + rows * kBlockCols);
      for (int32_t m = 0; m < rows; ++m) {
        const size_t at = size_t(row + m) * all_blocks + first + block;
        __builtin_memcpy(panel + m * kBlockCols, x.q + at * kBlockCols, kBlockCols);
        scales[m] = x.scale[at];
        scales[rows + m] = x.sum[at];
        if (x.fine[at] == 0) continue;
        Rest& rest = scratch.rests[scratch.num_rests++];
        rest.block = block;
        rest.row = m;
        rest.scale = x.scale[at] * kRestUnit;
        __builtin_memcpy(rest.q, x.rest + at * kBlockCols, kBlockCols);
      }
      panel += rows * (kBlockCols + 8);
    }
  }

  template <int M>
  static void Run(const PanelJob& job, PanelScratch<L>& scratch) {
    float* sums = scratch.sums;
    for (int32_t tile = job.tiles.first; tile < job.tiles.last; ++tile) {
      const TileColumns columns = ColumnsOf(job, job.w.data + size_t(tile) * job.w.tile_bytes);
      AddTile<M>(job, columns, scratch.panel, sums);
      for (int32_t i = 0; i < scratch.num_rests; ++i) AddRest(columns, scratch.rests[i], sums);
      sums += M * kTileRows;
    }
  }

  /// The job's columns of a tile.
  struct TileColumns {
    const std::byte* quants;
    const std::byte* scales;
  };
  static TileColumns ColumnsOf(const PanelJob& job, const std::byte* tile) {
    const int32_t first = job.first_col / kBlockCols;
    const std::byte* quants = tile + size_t(first) * kQuantStride;
    if (packing == Packing::kU4) return {quants, quants + kU4Quants};
    const size_t all_blocks = job.w.cols / kBlockCols;
    return {quants, tile + all_blocks * kU8Quants + size_t(first) * kScaleBytes};
  }

  template <int M>
  static void AddTile(const PanelJob& job, TileColumns columns, const std::byte* panel,
                      float* sums) {
    F total[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      total[m] = job.first ? L::Set(0.0f) : L::Load(sums + m * kTileRows);
    }
    for (int32_t block = 0; block < job.cols / kBlockCols; ++block) {
      AddBlock<M>(columns, panel, total);
      columns.quants += kQuantStride;
      columns.scales += kScaleStride;
      panel += M * (kBlockCols + 8);
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) L::Store(sums + m * kTileRows, total[m]);
  }

  template <int M>
  [[gnu::always_inline]] static void AddBlock(TileColumns at, const std::byte* panel,
                                              F (&total)[M]) {
    const F scale = L::LoadHalf(at.scales);
    const F minimum = packing == Packing::kU4 ? L::LoadHalf(at.scales + kScaleBytes)
                                              : L::Mul(L::Set(kU8Zero), scale);
    const typename L::Weights w = LoadWeights(at.quants);
    L::template Prefetch<packing == Packing::kU4 ? kU4Block : kU8Quants>(at.quants + kAhead);
    const float* row_scale = reinterpret_cast<const float*>(panel + M * kBlockCols);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const F dot = L::ToFloat(Dot(w, panel + m * kBlockCols));
      total[m] = L::Fma(dot, L::Mul(scale, L::Set(row_scale[m])), total[m]);
      total[m] = L::Fma(minimum, L::Set(row_scale[M + m]), total[m]);
    }
  }

  static void AddRest(TileColumns at, const Rest& rest, float* sums) {
    const F scale = L::LoadHalf(at.scales + size_t(rest.block) * kScaleStride);
    const typename L::Weights w = LoadWeights(at.quants + size_t(rest.block) * kQuantStride);
    const F dot = L::ToFloat(Dot(w, rest.q));
    float* sum = sums + rest.row * kTileRows;
    L::Store(sum, L::Fma(dot, L::Mul(scale, L::Set(rest.scale)), L::Load(sum)));
  }

  static typename L::Weights LoadWeights(const std::byte* quants) {
    return packing == Packing::kU4 ? L::LoadU4(quants) : L::LoadU8(quants);
  }
  static typename L::I Dot(const typename L::Weights& w, const std::byte* q) {
    return packing == Packing::kU4 ? L::DotU4(w, q) : L::DotU8(w, q);
  }

  static constexpr int32_t kQuantStride = packing == Packing::kU4 ? kU4Block : kU8Quants;
  static constexpr int32_t kScaleStride = packing == Packing::kU4 ? kU4Block : kScaleBytes;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_QUANTISED_PRODUCT_H_
