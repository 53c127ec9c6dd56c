// Every kernel table against the contract in engine/ops.h and against the portable twin.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/ops.h"
#include "tests/engine/ops_testing.h"

namespace pdserve::engine {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kSome = 25488;  // of a block's squares, below which it is fine
constexpr Packing kPackings[] = {Packing::kU4, Packing::kU8, Packing::kBf16, Packing::kFp32};

struct Case {
  Packing packing;
  int32_t rows;
  int32_t cols;
  bool int8;
};

std::vector<Case> ProductCases() {
  std::vector<Case> cases;
  for (const Packing packing : kPackings) {
    for (const bool int8 : {false, true}) {
      for (const auto& [rows, cols] :
           {std::pair{1, 32}, {16, 64}, {17, 576}, {50, 64}, {40, 1536}, {33, 2080}}) {
        cases.push_back({packing, rows, cols, int8});
      }
    }
  }
  cases.push_back({Packing::kBf16, 20, 37, false});
  cases.push_back({Packing::kFp32, 20, 301, false});
  return cases;
}

/// The table of functions under test.
class OpsTest : public ::testing::TestWithParam<const Ops*> {
 protected:
  const Ops& ops() const { return *GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(All, OpsTest, ::testing::ValuesIn(RunnableOps()),
                         [](const auto& test) { return std::string(test.param->name); });

float Rounded(float value) { return Bf16ToFloat(FloatToBf16(value)); }

/// Some blocks of every row have a value far above the others.
std::vector<float> FloatsWithPeaks(std::mt19937& random, size_t count) {
  std::vector<float> values = RandomFloats(random, count);
  for (size_t at = 0; at < count; at += 1 + random() % 150) values[at] *= 40;
  return values;
}

/// Sums of |w x| bound the rounding of a product in any order.
void ExpectProduct(const TestMatrix& w, const TestActivations& x, bool int8,
                   const std::vector<float>& out) {
  const bool quantised =
      int8 && (w.packed.packing == Packing::kU4 || w.packed.packing == Packing::kU8);
  const bool pairs = int8 && w.packed.packing == Packing::kBf16;
  for (int32_t r = 0; r < x.rows; ++r) {
    for (int32_t n = 0; n < w.packed.rows; ++n) {
      double sum = 0;
      double magnitude = 0;
      for (int32_t k = 0; k < x.cols; ++k) {
        const size_t at = size_t(r) * x.cols + k;
        const double value = quantised ? x.Quantised(r, k)
                             : pairs   ? Rounded(x.values[at])
                                       : x.values[at];
        sum += value * w.plain[size_t(n) * x.cols + k];
        magnitude += std::abs(value * w.plain[size_t(n) * x.cols + k]);
      }
      // A quantised block's two terms, scale and minimum, may each be larger than their sum.
      const double bound = magnitude * (quantised ? 4e-5 : 1e-5) + 1e-6;
      ASSERT_NEAR(out[size_t(r) * w.packed.rows + n], sum, bound) << "row " << r << " n " << n;
    }
  }
}

TEST_P(OpsTest, ProductEqualsTheExactSumWithinRounding) {
  std::mt19937 random = SeededRandom(11);
  for (const Case& c : ProductCases()) {
    SCOPED_TRACE(::testing::Message()
                 << int(c.packing) << " " << c.rows << "x" << c.cols << " " << c.int8);
    const TestMatrix w(random, c.packing, c.rows, c.cols);
    const TestActivations x(ops(), FloatsWithPeaks(random, size_t(19) * c.cols), c.cols, kSome);
    ExpectProduct(w, x, c.int8, Multiply(ops(), w.packed, x.View(c.int8)));
  }
}

TEST_P(OpsTest, RowOfAProductDoesNotDependOnItsCompany) {
  std::mt19937 random = SeededRandom(12);
  for (const Case& c : ProductCases()) {
    const TestMatrix w(random, c.packing, c.rows, c.cols);
    const TestActivations x(ops(), FloatsWithPeaks(random, size_t(33) * c.cols), c.cols, kSome);
    const std::vector<float> all = Multiply(ops(), w.packed, x.View(c.int8));
    for (const int32_t count : {1, 2, 3, 7, 8, 9, 15, 16, 17}) {
      for (int32_t first = 0; first + count <= 33; first += count) {
        const TestActivations some = x.Part(ops(), first, count, kSome);
        const auto part = Multiply(ops(), w.packed, some.View(c.int8));
        ASSERT_EQ(std::memcmp(part.data(), &all[size_t(first) * c.rows], part.size() * 4), 0)
            << int(c.packing) << " " << c.rows << "x" << c.cols << " rows " << count;
      }
    }
  }
}

TEST_P(OpsTest, RowOfAProductDoesNotDependOnTheTileSplit) {
  std::mt19937 random = SeededRandom(13);
  for (const Packing packing : kPackings) {
    const TestMatrix w(random, packing, 1000, 64);
    const TestActivations x(ops(), RandomFloats(random, size_t(5) * 64), 64);
    const std::vector<float> whole = Multiply(ops(), w.packed, x.View(true));
    std::vector<float> split(whole.size());
    for (int32_t tile = 0, step = 1; tile < w.packed.tiles(); tile += step, ++step) {
      const int32_t last = std::min(tile + step, w.packed.tiles());
      ops().matmul(w.packed, x.View(true), {tile, last}, {split.data(), 1000, false});
    }
    EXPECT_TRUE(SameBits(whole, split));
  }
}

TEST_P(OpsTest, ProductWritesNothingBeyondItsTilesAndRows) {
  std::mt19937 random = SeededRandom(14);
  const TestMatrix w(random, Packing::kU4, 40, 64);
  const TestActivations x(ops(), RandomFloats(random, size_t(3) * 64), 64);
  std::vector<float> out(3 * 50, 5.0f);
  ops().matmul(w.packed, x.View(true), {1, 3}, {out.data(), 50, false});
  for (int32_t at = 0; at < 150; ++at) {
    const bool mine = at % 50 >= 16 && at % 50 < 40;
    EXPECT_EQ(out[at] == 5.0f, !mine) << at;
  }
}

TEST_P(OpsTest, AddingProductIsTheProductPlusWhatWasThere) {
  std::mt19937 random = SeededRandom(15);
  for (const Packing packing : kPackings) {
    const TestMatrix w(random, packing, 40, 96);
    const TestActivations x(ops(), RandomFloats(random, size_t(9) * 96), 96);
    std::vector<float> out = RandomFloats(random, 9 * 40);
    const std::vector<float> product = Multiply(ops(), w.packed, x.View(true));
    std::vector<float> expected(out);
    for (size_t at = 0; at < out.size(); ++at) expected[at] += product[at];
    ops().matmul(w.packed, x.View(true), {0, w.packed.tiles()}, {out.data(), 40, true});
    EXPECT_TRUE(SameBits(out, expected));
  }
}

TEST_P(OpsTest, LargestQuantisedProductIsExact) {
  const int32_t cols = 64;
  for (const Packing packing : {Packing::kU4, Packing::kU8}) {
    for (const float sign : {1.0f, -1.0f}) {
      const uint8_t top = packing == Packing::kU4 ? 15 : 255;
      const std::vector<uint8_t> q(kTileRows * cols, top);
      const std::vector<float> scale(kTileRows * 2, 1.0f);
      const std::vector<float> minimum(kTileRows * 2, 0.0f);
      alignas(64) std::byte tile[2048];
      PackQuantisedTile(packing, cols, {q.data(), scale.data(), minimum.data()}, tile);
      const TestActivations x(ops(), std::vector<float>(cols, sign * 127.0f), cols);
      const PackedMatrix w{packing, kTileRows, cols, tile};
      const float weight = packing == Packing::kU4 ? 15 : 127;
      for (const float value : Multiply(ops(), w, x.View(true))) {
        EXPECT_EQ(value, sign * weight * 127 * cols);
      }
    }
  }
}

TEST_P(OpsTest, QuantiseRoundsToTheNearestOf127Steps) {
  std::mt19937 random = SeededRandom(16);
  for (const float size : {1e-20f, 1.0f, 3e5f, 1e37f}) {
    const TestActivations x(ops(), RandomFloats(random, 576, size), 576);
    for (int32_t col = 0; col < 576; col += kBlockCols) {
      const QuantisedRows block = x.BlockOf(0, col);
      int32_t sum = 0;
      for (int32_t k = 0; k < kBlockCols; ++k) {
        EXPECT_LE(std::abs(block.q[k]), 127);
        EXPECT_LE(std::abs(x.values[col + k] - block.q[k] * *block.scale), 0.50001f * *block.scale);
        sum += block.q[k];
      }
      EXPECT_EQ(*block.sum, *block.scale * sum);
      EXPECT_EQ(*block.fine, 0);
    }
  }
}

TEST_P(OpsTest, BlockWithAPeakIsFineAndHas256TimesAsManySteps) {
  std::mt19937 random = SeededRandom(22);
  for (const float size : {1e-20f, 1.0f, 3e5f, 1e37f}) {
    std::vector<float> values = RandomFloats(random, 64, size);
    values[5] = 30 * size;
    const TestActivations x(ops(), values, 64, kSome);
    const QuantisedRows block = x.BlockOf(0, 0);
    EXPECT_EQ(*block.fine, 1);
    EXPECT_EQ(*x.BlockOf(0, 32).fine, 0);
    int32_t sum = 0;
    for (int32_t k = 0; k < 32; ++k) {
      // A rest of half a step, or 128 / 256, has no place but 127.
      EXPECT_NEAR(x.Quantised(0, k), values[k], 1.001 * *block.scale / 256);
      sum += 256 * block.q[k] + block.rest[k];
    }
    EXPECT_EQ(*block.sum, *block.scale * (static_cast<float>(sum) / 256));
  }
}

TEST_P(OpsTest, QuantiseRoundsHalfToEven) {
  std::vector<float> values(32, 0.0f);
  values[0] = 127;  // scale 1
  values[1] = 0.5f;
  values[2] = 1.5f;
  values[3] = -2.5f;
  const TestActivations x(ops(), values, 32);
  EXPECT_EQ(x.q[1], 0);
  EXPECT_EQ(x.q[2], 2);
  EXPECT_EQ(x.q[3], -2);
}

TEST_P(OpsTest, QuantisedZeroBlockIsZero) {
  for (const float value : {0.0f, -0.0f, 1e-40f, 1e-31f}) {
    const TestActivations x(ops(), std::vector<float>(32, value), 32);
    EXPECT_EQ(x.scale[0], 0);
    EXPECT_EQ(x.sum[0], 0);
    EXPECT_TRUE(std::all_of(&x.q[0], &x.q[32], [](int8_t q) { return q == 0; }));
  }
}

TEST_P(OpsTest, QuantisedBlockThatIsNotFiniteIsNan) {
  for (const float value : {kNan, -kNan, kInfinity, -kInfinity}) {
    std::vector<float> values(96, 1.0f);
    values[40] = value;
    const TestActivations x(ops(), values, 96);
    const QuantisedRows block = x.BlockOf(0, 32);
    EXPECT_TRUE(std::isnan(*block.scale) && std::isnan(*block.sum));
    EXPECT_TRUE(std::all_of(block.q, block.q + 32, [](int8_t q) { return q == 0; }));
    EXPECT_EQ(x.BlockOf(0, 0).q[0], 127);
    EXPECT_EQ(x.BlockOf(0, 64).q[31], 127);
  }
}

TEST_P(OpsTest, RmsNormEqualsItsFormula) {
  std::mt19937 random = SeededRandom(17);
  for (const int32_t n : {1, 7, 16, 33, 576}) {
    const std::vector<float> x = RandomFloats(random, n, 30);
    const std::vector<float> weight = RandomFloats(random, n);
    std::vector<float> out(n);
    ops().rms_norm(x.data(), weight.data(), 1e-5f, n, out.data());
    double squares = 0;
    for (const float value : x) squares += double{value} * value;
    for (int32_t k = 0; k < n; ++k) {
      const double expected = x[k] / std::sqrt(squares / n + 1e-5) * weight[k];
      EXPECT_NEAR(out[k], expected, std::abs(expected) * 1e-5 + 1e-12);
    }
  }
}

TEST_P(OpsTest, SiluMulEqualsItsFormula) {
  std::vector<float> gate;
  for (float x = -120; x < 120; x += 0.37f) gate.push_back(x);
  gate.push_back(0);
  const std::vector<float> up(gate.size(), 3.0f);
  std::vector<float> out(gate.size());
  ops().silu_mul(gate.data(), up.data(), static_cast<int32_t>(gate.size()), out.data());
  for (size_t k = 0; k < gate.size(); ++k) {
    const double expected = 3.0 * gate[k] / (1 + std::exp(-double{gate[k]}));
    EXPECT_NEAR(out[k], expected, std::abs(expected) * 2e-6 + 1e-35) << gate[k];
  }
}

TEST_P(OpsTest, RotateTurnsPairsAndNothingElse) {
  std::mt19937 random = SeededRandom(23);
  for (const int32_t n : {2, 6, 16, 30, 64, 80}) {
    const std::vector<float> cosine = RandomFloats(random, n);
    const std::vector<float> sine = RandomFloats(random, n);
    const std::vector<float> before = RandomFloats(random, n + 1);
    std::vector<float> x = before;
    ops().rotate(cosine.data(), sine.data(), n, x.data());
    for (int32_t k = 0; k < n; ++k) {
      EXPECT_NEAR(x[k], double{before[k]} * cosine[k] + double{before[k ^ 1]} * sine[k], 1e-5);
    }
    EXPECT_EQ(x[n], before[n]);
  }
}

TEST_P(OpsTest, SiluMulKeepsNan) {
  const float gate[] = {kNan, 1, 2};
  const float up[] = {1, 1, kNan};
  float out[3];
  ops().silu_mul(gate, up, 3, out);
  EXPECT_TRUE(std::isnan(out[0]) && !std::isnan(out[1]) && std::isnan(out[2]));
}

TEST_P(OpsTest, StoredKeyIsTheNearestBfloat16) {
  std::mt19937 random = SeededRandom(18);
  std::vector<float> values = RandomFloats(random, 77);
  values[0] = kNan;
  values[1] = -kInfinity;
  values[2] = std::numeric_limits<float>::max();
  values[3] = -0.0f;
  std::vector<uint16_t> stored(78, 0xabcd);
  ops().store_kv(values.data(), 77, KvDtype::kBf16, reinterpret_cast<std::byte*>(stored.data()));
  for (int32_t k = 0; k < 77; ++k) EXPECT_EQ(stored[k], FloatToBf16(values[k])) << k;
  EXPECT_EQ(stored[77], 0xabcd);
  std::vector<float> plain(77);
  ops().store_kv(values.data(), 77, KvDtype::kFp32, reinterpret_cast<std::byte*>(plain.data()));
  EXPECT_TRUE(SameBits(plain, values));
}

TEST(OpsConformance, UnpackedRowsAreWhatWasPacked) {
  std::mt19937 random = SeededRandom(19);
  for (const Packing packing : kPackings) {
    for (const int32_t cols : {32, 576, 1536}) {
      const TestMatrix w(random, packing, 40, cols);
      std::vector<float> values(w.plain.size());
      for (int32_t row = 0; row < 40; ++row) UnpackRow(w.packed, row, &values[size_t(row) * cols]);
      EXPECT_TRUE(std::equal(&values[0], &values[size_t(40) * cols], w.plain.begin()));
    }
  }
}

// Nodes of equal numerics work together, so the name stands for the same bits on every processor:
// whoever means to change them gives the tables a new name.
TEST_P(OpsTest, NameOfTheNumericsStandsForItsBits) {
  if (ops().numerics != "lanes16") return;
  std::mt19937 random = SeededRandom(21);
  uint64_t digest = 0;
  for (const Case& c : ProductCases()) {
    const TestMatrix w(random, c.packing, c.rows, c.cols);
    const TestActivations x(ops(), FloatsWithPeaks(random, size_t(9) * c.cols), c.cols, kSome);
    digest = Digest(Multiply(ops(), w.packed, x.View(c.int8)), digest);
    std::vector<float> out(c.cols);
    ops().rms_norm(x.values.data(), w.plain.data(), 1e-5f, c.cols, out.data());
    digest = Digest(out, digest);
    ops().silu_mul(x.values.data(), w.plain.data(), c.cols, out.data());
    digest = Digest(out, digest);
  }
  EXPECT_EQ(digest, 18048288429207378297u);
}

TEST(OpsConformance, TablesOfEqualNumericsGiveEqualBits) {
  const std::vector<const Ops*> all = RunnableOps();
  for (const Ops* a : all) {
    for (const Ops* b : all) {
      if (a == b || a->numerics != b->numerics) continue;
      std::mt19937 random = SeededRandom(20);
      for (const Case& c : ProductCases()) {
        const TestMatrix w(random, c.packing, c.rows, c.cols);
        const std::vector<float> values = FloatsWithPeaks(random, size_t(21) * c.cols);
        const TestActivations xa(*a, values, c.cols, kSome);
        const TestActivations xb(*b, values, c.cols, kSome);
        EXPECT_TRUE(xa.q == xb.q && xa.rest == xb.rest && xa.fine == xb.fine);
        EXPECT_TRUE(SameBits(xa.scale, xb.scale) && SameBits(xa.sum, xb.sum));
        EXPECT_TRUE(SameBits(Multiply(*a, w.packed, xa.View(c.int8)),
                             Multiply(*b, w.packed, xb.View(c.int8))));
      }
      for (const int32_t n : {5, 16, 100, 576}) {
        const std::vector<float> x = RandomFloats(random, n, 20);
        const std::vector<float> y = RandomFloats(random, n);
        std::vector<float> from_a(n);
        std::vector<float> from_b(n);
        a->rms_norm(x.data(), y.data(), 1e-5f, n, from_a.data());
        b->rms_norm(x.data(), y.data(), 1e-5f, n, from_b.data());
        EXPECT_TRUE(SameBits(from_a, from_b));
        a->silu_mul(x.data(), y.data(), n, from_a.data());
        b->silu_mul(x.data(), y.data(), n, from_b.data());
        EXPECT_TRUE(SameBits(from_a, from_b));
        a->rotate(x.data(), y.data(), n / 2 * 2, from_a.data());
        b->rotate(x.data(), y.data(), n / 2 * 2, from_b.data());
        EXPECT_TRUE(SameBits(from_a, from_b));
      }
    }
  }
}

TEST(OpsConformance, PortableQuantisesAsTheOthers) {
  std::mt19937 random = SeededRandom(21);
  const std::vector<float> values = FloatsWithPeaks(random, 3200);
  const TestActivations portable(*RunnableOps().front(), values, 3200, kSome);
  for (const Ops* ops : RunnableOps()) {
    const TestActivations x(*ops, values, 3200, kSome);
    EXPECT_EQ(x.q, portable.q) << ops->name;
    EXPECT_TRUE(x.rest == portable.rest && x.fine == portable.fine) << ops->name;
    EXPECT_TRUE(SameBits(x.scale, portable.scale) && SameBits(x.sum, portable.sum)) << ops->name;
  }
}

TEST(OpsConformance, AutoFindsTheLastTableThatRuns) {
  ASSERT_TRUE(FindOps("auto").ok());
  EXPECT_EQ(*FindOps("auto"), RunnableOps().back());
  EXPECT_EQ((*FindOps("portable"))->name, "portable");
}

TEST(OpsConformance, UnknownTableIsNotFoundAndTheMessageNamesTheOthers) {
  const absl::Status status = FindOps("sse9").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(status.message()).find("portable"), std::string::npos);
}

}  // namespace
}  // namespace pdserve::engine
