#include "engine/forward_pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "common/check.h"
#include "common/status_macros.h"

namespace pdserve::engine {
namespace {

// Up to so many rows every thread prepares the input for itself, which is cheaper than waiting for
// the others once more.
constexpr int32_t kSmallRows = 8;
// Query rows of a unit of attention work.
constexpr int32_t kStretchRows = 32;
constexpr int32_t kRowPiece = 8;   // rows taken at a time
constexpr int32_t kTilePiece = 6;  // tiles: an input of many rows is read once for each piece
// Blocks whose largest value is 4.5 times their root mean square, or more, get 8 bits more: a few
// channels stand far above the rest, which would share what 8 bits leave. bench/RESULTS.md has what
// other numbers give.
constexpr int32_t kFineBelow = 25488;

size_t RoundUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

absl::StatusOr<InputBuffer> InputBuffer::Create(int32_t rows, int32_t max_cols,
                                                Precision precision) {
  const size_t value_bytes = RoundUp(size_t(rows) * max_cols * sizeof(float));
  const size_t panels = (rows + kPanelRows - 1) / kPanelRows;
  const size_t blocks =
      precision == Precision::kInt8 ? panels * kPanelRows * (max_cols / kBlockCols) : 0;
  InputBuffer buffer;
  ASSIGN_OR_RETURN(buffer.memory_, AlignedMemory::Create(value_bytes + 2 * blocks * kBlockCols +
                                                         2 * blocks * sizeof(float) + blocks));
  std::byte* at = buffer.memory_.data();
  const auto take = [&at](size_t bytes) { return std::exchange(at, at + bytes); };
  buffer.values_ = reinterpret_cast<float*>(take(value_bytes));
  buffer.exact_ = precision == Precision::kExact;
  if (precision != Precision::kInt8) return buffer;
  buffer.quantised_.q = reinterpret_cast<int8_t*>(take(blocks * kBlockCols));
  buffer.quantised_.rest = reinterpret_cast<int8_t*>(take(blocks * kBlockCols));
  buffer.quantised_.scale = reinterpret_cast<float*>(take(blocks * sizeof(float)));
  buffer.quantised_.sum = reinterpret_cast<float*>(take(blocks * sizeof(float)));
  buffer.quantised_.fine = reinterpret_cast<uint8_t*>(take(blocks));
  return buffer;
}

Activations InputBuffer::View(int32_t rows, int32_t cols) const {
  Activations view = {rows, cols, values_, exact_, {}};
  const QuantisedOut& all = quantised_;
  if (cols % kBlockCols == 0) view.quantised = {all.q, all.rest, all.fine, all.scale, all.sum};
  return view;
}

void InputBuffer::Quantise(const Ops& ops, const Activations& view, int32_t row,
                           TileRange cols) const {
  if (view.quantised.q == nullptr) return;
  ops.quantise(values_ + size_t(row) * view.cols + cols.first, cols.last - cols.first, kFineBelow,
               quantised_.From(view.cols, row, cols.first));
}

ForwardPass::ForwardPass(const Ops& ops, Team& team, PassShape shape)
    : ops_(ops), team_(team), shape_(std::move(shape)) {
  rotation_.resize(size_t(shape_.max_rows) * 2 * shape_.layout.head_dim);
  rows_.reserve(shape_.max_rows);
}

absl::StatusOr<std::unique_ptr<ForwardPass>> ForwardPass::Create(const Ops& ops, Team& team,
                                                                 PassShape shape) {
  std::unique_ptr<ForwardPass> pass(new ForwardPass(ops, team, std::move(shape)));
  const PassShape& made = pass->shape_;
  ASSIGN_OR_RETURN(pass->shared_input_,
                   InputBuffer::Create(made.max_rows, made.max_input_cols, made.precision));
  for (int32_t thread = 0; thread < team.threads(); ++thread) {
    ASSIGN_OR_RETURN(InputBuffer buffer,
                     InputBuffer::Create(kSmallRows, made.max_input_cols, made.precision));
    pass->thread_inputs_.push_back({std::move(buffer), 0});
  }
  return pass;
}

void ForwardPass::AddSegment(const BatchSegment& segment, std::byte* pool) {
  const CacheLayout& layout = shape_.layout;
  PD_CHECK(segment.num_rows > 0 && segment.first_row == rows());
  const int32_t end = segment.first_position + segment.num_rows;
  const size_t first_block = block_addresses_.size();
  const auto num_blocks = static_cast<size_t>(layout.blocks_for(end));
  PD_CHECK(segment.first_position >= 0 && segment.blocks.size() >= num_blocks);
  for (size_t i = 0; i < num_blocks; ++i) {
    block_addresses_.push_back(pool + size_t(segment.blocks[i].value) * layout.block_bytes());
  }
  for (int32_t position = segment.first_position; position < end; ++position) {
    const BlockId block = segment.blocks[position / layout.block_tokens];
    rows_.push_back({pool + size_t(block.value) * layout.block_bytes(),
                     position % layout.block_tokens, position});
  }
  for (int32_t row = 0; row < segment.num_rows; row += kStretchRows) {
    AddStretch({segment.first_row + row, std::min(kStretchRows, segment.num_rows - row),
                segment.first_position + row, first_block, 1, 0});
  }
}

// A long row alone is shared out by parts: there may be fewer heads than threads.
void ForwardPass::AddStretch(Stretch stretch) {
  if (stretch.num_rows == 1) stretch.parts = stretch.first_position / kPartTokens + 1;
  if (stretch.parts > 1) {
    stretch.first_state = states_.size();
    states_.resize(states_.size() + shape_.layout.num_kv_heads * stretch.parts * PartFloats());
    split_.push_back(stretches_.size());
  }
  for (int32_t part = 0; part < stretch.parts; ++part) units_.push_back({stretches_.size(), part});
  stretches_.push_back(stretch);
}

size_t ForwardPass::PartFloats() const {
  const size_t group = shape_.heads / shape_.layout.num_kv_heads;
  return group * AttentionStateFloats(shape_.layout.head_dim);
}

void ForwardPass::Begin(const Batch& batch, std::byte* pool, const PackedMatrix& embedding,
                        float* x) {
  PD_CHECK(batch.num_rows() > 0 && batch.num_rows() <= shape_.max_rows);
  rows_.clear();
  stretches_.clear();
  units_.clear();
  split_.clear();
  states_.clear();
  block_addresses_.clear();
  for (const BatchSegment& segment : batch.segments) AddSegment(segment, pool);
  PD_CHECK(rows() == batch.num_rows());
  team_.Run(rows(), kRowPiece, [&](int32_t /*thread*/, Share some) {
    for (int32_t row = some.first; row < some.last; ++row) {
      EmbedRow(batch.tokens[row], embedding, x + size_t(row) * embedding.cols);
      ComputeRotation(row);
    }
  });
}

void ForwardPass::EmbedRow(TokenId token, const PackedMatrix& embedding, float* out) {
  PD_CHECK(token.value < static_cast<uint32_t>(embedding.rows));
  UnpackRow(embedding, static_cast<int32_t>(token.value), out);
}

void ForwardPass::ComputeRotation(int32_t row) {
  const int32_t head_dim = shape_.layout.head_dim;
  float* cosine = rotation_.data() + size_t(row) * 2 * head_dim;
  float* sine = cosine + head_dim;
  for (const double radians : shape_.rotation) {
    const double angle = radians * rows_[row].position;
    *cosine++ = static_cast<float>(std::cos(angle));
    *cosine++ = static_cast<float>(std::cos(angle));
    *sine++ = static_cast<float>(-std::sin(angle));
    *sine++ = static_cast<float>(std::sin(angle));
  }
}

void ForwardPass::Fill(const InputRows& input, int32_t row, const InputBuffer& buffer,
                       const Activations& view) const {
  const int32_t source = input.pick.empty() ? row : input.pick[row];
  const float* from = input.values + size_t(source) * input.cols;
  float* to = buffer.values() + size_t(row) * input.cols;
  if (input.norm != nullptr) {
    ops_.rms_norm(from, input.norm, input.epsilon, input.cols, to);
  } else {
    std::memcpy(to, from, size_t(input.cols) * sizeof(float));
  }
  buffer.Quantise(ops_, view, row, {0, input.cols});
}

// Few rows are prepared by each thread for itself: cheaper than a loop more to wait for.
void ForwardPass::WithInput(const InputRows& input, const Loop& loop) {
  const int32_t count = input.pick.empty() ? rows() : static_cast<int32_t>(input.pick.size());
  if (count <= kSmallRows) {
    ++fills_;
    team_.Run(loop.count, loop.piece, [&](int32_t thread, Share some) {
      const InputBuffer& buffer = thread_inputs_[thread].buffer;
      const Activations view = buffer.View(count, input.cols);
      if (std::exchange(thread_inputs_[thread].fill, fills_) != fills_) {
        for (int32_t row = 0; row < count; ++row) Fill(input, row, buffer, view);
      }
      loop.body(view, {some.first, some.last});
    });
    return;
  }
  const Activations view = shared_input_.View(count, input.cols);
  team_.Run(count, kRowPiece, [&](int32_t /*thread*/, Share some) {
    for (int32_t row = some.first; row < some.last; ++row) Fill(input, row, shared_input_, view);
  });
  OnTeam(view, loop);
}

void ForwardPass::OnTeam(const Activations& input, const Loop& loop) {
  team_.Run(loop.count, loop.piece,
            [&](int32_t /*thread*/, Share some) { loop.body(input, {some.first, some.last}); });
}

ForwardPass::Loop ForwardPass::Multiplying(std::span<const Product> products,
                                           const Done& done) const {
  int32_t total = 0;
  for (const Product& product : products) total += product.matrix->tiles();
  return {total, kTilePiece, [this, products, done](const Activations& input, TileRange some) {
            Multiply(input, products, some, done);
          }};
}

// `some` are tiles of all products, one after the other.
void ForwardPass::Multiply(const Activations& input, std::span<const Product> products,
                           TileRange some, const Done& done) const {
  int32_t start = 0;  // of the product's tiles among all
  for (size_t i = 0; i < products.size(); ++i) {
    const PackedMatrix& matrix = *products[i].matrix;
    const TileRange tiles = {std::max(some.first - start, 0),
                             std::min(some.last - start, matrix.tiles())};
    start += matrix.tiles();
    if (tiles.first >= tiles.last) continue;
    ops_.matmul(matrix, input, tiles, products[i].out);
    const int32_t end = std::min(tiles.last * kTileRows, matrix.rows);
    if (done) done(i, {tiles.first * kTileRows, end});
  }
}

void ForwardPass::Rotate(float* values, int32_t stride, TileRange features) const {
  const int32_t head_dim = shape_.layout.head_dim;
  for (int32_t first = features.first; first < features.last;) {
    const int32_t last = std::min(features.last, (first / head_dim + 1) * head_dim);
    for (int32_t row = 0; row < rows(); ++row) {
      const float* cosine = rotation_.data() + size_t(row) * 2 * head_dim + first % head_dim;
      ops_.rotate(cosine, cosine + head_dim, last - first, values + size_t(row) * stride + first);
    }
    first = last;
  }
}

void ForwardPass::Store(Cached what, int32_t layer, const float* values, TileRange features) const {
  const CacheLayout& layout = shape_.layout;
  const int32_t head_dim = layout.head_dim;
  const size_t stride = size_t(layout.num_kv_heads) * head_dim;
  for (int32_t first = features.first; first < features.last;) {
    const int32_t head = first / head_dim;
    const int32_t last = std::min(features.last, (head + 1) * head_dim);
    const size_t offset =
        what == Cached::kKey ? layout.k_offset(layer, head) : layout.v_offset(layer, head);
    for (int32_t row = 0; row < rows(); ++row) {
      const size_t element = size_t(rows_[row].token) * head_dim + first % head_dim;
      ops_.store_kv(values + row * stride + first, last - first, layout.dtype,
                    rows_[row].block + offset + element * layout.element_bytes());
    }
    first = last;
  }
}

void ForwardPass::Attend(int32_t layer, const float* query, float* out) {
  const int32_t kv_heads = shape_.layout.num_kv_heads;
  AttentionArgs args;
  args.layout = &shape_.layout;
  args.layer = layer;
  args.group = shape_.heads / kv_heads;
  args.query = query;
  args.query_stride = shape_.heads * shape_.layout.head_dim;
  args.scale = 1.0f / std::sqrt(static_cast<float>(shape_.layout.head_dim));
  args.out = out;
  args.out_stride = args.query_stride;
  const int32_t count = static_cast<int32_t>(units_.size()) * kv_heads;
  team_.Run(count, 1, [&](int32_t /*thread*/, Share some) {
    for (int32_t i = some.first; i < some.last; ++i) {
      AttendUnit(units_[i / kv_heads], i % kv_heads, args);
    }
  });
  if (!split_.empty()) JoinParts(args);
}

AttentionArgs ForwardPass::ArgsOf(const Stretch& stretch, int32_t kv_head,
                                  AttentionArgs args) const {
  const size_t at = size_t(stretch.first_row) * args.query_stride +
                    size_t(kv_head) * args.group * shape_.layout.head_dim;
  args.kv_head = kv_head;
  args.num_rows = stretch.num_rows;
  args.first_position = stretch.first_position;
  args.query += at;
  args.out += at;
  args.blocks = block_addresses_.data() + stretch.first_block;
  return args;
}

void ForwardPass::AttendUnit(const Unit& unit, int32_t kv_head, const AttentionArgs& args) {
  const Stretch& stretch = stretches_[unit.stretch];
  const AttentionArgs mine = ArgsOf(stretch, kv_head, args);
  if (stretch.parts == 1) return ops_.attention(mine);
  const size_t at = size_t(kv_head) * stretch.parts + unit.part;
  ops_.attention_part(mine, unit.part, states_.data() + stretch.first_state + at * PartFloats());
}

void ForwardPass::JoinParts(const AttentionArgs& args) {
  const int32_t kv_heads = shape_.layout.num_kv_heads;
  const auto count = static_cast<int32_t>(split_.size()) * kv_heads;
  team_.Run(count, 1, [&](int32_t /*thread*/, Share some) {
    for (int32_t i = some.first; i < some.last; ++i) {
      const Stretch& stretch = stretches_[split_[i / kv_heads]];
      const size_t at = size_t(i % kv_heads) * stretch.parts * PartFloats();
      ops_.join_parts(ArgsOf(stretch, i % kv_heads, args), stretch.parts,
                      states_.data() + stretch.first_state + at);
    }
  });
}

}  // namespace pdserve::engine
