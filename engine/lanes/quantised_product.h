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

/// 8-bit activations with a quantised matrix. The rests of fine blocks, few among many, are added
/// one by one behind the chunk's columns.
template <class L, Packing packing>
struct QuantisedProduct {
  using F = typename L::F;
  static constexpr int32_t kChunkCols = kPanelBlocks * kBlockCols;

  static void Prepare(const Activations& x, int32_t row, int32_t rows, const PanelJob& job,
                      PanelScratch<L>& scratch) {
    scratch.rows = x.quantised.From(x.cols, row, job.first_col);
    scratch.num_rests = 0;
    const uint8_t* fine = scratch.rows.fine;
    for (int32_t block = 0; block < job.cols / kBlockCols; ++block, fine += kPanelRows) {
      for (int32_t m = 0; m < rows; ++m) {
        if (fine[m] != 0) scratch.rests[scratch.num_rests++] = {block, m};
      }
    }
  }

  template <int M>
  static void Run(const PanelJob& job, PanelScratch<L>& scratch) {
    float* sums = scratch.sums;
    for (int32_t tile = job.tiles.first; tile < job.tiles.last; ++tile) {
      const TileColumns columns = ColumnsOf(job, job.w.data + size_t(tile) * job.w.tile_bytes);
      AddTile<M>(job, columns, scratch.rows, sums);
      for (int32_t i = 0; i < scratch.num_rests; ++i) {
        AddRest(columns, scratch.rows, scratch.rests[i], sums);
      }
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
  static void AddTile(const PanelJob& job, TileColumns columns, QuantisedRows rows, float* sums) {
    F total[M];
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      total[m] = job.first ? L::Set(0.0f) : L::Load(sums + m * kTileRows);
    }
    for (int32_t block = 0; block < job.cols / kBlockCols; ++block) {
      AddBlock<M>(columns, rows, total);
      columns.quants += kQuantStride;
      columns.scales += kScaleStride;
      rows.q += kPanelRows * kBlockCols;
      rows.scale += kPanelRows;
      rows.sum += kPanelRows;
    }
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) L::Store(sums + m * kTileRows, total[m]);
  }

  template <int M>
  [[gnu::always_inline]] static void AddBlock(TileColumns at, const QuantisedRows& rows,
                                              F (&total)[M]) {
    const F scale = L::LoadHalf(at.scales);
    const F minimum = packing == Packing::kU4 ? L::LoadHalf(at.scales + kScaleBytes)
                                              : L::Mul(L::Set(kU8Zero), scale);
    const typename L::Weights w = LoadWeights(at.quants);
    L::template Prefetch<packing == Packing::kU4 ? kU4Block : kU8Quants>(at.quants + kAhead);
#pragma GCC unroll 16
    for (int m = 0; m < M; ++m) {
      const F dot = L::ToFloat(Dot(w, rows.q + m * kBlockCols));
      total[m] = L::Fma(dot, L::Mul(scale, L::Set(rows.scale[m])), total[m]);
      total[m] = L::Fma(minimum, L::Set(rows.sum[m]), total[m]);
    }
  }

  static void AddRest(TileColumns at, const QuantisedRows& rows, Rest rest, float* sums) {
    const F scale = L::LoadHalf(at.scales + size_t(rest.block) * kScaleStride);
    const typename L::Weights w = LoadWeights(at.quants + size_t(rest.block) * kQuantStride);
    const int32_t from = rest.block * kPanelRows + rest.row;
    const F dot = L::ToFloat(Dot(w, rows.rest + from * kBlockCols));
    const F unit = L::Set(rows.scale[from] * kRestUnit);
    float* sum = sums + rest.row * kTileRows;
    L::Store(sum, L::Fma(dot, L::Mul(scale, unit), L::Load(sum)));
  }

  static typename L::Weights LoadWeights(const std::byte* quants) {
    return packing == Packing::kU4 ? L::LoadU4(quants) : L::LoadU8(quants);
  }
  static typename L::I Dot(const typename L::Weights& w, const int8_t* q) {
    return packing == Packing::kU4 ? L::DotU4(w, q) : L::DotU8(w, q);
  }

  static constexpr int32_t kQuantStride = packing == Packing::kU4 ? kU4Block : kU8Quants;
  static constexpr int32_t kScaleStride = packing == Packing::kU4 ? kU4Block : kScaleBytes;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_QUANTISED_PRODUCT_H_
