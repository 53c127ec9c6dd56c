// Which queries meet which span of cached tokens; span.h does each meeting. See rows.h
// for what L is.
#ifndef PDSERVE_ENGINE_LANES_ATTENTION_H_
#define PDSERVE_ENGINE_LANES_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "engine/lanes/rows.h"
#include "engine/lanes/span.h"
#include "engine/ops.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

inline constexpr int32_t kBlocksAhead = 2;  // how far ahead keys and values are fetched

template <class L>
struct Attender {
  using F = typename L::F;

  /// Queries of a few rows, all heads of a row next to each other: query i is row i / heads.
  struct Queries {
    const float* query[kQueriesAtOnce];
    float* out[kQueriesAtOnce];
    float maximum[kQueriesAtOnce];
    float sum[kQueriesAtOnce];
    int32_t count = 0;
    int32_t heads = 0;
    int32_t first_tokens = 0;  // tokens that the first row sees
  };

  struct Plain {
    alignas(64) float keys[kSpanTokens * kMaxHeadDim];
    alignas(64) float values[kSpanTokens * kMaxHeadDim];
  };

  static void Attention(const AttentionArgs& args) {
    const AttentionShape shape = ShapeOf(args);
    Plain plain;
    for (int32_t head = 0; head < args.group; head += kQueriesAtOnce) {
      const int32_t left = args.group - head;
      const int32_t heads = left < kQueriesAtOnce ? left : kQueriesAtOnce;
      const int32_t rows_at_once = kQueriesAtOnce / heads;
      for (int32_t row = 0; row < args.num_rows; row += rows_at_once) {
        const int32_t rows_left = args.num_rows - row;
        const int32_t rows = rows_left < rows_at_once ? rows_left : rows_at_once;
        Queries queries;
        queries.heads = heads;
        queries.first_tokens = args.first_position + row + 1;
        for (int32_t r = row; r < row + rows; ++r) {
          for (int32_t h = head; h < head + heads; ++h) Add(args, shape, r, h, queries);
        }
        Attend(args, shape, queries, plain);
      }
    }
  }

  static void Add(const AttentionArgs& args, const AttentionShape& shape, int32_t row, int32_t head,
                  Queries& queries) {
    const size_t at = size_t(head) * shape.head_dim;
    const int32_t i = queries.count++;
    queries.query[i] = args.query + size_t(row) * args.query_stride + at;
    queries.out[i] = args.out + size_t(row) * args.out_stride + at;
    queries.maximum[i] = -__builtin_inff();
    queries.sum[i] = 0;
    __builtin_memset(queries.out[i], 0, size_t(shape.head_dim) * sizeof(float));
  }

  static void Attend(const AttentionArgs& args, const AttentionShape& shape, Queries& queries,
                     Plain& plain) {
    const int32_t rows = queries.count / queries.heads;
    const int32_t tokens = queries.first_tokens + rows - 1;
    const int32_t blocks = (tokens + shape.block_tokens - 1) / shape.block_tokens;
    for (int32_t token = 0; token < tokens;) {
      const int32_t in_block = token % shape.block_tokens;
      int32_t count = shape.block_tokens - in_block;
      count = count < kSpanTokens ? count : kSpanTokens;
      count = count < tokens - token ? count : tokens - token;
      const int32_t at = token / shape.block_tokens;
      const std::byte* block = args.blocks[at] + in_block * RowBytes(shape);
      const std::byte* later = args.blocks[at + kBlocksAhead < blocks ? at + kBlocksAhead : at] +
                               in_block * RowBytes(shape);
      MeetBlock({count, shape.head_dim, args.scale}, shape, {block, later, token}, queries, plain);
      token += count;
    }
    for (int32_t i = 0; i < queries.count; ++i) Divide(queries.out[i], queries.sum[i], shape);
  }

  static size_t RowBytes(const AttentionShape& shape) {
    return size_t(shape.head_dim) * (shape.bf16 ? 2 : 4);
  }

  /// A cache block, and a later one, moved on to the span's first row; the span's first token.
  struct Place {
    const std::byte* block;
    const std::byte* later;
    int32_t token;
  };

  static void MeetBlock(const SpanShape& span, const AttentionShape& shape, const Place& place,
                        Queries& queries, Plain& plain) {
    const size_t stride = RowBytes(shape);
    const std::byte* keys = place.block + shape.k_offset;
    const std::byte* values = place.block + shape.v_offset;
    const bool whole = shape.head_dim % kLanes == 0;
    if (whole && shape.bf16 && queries.count <= kFewQueries) {
      Meet<SpanRows<L, false>>(span, {keys, stride, place.later + shape.k_offset},
                               {values, stride, place.later + shape.v_offset}, place.token,
                               queries);
    } else if (whole && !shape.bf16) {
      Meet<SpanRows<L, true>>(span, {keys, stride, keys}, {values, stride, values}, place.token,
                              queries);
    } else {
      const size_t padded = size_t(shape.head_dim + kLanes - 1) / kLanes * kLanes * 4;
      Convert(shape, span.tokens, keys, plain.keys);
      Convert(shape, span.tokens, values, plain.values);
      keys = reinterpret_cast<const std::byte*>(plain.keys);
      values = reinterpret_cast<const std::byte*>(plain.values);
      Meet<SpanRows<L, true>>(span, {keys, padded, keys}, {values, padded, values}, place.token,
                              queries);
    }
  }

  /// A span as floats, each token padded with zeros to whole lanes.
  static void Convert(const AttentionShape& shape, int32_t count, const std::byte* from,
                      float* to) {
    const int32_t bytes = shape.bf16 ? 2 : 4;
    for (int32_t token = 0; token < count; ++token, from += size_t(shape.head_dim) * bytes) {
      for (int32_t dim = 0; dim < shape.head_dim; dim += kLanes, to += kLanes) {
        const int32_t left = shape.head_dim - dim;
        alignas(64) std::byte part[kLanes * 4] = {};
        const std::byte* source = from + size_t(dim) * bytes;
        if (left < kLanes) {
          __builtin_memcpy(part, source, size_t(left) * bytes);
          source = part;
        }
        L::Store(
            to, shape.bf16 ? L::LoadBf16(source) : L::Load(reinterpret_cast<const float*>(source)));
      }
    }
  }

  /// All queries with one span. Those that see all of it go in tiles of any rows; a row that sees
  /// only its first tokens goes alone.
  template <class Rows>
  static void Meet(SpanShape span, const Rows& keys, const Rows& values, int32_t first_token,
                   Queries& queries) {
    const int32_t all = span.tokens;
    const int32_t rows = queries.count / queries.heads;
    for (int32_t row = 0; row < rows; ++row) {
      const int32_t sees = queries.first_tokens + row - first_token;
      if (sees <= 0) continue;
      const bool whole = sees >= all;
      span.tokens = whole ? all : sees;
      const int32_t end = (whole ? rows : row + 1) * queries.heads;
      for (int32_t i = row * queries.heads; i < end; i += kQueryTile) {
        const int32_t count = end - i < kQueryTile ? end - i : kQueryTile;
        QueryTile tile;
        for (int32_t q = 0; q < count; ++q) {
          tile.query[q] = queries.query[i + q];
          tile.out[q] = queries.out[i + q];
        }
        tile.maximum = queries.maximum + i;
        tile.sum = queries.sum + i;
        RunTile<Rows, kQueryTile>(count, span, keys, values, tile);
      }
      if (whole) return;
    }
  }

  template <class Rows, int Q>
  static void RunTile(int32_t count, const SpanShape& span, const Rows& keys, const Rows& values,
                      const QueryTile& tile) {
    if (count == Q) return SpanKernel<L, Rows, Q>::Run(span, keys, values, tile);
    if constexpr (Q > 1) RunTile<Rows, Q - 1>(count, span, keys, values, tile);
  }

  static void Divide(float* out, float sum, const AttentionShape& shape) {
    for (int32_t dim = 0; dim < shape.head_dim; dim += kLanes) {
      const int32_t left = shape.head_dim - dim;
      L::StorePart(out + dim, left, L::Div(L::LoadPart(out + dim, left), L::Set(sum)));
    }
  }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_ATTENTION_H_
