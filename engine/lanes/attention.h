// Attention: the rows of a call a few at a time, part after part (part.h), and the parts joined.
// See rows.h for what L is.
#ifndef PDSERVE_ENGINE_LANES_ATTENTION_H_
#define PDSERVE_ENGINE_LANES_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "engine/lanes/part.h"
#include "engine/lanes/rows.h"
#include "engine/ops.h"
#include "engine/ops_layout.h"

namespace pdserve::engine {

inline constexpr int32_t kMaxState = kMaxHeadDim + 2 * kLanes;

template <class L>
struct Attender {
  using F = typename L::F;

  static void Attention(const AttentionArgs& args) {
    ForAllRows(args, [&](const AttentionShape& shape, const QueryRows& queries) {
      alignas(64) float states[kQueriesAtOnce * kMaxState];
      alignas(64) float later[kQueriesAtOnce * kMaxState];
      if (shape.bf16) return Parts<true>(args, shape, queries, states, later);
      Parts<false>(args, shape, queries, states, later);
    });
  }

  static void AttentionPart(const AttentionArgs& args, int32_t part, float* states) {
    ForAllRows(args, [&](const AttentionShape& shape, const QueryRows& queries) {
      float* out = states + (queries.row * args.group + queries.head) * StateFloats(shape);
      if (shape.bf16) return OnePart<true>(args, shape, queries, part, out);
      OnePart<false>(args, shape, queries, part, out);
    });
  }

  static void JoinParts(const AttentionArgs& args, int32_t parts, float* states) {
    const AttentionShape shape = ShapeOf(args);
    const size_t part_floats = size_t(args.num_rows) * args.group * StateFloats(shape);
    for (int32_t part = 1; part < parts; ++part) {
      Join(shape, args.num_rows * args.group, states + part * part_floats, states);
    }
    Finish(args, shape, {0, args.num_rows, 0, args.group, 0}, states);
  }

 private:
  static size_t StateFloats(const AttentionShape& shape) {
    return PaddedDim(shape.head_dim) + 2 * kLanes;
  }

  template <class Body>
  static void ForAllRows(const AttentionArgs& args, const Body& body) {
    const AttentionShape shape = ShapeOf(args);
    for (int32_t head = 0; head < args.group; head += kQueriesAtOnce) {
      const int32_t left = args.group - head;
      const int32_t heads = left < kQueriesAtOnce ? left : kQueriesAtOnce;
      const int32_t most = kQueriesAtOnce / args.group;
      const int32_t rows_at_once = most > 0 ? most : 1;
      for (int32_t row = 0; row < args.num_rows; row += rows_at_once) {
        const int32_t rows_left = args.num_rows - row;
        const int32_t rows = rows_left < rows_at_once ? rows_left : rows_at_once;
        body(shape, {row, rows, head, heads, args.first_position + row + 1});
      }
    }
  }

  template <bool bf16>
  static void Parts(const AttentionArgs& args, const AttentionShape& shape,
                    const QueryRows& queries, float* states, float* later) {
    PartAttender<L, bf16> attender(args, shape, queries);
    attender.AddPart(0, states);
    const int32_t tokens = queries.first_tokens + queries.rows - 1;
    for (int32_t part = 1; part * kPartTokens < tokens; ++part) {
      const int32_t blind = part * kPartTokens - queries.first_tokens + 1;
      const int32_t first = (blind > 0 ? blind : 0) * queries.heads;  // that sees any of it
      attender.AddPart(part, later);
      const size_t at = first * StateFloats(shape);
      Join(shape, queries.rows * queries.heads - first, later + at, states + at);
    }
    Finish(args, shape, queries, states);
  }

  template <bool bf16>
  static void OnePart(const AttentionArgs& args, const AttentionShape& shape,
                      const QueryRows& queries, int32_t part, float* states) {
    PartAttender<L, bf16>(args, shape, queries).AddPart(part, states);
  }

  /// Adds later parts' states to those before.
  static void Join(const AttentionShape& shape, int32_t count, const float* later, float* states) {
    const int32_t floats = PaddedDim(shape.head_dim) + kLanes;  // weighted values and sums
    for (int32_t i = 0; i < count; ++i) {
      const float before = states[floats];
      const float here = later[floats];
      const F maximum = L::Set(before > here ? before : here);
      const F shrink = Exp<L>(L::Sub(L::Set(before), maximum));
      const F weight = Exp<L>(L::Sub(L::Set(here), maximum));
      for (int32_t k = 0; k < floats; k += kLanes) {
        const F old = L::Mul(L::Load(states + k), shrink);
        L::Store(states + k, L::Fma(L::Load(later + k), weight, old));
      }
      states[floats] = L::First(maximum);
      states += floats + kLanes;
      later += floats + kLanes;
    }
  }

  static void Finish(const AttentionArgs& args, const AttentionShape& shape,
                     const QueryRows& queries, const float* states) {
    for (int32_t i = 0; i < queries.rows * queries.heads; ++i, states += StateFloats(shape)) {
      float* out = args.out + OffsetOf<L>(shape, queries, i, args.out_stride);
      const F sum = L::Set(L::Sum(L::Load(states + PaddedDim(shape.head_dim))));
      for (int32_t dim = 0; dim < shape.head_dim; dim += kLanes) {
        L::StorePart(out + dim, shape.head_dim - dim, L::Div(L::Load(states + dim), sum));
      }
    }
  }
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_LANES_ATTENTION_H_
