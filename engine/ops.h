// The kernels, declared once with their shapes. One table of functions per instruction set, each in
// its own ops_<name>.cc; ops_portable.cc is the twin that tests compare the others with.
//
// Contract of every kernel, whatever the instruction set:
// - a row's result does not depend on how many rows are computed together, nor on which thread or
//   slice of output rows computes it: sums over K run in a fixed order;
// - integer sums are exact; a float sum over K adds one 32-wide block after the other;
// - kernels are pure functions of their arguments, never allocate, and may run on any thread.
// Tables of equal numerics give bit-equal results; portable agrees with them within rounding.
#ifndef PDSERVE_ENGINE_OPS_H_
#define PDSERVE_ENGINE_OPS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache_layout.h"

namespace pdserve::engine {

inline constexpr int32_t kTileRows = 16;     // output features in a packed tile
inline constexpr int32_t kBlockCols = 32;    // inputs in a quantised block
inline constexpr int32_t kMaxHeadDim = 256;  // of attention, an even number; a loader refuses more
/// Attention sums up the tokens of each part for itself; then the parts are joined in their order.
inline constexpr int32_t kPartTokens = 512;

/// How a weight matrix is stored after repacking.
enum class Packing {
  kU4,  // value = scale * q + minimum, q in 0..15
  kU8,  // value = scale * q + minimum, q in 0..255 (Q8_0 as w + 128, minimum -128 * scale)
  kBf16,
  kFp32,
};

/// A weight matrix [rows][cols] packed in tiles of kTileRows rows; rows are padded with zeros to
/// whole tiles. kU4/kU8: cols is a multiple of kBlockCols. Layout inside `data` is ops.cc's
/// business; all tables share it.
struct PackedMatrix {
  Packing packing = Packing::kFp32;
  int32_t rows = 0;
  int32_t cols = 0;
  std::byte* data = nullptr;  // 64-byte aligned, packed_bytes() long; not owned

  int32_t tiles() const { return (rows + kTileRows - 1) / kTileRows; }
};

size_t PackedTileBytes(Packing packing, int32_t cols);
size_t PackedBytes(Packing packing, int32_t rows, int32_t cols);

/// A tile of kU4 or kU8, plain: q [kTileRows][cols], scale and minimum [kTileRows][cols / 32].
/// Both are kept as fp16 (exact for GGUF's, which are fp16 times a power of two); kU8 takes no
/// minimum.
struct QuantisedTile {
  const uint8_t* q = nullptr;
  const float* scale = nullptr;
  const float* minimum = nullptr;
};

/// Packs one tile from plain values; `values` is [kTileRows][cols].
void PackQuantisedTile(Packing packing, int32_t cols, const QuantisedTile& plain, std::byte* tile);
void PackFloatTile(Packing packing, int32_t cols, const float* values, std::byte* tile);
/// A matrix row's values [cols], exact.
void UnpackRow(const PackedMatrix& matrix, int32_t row, float* values);

inline constexpr int32_t kPanelRows = 16;  // rows of activations that lie together

/// Rows in 8 bits, block by block: [panels][cols / 32][kPanelRows], of q and rest 32 each. A value
/// is scale * q, or, in a block that is fine, scale * (q + rest / 256).
template <class Byte, class Flag, class Float>
struct QuantisedPanels {
  Byte* q = nullptr;
  Byte* rest = nullptr;  // where fine
  Flag* fine = nullptr;  // 1 or 0
  Float* scale = nullptr;
  Float* sum = nullptr;  // of the block's values

  /// The same from another block and row on.
  QuantisedPanels From(int32_t cols, int32_t row, int32_t col) const {
    const size_t panel = size_t(row / kPanelRows) * (cols / kBlockCols) + col / kBlockCols;
    const size_t at = panel * kPanelRows + row % kPanelRows;
    return {q + at * kBlockCols, rest + at * kBlockCols, fine + at, scale + at, sum + at};
  }
};
using QuantisedOut = QuantisedPanels<int8_t, uint8_t, float>;
using QuantisedRows = QuantisedPanels<const int8_t, const uint8_t, const float>;

/// Activations of a batch, as products take them. Rows are 64-byte aligned.
struct Activations {
  int32_t rows = 0;
  int32_t cols = 0;
  const float* values = nullptr;  // [rows][cols]
  bool exact = true;              // products with kBf16 take values as they are, not as bf16
  QuantisedRows quantised;        // q null: products use `values`
};

/// Tiles [first, last) of a matrix.
struct TileRange {
  int32_t first = 0;
  int32_t last = 0;
};

/// Where a product goes: row r, matrix row n to values[r * stride + n].
struct ProductOut {
  float* values = nullptr;
  int32_t stride = 0;  // floats
  bool add = false;    // add to what is there
};

/// Attention of one segment's rows over its own cached tokens.
struct AttentionArgs {
  const CacheLayout* layout = nullptr;
  int32_t layer = 0;
  int32_t kv_head = 0;
  int32_t group = 0;             // query heads per kv head
  int32_t num_rows = 0;          // query rows, at positions first_position ...
  int32_t first_position = 0;    // row r attends to tokens [0, first_position + r]
  const float* query = nullptr;  // row r, head g: query + r * query_stride + g * head_dim
  int32_t query_stride = 0;      // floats
  float scale = 0;               // of the scores
  const std::byte* const* blocks = nullptr;  // [blocks]: base address of each cache block
  float* out = nullptr;                      // as query, with out_stride
  int32_t out_stride = 0;
};

/// Size of a query's state between attention_part and join_parts.
inline size_t AttentionStateFloats(int32_t head_dim) {
  return size_t(head_dim + 15) / 16 * 16 + 32;
}

struct Ops {
  std::string_view name;
  std::string_view numerics;  // tables with equal names give bit-equal results

  /// Blocks of one row, to `out` and, kPanelRows further each time, beyond.
  /// q[k] = round(values[k] / scale), scale = max|block| / 127; half to even. A block is fine if
  /// its q's squares sum up to less than `fine_below`: one value stands far above the others, which
  /// get too little of the 8 bits. rest[k] = round(256 * (values[k] / scale - q[k])), at most 127.
  /// A block below 2^-100 counts as zero (scale 0); one that is not finite has q 0 and scale and
  /// sum NaN; neither is fine.
  void (*quantise)(const float* values, int32_t cols, int32_t fine_below, const QuantisedOut& out);

  /// out[r][n] = sum_k w[n][k] * x[r][k] for all rows r of x and the matrix rows n of `tiles`; n
  /// beyond w.rows is not written. Where x is not exact, a kBf16 matrix meets values rounded to
  /// bf16, pair by pair of columns; where x is quantised, kU4 and kU8 meet 8 bits; else the values.
  void (*matmul)(const PackedMatrix& w, const Activations& x, TileRange tiles, ProductOut out);

  /// out[k] = x[k] / sqrt(mean(x^2) + epsilon) * weight[k].
  void (*rms_norm)(const float* x, const float* weight, float epsilon, int32_t n, float* out);

  /// out[k] = silu(gate[k]) * up[k].
  void (*silu_mul)(const float* gate, const float* up, int32_t n, float* out);

  /// Turns pairs of neighbours, as many as n / 2: x[k] = x[k] * cosine[k] + x[k ^ 1] * sine[k],
  /// where a pair's sines have opposite signs.
  void (*rotate)(const float* cosine, const float* sine, int32_t n, float* x);

  /// Softmax attention with fixed tiles at absolute positions and a running maximum and sum, so a
  /// query's result does not depend on its neighbours. With a bf16 cache, query * scale and the
  /// weights are rounded to bf16 too.
  void (*attention)(const AttentionArgs& args);

  /// The same in two steps, equal bit by bit. Of one part of the tokens, states[num_rows][group]
  /// [AttentionStateFloats(head_dim)]; every row must see a token of the part.
  void (*attention_part)(const AttentionArgs& args, int32_t part, float* states);
  /// From the states of all parts, [parts][num_rows][group][...], to args.out; every row must see
  /// a token of the last part. Overwrites the first part's.
  void (*join_parts)(const AttentionArgs& args, int32_t parts, float* states);

  /// Writes one token's K or V of one head (head_dim floats) into the cache at `destination`.
  void (*store_kv)(const float* values, int32_t head_dim, KvDtype dtype, std::byte* destination);
};

/// "auto" or a name of the ops variants (cmake word list). NotFound: no such table, or it does not
/// run on this machine (the message says which are there).
absl::StatusOr<const Ops*> FindOps(std::string_view name);
/// Names of all tables that were built, and whether each can run here.
struct OpsVariant {
  std::string_view name;
  const Ops* ops;  // null where it can't run here
};
std::vector<OpsVariant> AllOps();

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_OPS_H_
