// The product kernel over 16 float lanes (one tile's rows), written once for every instruction set;
// see rows.h for what L is. A few activation rows, "a panel", lie together and meet one tile after
// the other: the sums of a panel stay in registers, weights are unpacked once
// for all its rows. Every sum runs over the columns in order, one fused multiply-add after the
// other, whatever the panel's size.
#ifndef PDSERVE_ENGINE_LANES_PANEL_H_
#define PDSERVE_ENGINE_LANES_PANEL_H_

#include <cstddef>
#include <cstdint>

#include "engine/lanes/rows.h"
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

/// A fine block of one row.
struct Rest {
  int32_t block;  // of the chunk
  int32_t row;    // of the panel
};

template <class L>
struct PanelScratch {
  alignas(64) float panel[kPanelCols * L::kRowTile];  // float activations
  alignas(64) float weights[kPanelCols * kTileRows];
  alignas(64) float sums[kTilesAtOnce * L::kRowTile * kTileRows];  // [tile][row][n]
  QuantisedRows rows;                      // from the chunk's first block on
  Rest rests[kPanelBlocks * L::kRowTile];  // by block, then by row
  int32_t num_rests;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_PANEL_H_
