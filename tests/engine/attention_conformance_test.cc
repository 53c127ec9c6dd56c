// Attention of every kernel table against plain sums in double precision, and its independence from
// chunks and neighbours.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "engine/ops.h"
#include "tests/engine/ops_testing.h"

namespace pdserve::engine {
namespace {

constexpr int32_t kLayer = 1;
constexpr int32_t kKvHead = 1;

struct Shape {
  int32_t head_dim;
  int32_t group;
  int32_t tokens;
  int32_t block_tokens;
  KvDtype dtype;
};

/// A cache with scattered blocks, and a query for every token.
struct Scene {
  Shape shape;
  CacheLayout layout;
  std::vector<std::byte> pool;
  std::vector<const std::byte*> blocks;
  std::vector<float> query;  // [token][group][head_dim]

  Scene(std::mt19937& random, const Ops& ops, const Shape& s) : shape(s) {
    layout = {2, 2, s.head_dim, s.block_tokens, s.dtype};
    const int32_t count = layout.blocks_for(s.tokens);
    // All ones is NaN in both types: whoever looks beyond the last token finds out.
    pool.resize(layout.block_bytes() * count, std::byte{0xff});
    for (int32_t i = 0; i < count; ++i) {
      blocks.push_back(&pool[layout.block_bytes() * ((i * 7 + 3) % count)]);
    }
    if (count % 7 == 0) {  // then the stride above does not reach all
      for (int32_t i = 0; i < count; ++i) blocks[i] = &pool[layout.block_bytes() * (count - 1 - i)];
    }
    for (int32_t token = 0; token < s.tokens; ++token) {
      const auto key = RandomFloats(random, s.head_dim);
      const auto value = RandomFloats(random, s.head_dim);
      ops.store_kv(key.data(), s.head_dim, s.dtype, At(token, layout.k_offset(kLayer, kKvHead)));
      ops.store_kv(value.data(), s.head_dim, s.dtype, At(token, layout.v_offset(kLayer, kKvHead)));
    }
    query = RandomFloats(random, row_floats() * s.tokens);
  }

  size_t row_floats() const { return size_t(shape.group) * shape.head_dim; }

  std::byte* At(int32_t token, size_t offset) {
    std::byte* block = const_cast<std::byte*>(blocks[token / shape.block_tokens]);
    return block + offset +
           size_t(token % shape.block_tokens) * shape.head_dim * layout.element_bytes();
  }

  double Cached(int32_t token, int32_t dim, size_t offset) {
    const std::byte* at = At(token, offset) + dim * layout.element_bytes();
    if (shape.dtype == KvDtype::kFp32) {
      float value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return Bf16ToFloat(bits);
  }

  AttentionArgs Args(int32_t first, int32_t rows, float* out) const {
    AttentionArgs args;
    args.layout = &layout;
    args.layer = kLayer;
    args.kv_head = kKvHead;
    args.group = shape.group;
    args.num_rows = rows;
    args.first_position = first;
    args.query = &query[row_floats() * first];
    args.query_stride = static_cast<int32_t>(row_floats());
    args.scale = 0.3f;
    args.blocks = blocks.data();
    args.out = out;
    args.out_stride = static_cast<int32_t>(row_floats());
    return args;
  }

  /// Rows [first, first + rows) in chunks of `chunk` rows.
  std::vector<float> Attend(const Ops& ops, int32_t first, int32_t rows, int32_t chunk) const {
    std::vector<float> out(row_floats() * rows, 3.0f);
    for (int32_t row = 0; row < rows; row += chunk) {
      ops.attention(Args(first + row, std::min(chunk, rows - row), &out[row_floats() * row]));
    }
    return out;
  }

  struct Exact {
    std::vector<double> out;
    std::vector<double> doubt;  // what rounding the weights to bf16 may move
  };

  /// The query as the kernels see it.
  double Scaled(int32_t token, int32_t head, int32_t dim) const {
    const float scaled = query[row_floats() * token + size_t(head) * shape.head_dim + dim] * 0.3f;
    return shape.dtype == KvDtype::kBf16 ? Bf16ToFloat(FloatToBf16(scaled)) : scaled;
  }

  Exact Expect(int32_t token, int32_t head) {
    std::vector<double> weights;
    double maximum = -1e300;
    for (int32_t t = 0; t <= token; ++t) {
      double dot = 0;
      for (int32_t d = 0; d < shape.head_dim; ++d) {
        dot += Scaled(token, head, d) * Cached(t, d, layout.k_offset(kLayer, kKvHead));
      }
      weights.push_back(dot);
      maximum = std::max(maximum, dot);
    }
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp(weight - maximum);
    Exact exact{std::vector<double>(shape.head_dim), std::vector<double>(shape.head_dim)};
    for (int32_t t = 0; t <= token; ++t) {
      for (int32_t d = 0; d < shape.head_dim; ++d) {
        const double part = weights[t] / sum * Cached(t, d, layout.v_offset(kLayer, kKvHead));
        exact.out[d] += part;
        if (shape.dtype == KvDtype::kBf16) exact.doubt[d] += std::abs(part) / 256;
      }
    }
    return exact;
  }
};

const Shape kShapes[] = {
    {64, 3, 70, 32, KvDtype::kBf16},   {64, 3, 33, 32, KvDtype::kFp32},
    {128, 4, 40, 32, KvDtype::kBf16},  {80, 1, 65, 16, KvDtype::kBf16},
    {100, 2, 50, 32, KvDtype::kBf16},  {20, 5, 50, 64, KvDtype::kFp32},
    {16, 49, 35, 8, KvDtype::kBf16},   {256, 8, 34, 48, KvDtype::kFp32},
    {36, 100, 9, 32, KvDtype::kBf16},  {64, 3, 530, 32, KvDtype::kBf16},
    {34, 1, 1100, 24, KvDtype::kFp32},
};
// Those with more tokens than a part holds.
const std::span<const Shape> kLongShapes = std::span(kShapes).last(2);

class AttentionTest : public ::testing::TestWithParam<const Ops*> {
 protected:
  const Ops& ops() const { return *GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(All, AttentionTest, ::testing::ValuesIn(RunnableOps()),
                         [](const auto& test) { return std::string(test.param->name); });

TEST_P(AttentionTest, EqualsTheExactSumsWithinRounding) {
  std::mt19937 random = SeededRandom(31);
  for (const Shape& shape : kShapes) {
    Scene scene(random, ops(), shape);
    const std::vector<float> out = scene.Attend(ops(), 0, shape.tokens, shape.tokens);
    for (int32_t token = 0; token < shape.tokens; token += token < 70 ? 1 : 37) {
      for (int32_t head = 0; head < shape.group; ++head) {
        const Scene::Exact exact = scene.Expect(token, head);
        const size_t at = scene.row_floats() * token + size_t(head) * shape.head_dim;
        for (int32_t d = 0; d < shape.head_dim; ++d) {
          ASSERT_NEAR(out[at + d], exact.out[d], 2e-5 + exact.doubt[d])
              << "dim " << shape.head_dim << " token " << token << " head " << head;
        }
      }
    }
  }
}

TEST_P(AttentionTest, DoesNotDependOnChunks) {
  std::mt19937 random = SeededRandom(32);
  for (const Shape& shape : kShapes) {
    const Scene scene(random, ops(), shape);
    const std::vector<float> whole = scene.Attend(ops(), 0, shape.tokens, shape.tokens);
    for (const int32_t chunk : {1, 2, 3, 7, 16, 31, 33}) {
      EXPECT_TRUE(SameBits(whole, scene.Attend(ops(), 0, shape.tokens, chunk)))
          << "dim " << shape.head_dim << " chunk " << chunk;
    }
  }
}

TEST_P(AttentionTest, LaterTokensThatAreNotNumbersDoNoHarm) {
  std::mt19937 random = SeededRandom(33);
  Scene scene(random, ops(), kShapes[0]);
  const std::vector<float> before = scene.Attend(ops(), 0, 40, 40);
  const std::vector<float> bad(64, std::numeric_limits<float>::quiet_NaN());
  for (int32_t token = 40; token < 70; ++token) {
    for (const size_t offset :
         {scene.layout.k_offset(kLayer, kKvHead), scene.layout.v_offset(kLayer, kKvHead)}) {
      ops().store_kv(bad.data(), 64, KvDtype::kBf16, scene.At(token, offset));
    }
  }
  EXPECT_TRUE(SameBits(before, scene.Attend(ops(), 0, 40, 40)));
  const std::vector<float> all = scene.Attend(ops(), 0, 70, 70);
  EXPECT_EQ(std::memcmp(all.data(), before.data(), before.size() * sizeof(float)), 0);
}

TEST_P(AttentionTest, LargeScoresGiveTheWinnersValue) {
  std::mt19937 random = SeededRandom(34);
  Scene scene(random, ops(), kShapes[0]);
  for (float& value : scene.query) value *= 1e4f;
  for (const float value : scene.Attend(ops(), 0, 70, 70)) EXPECT_TRUE(std::isfinite(value));
  const std::vector<double> exact = scene.Expect(69, 2).out;
  const std::vector<float> last = scene.Attend(ops(), 69, 1, 1);
  for (int32_t d = 0; d < 64; ++d) EXPECT_NEAR(last[128 + d], exact[d], 1e-5);
}

TEST_P(AttentionTest, PartsJoinedAreTheWhole) {
  std::mt19937 random = SeededRandom(36);
  for (const Shape& shape : kLongShapes) {
    const Scene scene(random, ops(), shape);
    const int32_t first = shape.tokens - 3;
    std::vector<float> out(scene.row_floats() * 3);
    const AttentionArgs args = scene.Args(first, 3, out.data());
    const int32_t parts = (shape.tokens + kPartTokens - 1) / kPartTokens;
    const size_t part_floats = 3 * shape.group * AttentionStateFloats(shape.head_dim);
    std::vector<float> states(parts * part_floats, 5.0f);
    for (int32_t part = parts - 1; part >= 0; --part) {
      ops().attention_part(args, part, &states[part * part_floats]);
    }
    ops().join_parts(args, parts, states.data());
    EXPECT_TRUE(SameBits(out, scene.Attend(ops(), first, 3, 3))) << shape.head_dim;
  }
}

// As for products (ops_conformance_test.cc): one name, the same bits on every processor.
TEST_P(AttentionTest, NameOfTheNumericsStandsForItsBits) {
  if (ops().numerics != "lanes16") return;
  std::mt19937 random = SeededRandom(36);
  uint64_t digest = 0;
  for (const Shape& shape : kShapes) {
    const Scene scene(random, ops(), shape);
    digest = Digest(scene.Attend(ops(), 0, shape.tokens, 7), digest);
  }
  EXPECT_EQ(digest, 10198967769221405181u);
}

TEST(AttentionConformance, TablesOfEqualNumericsGiveEqualBits) {
  for (const Ops* a : RunnableOps()) {
    for (const Ops* b : RunnableOps()) {
      if (a == b || a->numerics != b->numerics) continue;
      std::mt19937 random = SeededRandom(35);
      for (const Shape& shape : kShapes) {
        const Scene scene(random, *a, shape);
        EXPECT_TRUE(SameBits(scene.Attend(*a, 0, shape.tokens, shape.tokens),
                             scene.Attend(*b, 0, shape.tokens, 5)));
      }
    }
  }
}

}  // namespace
}  // namespace pdserve::engine
