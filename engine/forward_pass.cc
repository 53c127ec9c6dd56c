#include "engine/forward_pass.h"

#include <algorithm>
#include <atomic>
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
// Tiles that stay in the nearest caches between the two terms of their input.
constexpr int32_t kTilesTwice = 16;

size_t RoundUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

absl::StatusOr<InputBuffer> InputBuffer::Create(int32_t rows, int32_t max_cols, bool quantise) {
  const size_t count = size_t(rows) * max_cols;
  const size_t value_bytes = RoundUp(count * sizeof(float));
  const size_t q_bytes = RoundUp(count);
  const size_t block_bytes = RoundUp(count / kBlockCols * sizeof(float));
  const size_t term_bytes = q_bytes + 2 * block_bytes;
  InputBuffer buffer;
  ASSIGN_OR_RETURN(buffer.memory_,
                   AlignedMemory::Create(value_bytes + (quantise ? 2 * term_bytes : 0)));
  std::byte* at = buffer.memory_.data();
  buffer.values_ = reinterpret_cast<float*>(at);
  if (!quantise) return buffer;
  at += value_bytes;
  for (Quantised& term : buffer.terms_) {
    term.q = reinterpret_cast<int8_t*>(at);
    term.scale = reinterpret_cast<float*>(at + q_bytes);
    term.sum = reinterpret_cast<float*>(at + q_bytes + block_bytes);
    at += term_bytes;
  }
  return buffer;
}

ProductInput InputBuffer::View(int32_t rows, int32_t cols, Terms terms) const {
  const auto& [first, second] = terms_;
  if (cols % kBlockCols != 0 || first.q == nullptr) return {{rows, cols, values_}, {}};
  ProductInput view = {{rows, cols, values_, first.q, first.scale, first.sum}, {}};
  if (terms == Terms::kTwo) view.second = {rows, cols, nullptr, second.q, second.scale, second.sum};
  return view;
}

void InputBuffer::Quantise(const Ops& ops, const ProductInput& view, int32_t row,
                           TileRange cols) const {
  if (view.first.q == nullptr) return;
  const auto& [first, second] = terms_;
  for (int32_t col = cols.first; col < cols.last; col += kBlockCols) {
    const size_t at = size_t(row) * view.first.cols + col;
    const size_t block = at / kBlockCols;
    ops.quantise(values_ + at, kBlockCols, first.q + at, first.scale + block, first.sum + block);
    if (view.second.rows == 0) continue;
    std::array<float, kBlockCols> rest;
    for (int32_t i = 0; i < kBlockCols; ++i) {
      rest[i] = values_[at + i] - first.scale[block] * static_cast<float>(first.q[at + i]);
    }
    ops.quantise(rest.data(), kBlockCols, second.q + at, second.scale + block, second.sum + block);
  }
}

ForwardPass::ForwardPass(const Ops& ops, Team& team, PassShape shape)
    : ops_(ops), team_(team), shape_(std::move(shape)), tiles_(team.threads()) {
  rotation_.resize(size_t(shape_.max_rows) * shape_.layout.head_dim);
  rows_.reserve(shape_.max_rows);
}

absl::StatusOr<std::unique_ptr<ForwardPass>> ForwardPass::Create(const Ops& ops, Team& team,
                                                                 PassShape shape) {
  std::unique_ptr<ForwardPass> pass(new ForwardPass(ops, team, std::move(shape)));
  const PassShape& made = pass->shape_;
  ASSIGN_OR_RETURN(pass->shared_input_,
                   InputBuffer::Create(made.max_rows, made.max_input_cols, made.quantise));
  for (int32_t thread = 0; thread < team.threads(); ++thread) {
    ASSIGN_OR_RETURN(InputBuffer buffer,
                     InputBuffer::Create(kSmallRows, made.max_input_cols, made.quantise));
    pass->thread_inputs_.push_back(std::move(buffer));
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
  team_.Run([&](int32_t thread) {
    const Share share = ShareOf(rows(), thread, team_.threads());
    for (int32_t row = share.first; row < share.last; ++row) {
      EmbedRow(batch.tokens[row], embedding, thread, x + size_t(row) * embedding.cols);
      ComputeRotation(row);
    }
  });
}

void ForwardPass::EmbedRow(TokenId token, const PackedMatrix& embedding, int32_t thread,
                           float* out) {
  PD_CHECK(token.value < static_cast<uint32_t>(embedding.rows));
  const size_t tile = token.value / kTileRows;
  const size_t cols = embedding.cols;
  std::vector<float>& values = tiles_[thread];
  values.resize(kTileRows * cols);
  UnpackTile(embedding.packing, embedding.cols,
             embedding.data + tile * PackedTileBytes(embedding.packing, embedding.cols),
             values.data());
  std::memcpy(out, values.data() + token.value % kTileRows * cols, cols * sizeof(float));
}

void ForwardPass::ComputeRotation(int32_t row) {
  float* out = rotation_.data() + size_t(row) * shape_.layout.head_dim;
  for (const double radians : shape_.rotation) {
    const double angle = radians * rows_[row].position;
    *out++ = static_cast<float>(std::cos(angle));
    *out++ = static_cast<float>(std::sin(angle));
  }
}

void ForwardPass::Fill(const InputRows& input, int32_t row, const InputBuffer& buffer,
                       const ProductInput& view) const {
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

void ForwardPass::WithInput(const InputRows& input, const Body& body) {
  const int32_t count = input.pick.empty() ? rows() : static_cast<int32_t>(input.pick.size());
  if (count <= kSmallRows) {
    team_.Run([&](int32_t thread) {
      const InputBuffer& buffer = thread_inputs_[thread];
      const ProductInput view = buffer.View(count, input.cols, input.terms);
      for (int32_t row = 0; row < count; ++row) Fill(input, row, buffer, view);
      body(thread, view);
    });
    return;
  }
  const ProductInput view = shared_input_.View(count, input.cols, input.terms);
  team_.Run([&](int32_t thread) {
    const Share share = ShareOf(count, thread, team_.threads());
    for (int32_t row = share.first; row < share.last; ++row) Fill(input, row, shared_input_, view);
  });
  team_.Run([&](int32_t thread) { body(thread, view); });
}

void ForwardPass::Multiply(int32_t thread, const ProductInput& input,
                           std::span<const Product> products, const Done& done) const {
  int32_t total = 0;
  for (const Product& product : products) total += product.matrix->tiles();
  const Share share = ShareOf(total, thread, team_.threads());
  int32_t start = 0;  // of the product's tiles among all
  for (size_t i = 0; i < products.size(); ++i) {
    const PackedMatrix& matrix = *products[i].matrix;
    const TileRange tiles = {std::max(share.first - start, 0),
                             std::min(share.last - start, matrix.tiles())};
    start += matrix.tiles();
    if (tiles.first >= tiles.last) continue;
    MultiplyTiles(input, products[i], tiles);
    const int32_t end = std::min(tiles.last * kTileRows, matrix.rows);
    if (done) done(i, {tiles.first * kTileRows, end});
  }
}

void ForwardPass::MultiplyTiles(const ProductInput& input, const Product& product,
                                TileRange tiles) const {
  const PackedMatrix& matrix = *product.matrix;
  const bool quantised = matrix.packing == Packing::kU4 || matrix.packing == Packing::kU8;
  if (!quantised || input.second.rows == 0) {
    ops_.matmul(matrix, input.first, tiles, product.out);
    return;
  }
  // A few tiles at a time, so that their weights come from memory but once.
  ProductOut added = product.out;
  added.add = true;
  for (int32_t tile = tiles.first; tile < tiles.last; tile += kTilesTwice) {
    const TileRange part = {tile, std::min(tile + kTilesTwice, tiles.last)};
    ops_.matmul(matrix, input.first, part, product.out);
    ops_.matmul(matrix, input.second, part, added);
  }
}

void ForwardPass::Rotate(float* values, int32_t stride, TileRange features) const {
  const int32_t head_dim = shape_.layout.head_dim;
  for (int32_t row = 0; row < rows(); ++row) {
    const float* table = rotation_.data() + size_t(row) * head_dim;
    float* x = values + size_t(row) * stride;
    for (int32_t i = features.first; i < features.last; i += 2) {
      const float* turn = table + i % head_dim;
      const float a = x[i];
      const float b = x[i + 1];
      x[i] = a * turn[0] - b * turn[1];
      x[i + 1] = a * turn[1] + b * turn[0];
    }
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
  // From the end: a prompt's last rows are the longest work.
  std::atomic<int32_t> left = static_cast<int32_t>(units_.size()) * kv_heads;
  team_.Run([&](int32_t) {
    for (int32_t i = --left; i >= 0; i = --left) {
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
  team_.Run([&](int32_t thread) {
    const auto count = static_cast<int32_t>(split_.size()) * kv_heads;
    const Share share = ShareOf(count, thread, team_.threads());
    for (int32_t i = share.first; i < share.last; ++i) {
      const Stretch& stretch = stretches_[split_[i / kv_heads]];
      const size_t at = size_t(i % kv_heads) * stretch.parts * PartFloats();
      ops_.join_parts(ArgsOf(stretch, i % kv_heads, args), stretch.parts,
                      states_.data() + stretch.first_state + at);
    }
  });
}

}  // namespace pdserve::engine
