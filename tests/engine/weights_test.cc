#include "engine/weights.h"

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

class WeightsTest : public ::testing::Test {
 protected:
  WeightsTest()
      : file_(ReadFile(TestData("gguf/types/all_types.gguf"))),
        tensors_(TensorSet::Create(Convention::kGguf, ParseTensors()).value()),
        plan_(tensors_) {}

  std::vector<Tensor> ParseTensors() const {
    return Gguf::Parse(std::as_bytes(std::span(file_.data(), file_.size())))->TakeTensors();
  }

  std::string file_;
  TensorSet tensors_;
  WeightPlan plan_;
};

TEST_F(WeightsTest, PackedTilesUnpackToTheRecordedValues) {
  const std::vector<std::string> names = {"F16", "BF16", "Q4_0", "Q4_1", "Q8_0"};
  std::vector<PackedMatrix> matrices(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_TRUE(plan_.Matrix("t." + names[i], 8, 512, &matrices[i]).ok());
  }
  const auto team = Team::Create(2);
  const auto memory = plan_.Pack(*team);
  ASSERT_TRUE(memory.ok()) << memory.status();
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(matrices[i].data) % 64, 0u);
    std::vector<float> values(kTileRows * 512);
    for (int32_t row = 0; row < kTileRows; ++row) UnpackRow(matrices[i], row, &values[row * 512]);
    const std::string recorded = ReadFile(TestData("gguf/types/" + names[i] + ".f32"));
    for (size_t k = 0; k < 8 * 512; ++k) {
      float wanted;
      std::memcpy(&wanted, recorded.data() + 4 * k, 4);
      ASSERT_EQ(values[k], wanted) << names[i] << " " << k;
    }
    for (size_t k = 8 * 512; k < values.size(); ++k) ASSERT_EQ(values[k], 0.0f) << names[i];
  }
}

TEST_F(WeightsTest, AMissingTensorIsNamed) {
  PackedMatrix matrix;
  const absl::Status status = plan_.Matrix("t.none", 8, 512, &matrix);
  EXPECT_NE(status.message().find("t.none"), std::string::npos);
}

TEST_F(WeightsTest, AnotherShapeIsRefusedWithBoth) {
  PackedMatrix matrix;
  const absl::Status status = plan_.Matrix("t.F32", 512, 8, &matrix);
  EXPECT_NE(status.message().find("[512, 8], not [8, 512]"), std::string::npos) << status;
}

TEST_F(WeightsTest, ATypeThatIsNotReadIsNamed) {
  PackedMatrix matrix;
  const absl::Status status = plan_.Matrix("t.Q6_K", 8, 512, &matrix);
  EXPECT_NE(status.message().find("Q6_K"), std::string::npos) << status;
}

TEST_F(WeightsTest, ATensorThatNobodyAskedForIsNamed) {
  PackedMatrix matrix;
  ASSERT_TRUE(plan_.Matrix("t.F32", 8, 512, &matrix).ok());
  EXPECT_NE(plan_.CheckNothingLeft().message().find("t.F16"), std::string::npos);
}

}  // namespace
}  // namespace pdserve::engine
