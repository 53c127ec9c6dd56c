// What the forward passes of all architectures are made of: a batch taken apart into rows, inputs
// normalised and quantised for products, products shared out by tiles, rotation, the cache's
// writing, attention. Holds the scratch memory of one model, sized once for max_rows.
// Thread: the one that runs Forward; Rotate and Store also by the team inside a loop.
// Which thread does what never changes a result: rows, tiles and heads are computed whole.
#ifndef PDSERVE_ENGINE_FORWARD_PASS_H_
#define PDSERVE_ENGINE_FORWARD_PASS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/batch.h"
#include "engine/cache_layout.h"
#include "engine/device.h"
#include "engine/ops.h"
#include "engine/weights.h"

namespace pdserve::engine {

/// What products see of their inputs: all; bf16, with bf16 weights; 8 bits, with quantised weights,
/// and bf16 with bf16 ones.
enum class Precision { kExact, kBf16, kInt8 };

struct PassShape {
  CacheLayout layout;
  int32_t heads = 0;
  int32_t max_rows = 0;
  int32_t max_input_cols = 0;  // of any product
  Precision precision = Precision::kExact;
  std::vector<double> rotation;  // radians per position of each pair of a head: [head_dim / 2]
};

/// Inputs of a product for up to `rows` rows: [rows][cols] values and, where wanted, their 8 bits.
class InputBuffer {
 public:
  static absl::StatusOr<InputBuffer> Create(int32_t rows, int32_t max_cols, Precision precision);

  /// The first `rows` rows, of `cols` columns each; cols may be any number up to max_cols.
  Activations View(int32_t rows, int32_t cols) const;
  float* values() const { return values_; }
  /// Quantises columns [first, last) of a row from its values; both multiples of kBlockCols.
  void Quantise(const Ops& ops, const Activations& view, int32_t row, TileRange cols) const;

 private:
  AlignedMemory memory_;
  float* values_ = nullptr;
  bool exact_ = true;
  QuantisedOut quantised_;  // q null: not wanted
};

/// Rows that become a product's input.
struct InputRows {
  const float* values = nullptr;  // [..][cols]
  int32_t cols = 0;
  const float* norm = nullptr;  // weights of an RMS norm before; null: none
  float epsilon = 0;
  std::span<const int32_t> pick = {};  // which rows; empty: all of the batch
};

struct Product {
  const PackedMatrix* matrix = nullptr;
  ProductOut out;
};

class ForwardPass {
 public:
  static absl::StatusOr<std::unique_ptr<ForwardPass>> Create(const Ops& ops, Team& team,
                                                             PassShape shape);

  /// Starts a pass: where each row's cache lies, its rotation, its embedding in x [rows][cols].
  void Begin(const Batch& batch, std::byte* pool, const PackedMatrix& embedding, float* x);

  int32_t rows() const { return static_cast<int32_t>(rows_.size()); }
  const Ops& ops() const { return ops_; }
  Team& team() const { return team_; }

  /// A loop over `count` units of work with an input, for all its rows, in shares of `piece`.
  struct Loop {
    int32_t count;
    int32_t piece;
    std::function<void(const Activations& input, TileRange units)> body;
  };
  /// Prepares the input and runs the loop on the team with it.
  void WithInput(const InputRows& input, const Loop& loop);
  /// The same with an input that is there already.
  void OnTeam(const Activations& input, const Loop& loop);

  /// The loop over the tiles of products of one input, which must outlive it; `done(product,
  /// features)` follows each run of tiles with the matrix rows that are finished.
  using Done = std::function<void(size_t product, TileRange features)>;
  Loop Multiplying(std::span<const Product> products, const Done& done = {}) const;

  /// Rotates features [first, last) of all rows: pairs of neighbours, heads of head_dim.
  void Rotate(float* values, int32_t stride, TileRange features) const;

  enum class Cached { kKey, kValue };
  /// Writes features [first, last) of the K or V of all rows into the cache.
  void Store(Cached what, int32_t layer, const float* values, TileRange features) const;

  /// Attention of all rows; query and out: [rows][heads * head_dim].
  void Attend(int32_t layer, const float* query, float* out);

 private:
  // Rows [first, first + count) of a segment.
  struct Stretch {
    int32_t first_row;
    int32_t num_rows;
    int32_t first_position;
    size_t first_block;  // in block_addresses_
    int32_t parts;       // 1: attention goes in one step
    size_t first_state;  // in states_, of the first head
  };
  // Attention work, once per kv head.
  struct Unit {
    size_t stretch;
    int32_t part;
  };
  struct Row {
    std::byte* block;
    int32_t token;  // in its block
    int32_t position;
  };
  struct ThreadInput {
    InputBuffer buffer;  // [kSmallRows][max_input_cols]
    uint64_t fill;       // which one it holds
  };
  ForwardPass(const Ops& ops, Team& team, PassShape shape);
  void Multiply(const Activations& input, std::span<const Product> products, TileRange some,
                const Done& done) const;
  void AddSegment(const BatchSegment& segment, std::byte* pool);
  static void EmbedRow(TokenId token, const PackedMatrix& embedding, float* out);
  void ComputeRotation(int32_t row);
  void Fill(const InputRows& input, int32_t row, const InputBuffer& buffer,
            const Activations& view) const;
  void AddStretch(Stretch stretch);
  size_t PartFloats() const;  // of one part's states: a row, a kv head
  AttentionArgs ArgsOf(const Stretch& stretch, int32_t kv_head, AttentionArgs args) const;
  void AttendUnit(const Unit& unit, int32_t kv_head, const AttentionArgs& args);
  void JoinParts(const AttentionArgs& args);

  const Ops& ops_;
  Team& team_;
  const PassShape shape_;
  InputBuffer shared_input_;                // [max_rows][max_input_cols]
  std::vector<ThreadInput> thread_inputs_;  // [threads]
  uint64_t fills_ = 0;                      // of thread_inputs_
  std::vector<float> rotation_;             // [rows][2][head_dim]: cosines, sines
  std::vector<Row> rows_;
  std::vector<Stretch> stretches_;
  std::vector<Unit> units_;
  std::vector<size_t> split_;  // stretches of more than one part
  std::vector<float> states_;  // theirs, [stretch][kv head][part] of PartFloats()
  std::vector<const std::byte*> block_addresses_;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_FORWARD_PASS_H_
