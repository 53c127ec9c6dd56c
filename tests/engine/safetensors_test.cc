#include "engine/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "tests/testing/files.h"

namespace pdserve::engine {
namespace {

using pdserve::testing::ReadFile;
using pdserve::testing::TestData;

absl::StatusOr<std::vector<Tensor>> Parse(const std::string& bytes) {
  return ParseSafetensors(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

std::string File(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  return bytes + header + std::string(data_bytes, 'x');
}

std::string Entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"t\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}}";
}

void ExpectFault(const std::string& header, size_t data_bytes, const char* words) {
  const auto tensors = Parse(File(header, data_bytes));
  EXPECT_EQ(tensors.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(tensors.status().message().find(words), std::string::npos) << tensors.status();
}

TEST(SafetensorsTest, TensorsAreViewsWithRowsInnermost) {
  const std::string bytes = ReadFile(TestData("hf/llama/model.safetensors"));
  const auto tensors = Parse(bytes);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->size(), 29u);
  const Tensor& first = tensors->front();
  EXPECT_EQ(first.name, "model.embed_tokens.weight");
  EXPECT_EQ(first.type->name, "BF16");
  EXPECT_EQ(first.cols(), 64u);
  EXPECT_EQ(first.rows(), 512u);
  EXPECT_EQ(first.bytes.size(), 512u * 64 * 2);
}

TEST(SafetensorsTest, AScalarIsOneValueAndManyDimensionsKeepTheirCount) {
  const auto scalar = Parse(File(Entry("F32", "[]", "[0,4]"), 4));
  ASSERT_TRUE(scalar.ok()) << scalar.status();
  EXPECT_EQ(scalar->front().cols(), 1u);
  const auto deep = Parse(File(Entry("U8", "[2,3,1,2,5]", "[0,60]"), 60));
  ASSERT_TRUE(deep.ok()) << deep.status();
  EXPECT_EQ(deep->front().num_dims, 5u);
  EXPECT_EQ(deep->front().cols(), 5u);
  EXPECT_EQ(deep->front().rows(), 12u);
}

TEST(SafetensorsTest, TypesThatAreNotReadKeepTheirNames) {
  for (const char* dtype : {"F8_E4M3", "F8_E8M0", "U8", "BOOL"}) {
    const auto tensors = Parse(File(Entry(dtype, "[8]", "[0,8]"), 8));
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    EXPECT_EQ(tensors->front().type->name, dtype);
    EXPECT_FALSE(tensors->front().type->packing.has_value());
  }
  EXPECT_TRUE(Parse(File(Entry("F4", "[8]", "[0,4]"), 4)).ok());
}

TEST(SafetensorsTest, FaultsAreNamed) {
  ExpectFault(Entry("F4", "[3]", "[0,2]"), 2, "no whole bytes");
  ExpectFault(Entry("F32", "[0]", "[0,0]"), 0, "is 0");
  ExpectFault(Entry("F32", "[1.5]", "[0,4]"), 4, "not whole");
  ExpectFault(Entry("F32", "[1]", "[0]"), 4, "malformed");
  ExpectFault(Entry("F32", "[1]", "[0,4,8]"), 8, "malformed");
  ExpectFault(Entry("F32", "[[1]]", "[0,4]"), 4, "malformed");
  ExpectFault(Entry("F32", "[18446744073709551616]", "[0,4]"), 4, "too large");
  ExpectFault("{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1}}", 4,
              "malformed");
  ExpectFault("{\"t\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "no dtype");
  ExpectFault("{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "no shape");
  ExpectFault("{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "no data_offsets");
  ExpectFault("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__");
  ExpectFault("{\"t\":1}", 0, "not an object of objects");
  ExpectFault("{} {}", 0, "not JSON");
}

TEST(SafetensorsTest, EveryCutOfAGoodFileIsRefused) {
  const std::string bytes = ReadFile(TestData("bad/st-good/model.safetensors"));
  ASSERT_TRUE(Parse(bytes).ok());
  for (size_t size = 0; size < bytes.size(); size += 97) {
    EXPECT_FALSE(Parse(bytes.substr(0, size)).ok()) << size;
  }
}

}  // namespace
}  // namespace pdserve::engine
