// How a product is cut into panels of rows, sets of tiles and chunks of columns; panel.h does
// each piece. See rows.h for what L is.
#ifndef PDSERVE_ENGINE_LANES_PRODUCT_H_
#define PDSERVE_ENGINE_LANES_PRODUCT_H_

#include <cstddef>
#include <cstdint>

#include "engine/lanes/float_product.h"
#include "engine/lanes/panel.h"
#include "engine/lanes/quantised_product.h"
#include "engine/ops.h"

namespace pdserve::engine {

template <class L>
struct Products {
  using F = typename L::F;

  static void Matmul(const PackedMatrix& w, const Activations& x, TileRange tiles, ProductOut out) {
    const bool quantised = x.quantised.q != nullptr;
    switch (w.packing) {
      case Packing::kU4:
        return quantised ? Multiply<QuantisedProduct<L, Packing::kU4>>(w, x, tiles, out)
                         : Multiply<FloatProduct<L, Packing::kU4>>(w, x, tiles, out);
      case Packing::kU8:
        return quantised ? Multiply<QuantisedProduct<L, Packing::kU8>>(w, x, tiles, out)
                         : Multiply<FloatProduct<L, Packing::kU8>>(w, x, tiles, out);
      case Packing::kBf16:
        return x.exact ? Multiply<FloatProduct<L, Packing::kBf16>>(w, x, tiles, out)
                       : Multiply<PairProduct<L>>(w, x, tiles, out);
      case Packing::kFp32:
        return Multiply<FloatProduct<L, Packing::kFp32>>(w, x, tiles, out);
    }
  }

  /// A set of tiles stays in the second-level cache while all panels of rows pass by.
  template <class Product>
  static void Multiply(const PackedMatrix& w, const Activations& x, TileRange tiles,
                       ProductOut out) {
    const TileSource source = SourceOf(w);
    int32_t set = static_cast<int32_t>(kTileSetBytes / (source.tile_bytes + 1));
    set = set < 1 ? 1 : set > kTilesAtOnce ? kTilesAtOnce : set;
    PanelScratch<L> scratch;
    for (int32_t tile = tiles.first; tile < tiles.last; tile += set) {
      const int32_t last = tile + set < tiles.last ? tile + set : tiles.last;
      const PanelJob job{source, {tile, last}, 0, 0, true};
      for (int32_t row = 0; row < x.rows; row += L::kRowTile) {
        const int32_t end = row + L::kRowTile < x.rows ? row + L::kRowTile : x.rows;
        MultiplyPanel<Product>(job, x, {row, end}, scratch);
        ProductOut target = out;
        target.values += size_t(row) * out.stride;
        Write(job, end - row, scratch.sums, target);
      }
    }
  }

  struct RowRange {
    int32_t first;
    int32_t last;
  };

  template <class Product>
  static void MultiplyPanel(PanelJob job, const Activations& x, RowRange rows,
                            PanelScratch<L>& scratch) {
    const int32_t count = rows.last - rows.first;
    for (int32_t col = 0; col < job.w.cols; col += Product::kChunkCols) {
      const int32_t left = job.w.cols - col;
      job.first_col = col;
      job.cols = left < Product::kChunkCols ? left : Product::kChunkCols;
      job.first = col == 0;
      Product::Prepare(x, rows.first, count, job, scratch);
      RunPanel<Product, L::kRowTile>(count, job, scratch);
    }
  }

  template <class Product, int M>
  static void RunPanel(int32_t rows, const PanelJob& job, PanelScratch<L>& scratch) {
    if (rows == M) return Product::template Run<M>(job, scratch);
    if constexpr (M > 1) RunPanel<Product, M - 1>(rows, job, scratch);
  }

  static void Write(const PanelJob& job, int32_t rows, const float* sums, ProductOut out) {
    for (int32_t tile = job.tiles.first; tile < job.tiles.last; ++tile) {
      const int32_t first = tile * kTileRows;
      const int32_t left = job.w.rows - first;
      for (int32_t m = 0; m < rows; ++m, sums += kTileRows) {
        float* target = out.values + size_t(m) * out.stride + first;
        F sum = L::Load(sums);
        if (out.add) sum = L::Add(L::LoadPart(target, left), sum);
        L::StorePart(target, left, sum);
      }
    }
  }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_PRODUCT_H_
