// The twin that the tests compare the other kernels with: plain loops in the order ops.h states,
// and what runs on a machine no other table knows.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "engine/half.h"
#include "engine/ops.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {
namespace {

constexpr int32_t kRowsAtOnce = 8;  // activation rows that share an unpacked weight block

/// e^x by a polynomial: 0 below -87, at most e^88; NaN stays NaN.
float Exp(float x) {
  if (x < -87.0f) return 0.0f;
  x = std::min(x, 88.0f);
  const float shifted = x * 1.44269504f + 12582912.0f;  // the low bits hold the rounded integer
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  const uint32_t exponent = (std::bit_cast<uint32_t>(shifted) + 127) << 23;
  return p * std::bit_cast<float>(exponent);
}

float Rounded(float value, bool bf16) { return bf16 ? Bf16ToFloat(FloatToBf16(value)) : value; }

/// Of a number below 2^22 in size.
float RoundHalfToEven(float value) { return (value + 12582912.0f) - 12582912.0f; }

void QuantiseBlock(const float* values, int32_t block, int32_t fine_below,
                   const QuantisedOut& out) {
  const size_t at = size_t(block) * kPanelRows;
  int8_t* q = out.q + at * kBlockCols;
  int8_t* rest = out.rest + at * kBlockCols;
  out.fine[at] = 0;
  uint32_t largest = 0;
  for (int32_t k = 0; k < kBlockCols; ++k) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[k]) & 0x7fffffff);
  }
  if (largest < 0x0d800000 || largest >= 0x7f800000) {  // below 2^-100, or not finite
    std::memset(q, 0, kBlockCols);
    out.scale[at] = out.sum[at] =
        largest < 0x0d800000 ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    return;
  }
  const float inverse = 127.0f / std::bit_cast<float>(largest);
  int32_t total = 0;
  int32_t squares = 0;
  for (int32_t k = 0; k < kBlockCols; ++k) {
    q[k] = static_cast<int8_t>(std::clamp(RoundHalfToEven(values[k] * inverse), -127.0f, 127.0f));
    total += q[k];
    squares += q[k] * q[k];
  }
  total *= (1 << kRestBits);
  if (squares < fine_below) {
    out.fine[at] = 1;
    for (int32_t k = 0; k < kBlockCols; ++k) {
      const float scaled = values[k] * inverse;
      rest[k] = static_cast<int8_t>(std::min(
          RoundHalfToEven((scaled - static_cast<float>(q[k])) * (1 << kRestBits)), 127.0f));
      total += rest[k];
    }
  }
  out.scale[at] = std::bit_cast<float>(largest) / 127.0f;
  out.sum[at] = out.scale[at] * (static_cast<float>(total) * kRestUnit);
}

void Quantise(const float* values, int32_t cols, int32_t fine_below, const QuantisedOut& out) {
  for (int32_t block = 0; block < cols / kBlockCols; ++block) {
    QuantiseBlock(values + size_t(block) * kBlockCols, block, fine_below, out);
  }
}

/// One block of a quantised tile, plain.
struct Block {
  int16_t q[kBlockCols][kTileRows];
  float scale[kTileRows];
  float minimum[kTileRows];
};

float HalfAt(const std::byte* at, int32_t index) {
  uint16_t bits;
  std::memcpy(&bits, at + 2 * index, sizeof(bits));
  return HalfToFloat(bits);
}

void LoadBlock(const PackedMatrix& w, const std::byte* tile, int32_t block, Block& out) {
  const bool u4 = w.packing == Packing::kU4;
  const std::byte* quants = tile + size_t(block) * (u4 ? kU4Block : kU8Quants);
  const std::byte* scales = quants + kU4Quants;
  if (!u4) scales = tile + size_t(w.cols / kBlockCols) * kU8Quants + size_t(block) * kScaleBytes;
  for (int32_t k = 0; k < kBlockCols; ++k) {
    const int32_t group = k / kGroupCols;
    const std::byte* at = quants + (u4 ? group / 2 : group) * 64 + k % kGroupCols;
    for (int32_t row = 0; row < kTileRows; ++row) {
      const int32_t byte = std::to_integer<int32_t>(at[row * kGroupCols]);
      out.q[k][row] = static_cast<int16_t>(!u4 ? byte : group % 2 == 0 ? byte & 15 : byte >> 4);
    }
  }
  for (int32_t row = 0; row < kTileRows; ++row) {
    out.scale[row] = HalfAt(scales, row);
    out.minimum[row] = u4 ? HalfAt(scales + kScaleBytes, row) : kU8Zero * out.scale[row];
  }
}

void AddQuantisedBlock(const Block& w, const Activations& x, int32_t row, int32_t block,
                       float* sums) {
  int32_t isum[kTileRows] = {};
  const QuantisedRows here = x.quantised.From(x.cols, row, block * kBlockCols);
  for (int32_t k = 0; k < kBlockCols; ++k) {
    const int32_t rest = *here.fine != 0 ? here.rest[k] : 0;
    const int32_t value = here.q[k] * (1 << kRestBits) + rest;
    for (int32_t n = 0; n < kTileRows; ++n) isum[n] += w.q[k][n] * value;
  }
  for (int32_t n = 0; n < kTileRows; ++n) {
    sums[n] += static_cast<float>(isum[n]) * kRestUnit * (w.scale[n] * *here.scale);
    sums[n] += w.minimum[n] * *here.sum;
  }
}

/// Columns [first, first + count) of a tile as values [count][kTileRows].
void LoadColumns(const PackedMatrix& w, const std::byte* tile, int32_t first, int32_t count,
                 float* values) {
  if (w.packing == Packing::kU4 || w.packing == Packing::kU8) {
    Block block;
    LoadBlock(w, tile, first / kBlockCols, block);
    for (int32_t k = 0; k < count; ++k) {
      for (int32_t n = 0; n < kTileRows; ++n) {
        values[k * kTileRows + n] = block.scale[n] * block.q[k][n] + block.minimum[n];
      }
    }
    return;
  }
  if (w.packing == Packing::kFp32) {
    std::memcpy(values, tile + size_t(first) * kTileRows * 4, size_t(count) * kTileRows * 4);
    return;
  }
  for (int32_t k = 0; k < count; ++k) {
    for (int32_t n = 0; n < kTileRows; ++n) {
      uint16_t bits;
      std::memcpy(&bits, tile + Bf16Offset(n, first + k), sizeof(bits));
      values[k * kTileRows + n] = Bf16ToFloat(bits);
    }
  }
}

void AddColumns(const float* w, const float* x, int32_t count, float* sums) {
  for (int32_t k = 0; k < count; ++k) {
    for (int32_t n = 0; n < kTileRows; ++n) sums[n] += w[k * kTileRows + n] * x[k];
  }
}

/// The same with x rounded to bf16; of each pair, the second column first.
void AddPairs(const float* w, const float* x, int32_t count, float* sums) {
  for (int32_t pair = 0; pair < count; pair += 2) {
    for (int32_t k = std::min(pair + 1, count - 1); k >= pair; --k) {
      const float rounded = Rounded(x[k], true);
      for (int32_t n = 0; n < kTileRows; ++n) sums[n] += w[k * kTileRows + n] * rounded;
    }
  }
}

struct Rows {
  int32_t first;
  int32_t count;  // at most kRowsAtOnce
};

void MultiplyTile(const PackedMatrix& w, const std::byte* tile, const Activations& x, Rows rows,
                  float (*sums)[kTileRows]) {
  const bool quantised = w.packing == Packing::kU4 || w.packing == Packing::kU8;
  for (int32_t first = 0; first < w.cols; first += kBlockCols) {
    if (quantised && x.quantised.q != nullptr) {
      Block block;
      LoadBlock(w, tile, first / kBlockCols, block);
      for (int32_t r = 0; r < rows.count; ++r) {
        AddQuantisedBlock(block, x, rows.first + r, first / kBlockCols, sums[r]);
      }
      continue;
    }
    const int32_t count = std::min(kBlockCols, w.cols - first);
    float values[kBlockCols * kTileRows];
    LoadColumns(w, tile, first, count, values);
    for (int32_t r = 0; r < rows.count; ++r) {
      const float* row = x.values + size_t(rows.first + r) * x.cols;
      const bool pairs = w.packing == Packing::kBf16 && !x.exact;
      (pairs ? AddPairs : AddColumns)(values, row + first, count, sums[r]);
    }
  }
}

void Matmul(const PackedMatrix& w, const Activations& x, TileRange tiles, ProductOut out) {
  const size_t tile_bytes = PackedTileBytes(w.packing, w.cols);
  for (int32_t tile = tiles.first; tile < tiles.last; ++tile) {
    const int32_t first_n = tile * kTileRows;
    const int32_t count_n = std::min(kTileRows, w.rows - first_n);
    for (int32_t first = 0; first < x.rows; first += kRowsAtOnce) {
      const Rows rows{first, std::min(kRowsAtOnce, x.rows - first)};
      float sums[kRowsAtOnce][kTileRows] = {};
      MultiplyTile(w, w.data + tile * tile_bytes, x, rows, sums);
      for (int32_t r = 0; r < rows.count; ++r) {
        float* target = out.values + size_t(first + r) * out.stride + first_n;
        for (int32_t n = 0; n < count_n; ++n) {
          target[n] = out.add ? target[n] + sums[r][n] : sums[r][n];
        }
      }
    }
  }
}

void RmsNorm(const float* x, const float* weight, float epsilon, int32_t n, float* out) {
  float sums[kTileRows] = {};
  for (int32_t k = 0; k < n; ++k) sums[k % kTileRows] += x[k] * x[k];
  float total = 0;
  for (const float sum : sums) total += sum;
  const float inverse = 1.0f / std::sqrt(total / static_cast<float>(n) + epsilon);
  for (int32_t k = 0; k < n; ++k) out[k] = x[k] * inverse * weight[k];
}

void SiluMul(const float* gate, const float* up, int32_t n, float* out) {
  for (int32_t k = 0; k < n; ++k) out[k] = gate[k] / (1.0f + Exp(-gate[k])) * up[k];
}

void Rotate(const float* cosine, const float* sine, int32_t n, float* x) {
  for (int32_t k = 0; k < n; k += 2) {
    const float a = x[k];
    const float b = x[k + 1];
    x[k] = a * cosine[k] + b * sine[k];
    x[k + 1] = b * cosine[k + 1] + a * sine[k + 1];
  }
}

/// One head's K or V of a cache block, element by element.
struct CacheView {
  const std::byte* data;
  bool bf16;
  float operator[](int32_t at) const {
    if (bf16) {
      uint16_t bits;
      std::memcpy(&bits, data + size_t(at) * 2, sizeof(bits));
      return Bf16ToFloat(bits);
    }
    float value;
    std::memcpy(&value, data + size_t(at) * 4, sizeof(value));
    return value;
  }
};

/// Running softmax of one query; `weighted` [head_dim].
struct Running {
  float maximum = -std::numeric_limits<float>::infinity();
  float sum = 0;
  float* weighted;
};

void AddToken(const CacheView& k, const CacheView& v, std::span<const float> query,
              Running& running) {
  const auto dim = static_cast<int32_t>(query.size());
  float score = 0;
  for (int32_t d = 0; d < dim; ++d) score += query[d] * k[d];
  const float maximum = std::max(running.maximum, score);
  const float shrink = Exp(running.maximum - maximum);
  const float weight = Exp(score - maximum);
  running.sum = running.sum * shrink + weight;
  running.maximum = maximum;
  const float rounded = Rounded(weight, v.bf16);
  for (int32_t d = 0; d < dim; ++d) {
    running.weighted[d] = running.weighted[d] * shrink + rounded * v[d];
  }
}

/// A query's state between the parts: weighted values, sum, maximum.
struct StateView {
  float* weighted;
  float& sum;
  float& maximum;
};
StateView StateAt(float* states, int32_t head_dim, int32_t query) {
  float* state = states + query * AttentionStateFloats(head_dim);
  return {state, state[PaddedDim(head_dim)], state[PaddedDim(head_dim) + kTileRows]};
}

/// Tokens [first, last) of the query's own.
void AttendQuery(const AttentionArgs& args, const float* query, TileRange tokens, StateView state) {
  const AttentionShape shape = ShapeOf(args);
  std::array<float, kMaxHeadDim> scaled;
  for (int32_t d = 0; d < shape.head_dim; ++d) {
    scaled[d] = Rounded(query[d] * args.scale, shape.bf16);
  }
  std::fill_n(state.weighted, shape.head_dim, 0.0f);
  Running running{.weighted = state.weighted};
  const size_t row_bytes = size_t(shape.head_dim) * (shape.bf16 ? 2 : 4);
  for (int32_t token = tokens.first; token < tokens.last; ++token) {
    const std::byte* row =
        args.blocks[token / shape.block_tokens] + token % shape.block_tokens * row_bytes;
    AddToken({row + shape.k_offset, shape.bf16}, {row + shape.v_offset, shape.bf16},
             {scaled.data(), size_t(shape.head_dim)}, running);
  }
  state.sum = running.sum;
  state.maximum = running.maximum;
}

void AttentionPart(const AttentionArgs& args, int32_t part, float* states) {
  const int32_t dim = args.layout->head_dim;
  for (int32_t row = 0; row < args.num_rows; ++row) {
    const int32_t first = part * kPartTokens;
    const int32_t last = std::min(first + kPartTokens, args.first_position + row + 1);
    for (int32_t head = 0; head < args.group; ++head) {
      AttendQuery(args, args.query + size_t(row) * args.query_stride + size_t(head) * dim,
                  {first, last}, StateAt(states, dim, row * args.group + head));
    }
  }
}

void Join(StateView here, int32_t dim, StateView total) {
  const float maximum = std::max(total.maximum, here.maximum);
  const float shrink = Exp(total.maximum - maximum);
  const float weight = Exp(here.maximum - maximum);
  total.sum = total.sum * shrink + here.sum * weight;
  total.maximum = maximum;
  for (int32_t d = 0; d < dim; ++d) {
    total.weighted[d] = total.weighted[d] * shrink + here.weighted[d] * weight;
  }
}

void Finish(const AttentionArgs& args, int32_t row, int32_t head, StateView state) {
  const int32_t dim = args.layout->head_dim;
  float* out = args.out + size_t(row) * args.out_stride + size_t(head) * dim;
  for (int32_t d = 0; d < dim; ++d) out[d] = state.weighted[d] / state.sum;
}

void JoinParts(const AttentionArgs& args, int32_t parts, float* states) {
  const int32_t dim = args.layout->head_dim;
  const int32_t queries = args.num_rows * args.group;
  for (int32_t query = 0; query < queries; ++query) {
    const StateView total = StateAt(states, dim, query);
    for (int32_t part = 1; part < parts; ++part) {
      Join(StateAt(states, dim, part * queries + query), dim, total);
    }
    Finish(args, query / args.group, query % args.group, total);
  }
}

void Attention(const AttentionArgs& args) {
  const int32_t dim = args.layout->head_dim;
  std::array<float, 2 * (kMaxHeadDim + 32)> states;
  const StateView total = StateAt(states.data(), dim, 0);
  const StateView later = StateAt(states.data(), dim, 1);
  for (int32_t row = 0; row < args.num_rows; ++row) {
    const int32_t tokens = args.first_position + row + 1;
    for (int32_t head = 0; head < args.group; ++head) {
      const float* query = args.query + size_t(row) * args.query_stride + size_t(head) * dim;
      for (int32_t first = 0; first < tokens; first += kPartTokens) {
        const StateView state = first == 0 ? total : later;
        AttendQuery(args, query, {first, std::min(first + kPartTokens, tokens)}, state);
        if (first > 0) Join(later, dim, total);
      }
      Finish(args, row, head, total);
    }
  }
}

void StoreKv(const float* values, int32_t head_dim, KvDtype dtype, std::byte* destination) {
  if (dtype == KvDtype::kFp32) {
    std::memcpy(destination, values, size_t(head_dim) * sizeof(float));
    return;
  }
  for (int32_t d = 0; d < head_dim; ++d) {
    const uint16_t bits = FloatToBf16(values[d]);
    std::memcpy(destination + size_t(d) * 2, &bits, sizeof(bits));
  }
}

constexpr Ops kOps = {"portable", "portable", Quantise,      Matmul,    RmsNorm, SiluMul,
                      Rotate,     Attention,  AttentionPart, JoinParts, StoreKv};

}  // namespace

const Ops* portable_ops() { return &kOps; }

}  // namespace pdserve::engine
