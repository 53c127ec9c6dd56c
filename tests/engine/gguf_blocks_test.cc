#include "engine/gguf_blocks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "engine/gguf.h"
#include "tests/testing/files.h"

namespace pdserve::engine {
namespace {

using pdserve::testing::ReadFile;
using pdserve::testing::TestData;

constexpr int32_t kRows = 8;
constexpr int32_t kCols = 512;

class GgufBlocksTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    file_ = ReadFile(TestData("gguf/types/all_types.gguf"));
    auto gguf = Gguf::Parse(std::as_bytes(std::span(file_.data(), file_.size())));
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    tensor_ = *gguf->FindTensor(std::string("t.") + GetParam());
  }

  std::vector<float> Recorded() const {
    const std::string bytes = ReadFile(TestData(std::string("gguf/types/") + GetParam() + ".f32"));
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  std::vector<float> Unpacked() const {
    std::vector<float> values(kRows * kCols);
    const size_t row_bytes = tensor_.bytes.size() / kRows;
    for (int32_t row = 0; row < kRows; ++row) {
      const std::byte* from = tensor_.bytes.data() + row * row_bytes;
      float* to = values.data() + row * kCols;
      const Packing packing = *tensor_.type->packing;
      if (packing == Packing::kBf16 || packing == Packing::kFp32) {
        UnpackFloatRow(*tensor_.type, from, kCols, to);
        continue;
      }
      std::vector<uint8_t> q(kCols);
      std::vector<float> scale(kCols / kBlockCols);
      std::vector<float> minimum(kCols / kBlockCols);
      UnpackQuantisedRow(*tensor_.type, from, kCols, {q.data(), scale.data(), minimum.data()});
      for (int32_t k = 0; k < kCols; ++k) {
        to[k] = scale[k / kBlockCols] * float(q[k]) + minimum[k / kBlockCols];
      }
    }
    return values;
  }

  std::string file_;
  Tensor tensor_;
};

// Equal bits but for the sign of zero, which scale and minimum can't hold.
TEST_P(GgufBlocksTest, UnpacksTheRecordedValuesExactly) {
  const std::vector<float> recorded = Recorded();
  const std::vector<float> unpacked = Unpacked();
  ASSERT_EQ(recorded.size(), unpacked.size());
  for (size_t i = 0; i < recorded.size(); ++i) EXPECT_EQ(unpacked[i], recorded[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(Types, GgufBlocksTest,
                         ::testing::Values("F16", "BF16", "Q4_0", "Q4_1", "Q8_0"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TensorTypeTest, UnknownAndRemovedNumbersAreNotFound) {
  for (const uint32_t id : {4u, 5u, 31u, 33u, 36u, 38u, 41u, 1000u, ~0u}) {
    EXPECT_EQ(FindTensorType(id), nullptr) << id;
  }
}

TEST(TensorTypeTest, FloatsAreCopiedBitByBit) {
  const std::vector<float> values = {1.5f, -0.0f, 3e-42f, 7e37f};
  std::vector<float> out(values.size());
  UnpackFloatRow(*FindTensorType(0), reinterpret_cast<const std::byte*>(values.data()), 4,
                 out.data());
  EXPECT_EQ(std::memcmp(values.data(), out.data(), 16), 0);
}

}  // namespace
}  // namespace pdserve::engine
