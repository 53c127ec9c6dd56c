#include "engine/gguf.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/mapped_file.h"
#include "tests/testing/files.h"

namespace pdserve::engine {
namespace {

using pdserve::testing::ReadFile;
using pdserve::testing::TestData;

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Writes GGUF field by field.
class Writer {
 public:
  Writer(uint64_t tensors, uint64_t pairs) {
    text_ = "GGUF";
    Put<uint32_t>(3).Put(tensors).Put(pairs);
  }
  template <typename T>
  Writer& Put(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  Writer& String(const std::string& text) {
    Put<uint64_t>(text.size());
    text_ += text;
    return *this;
  }
  Writer& Tensor(const std::string& name, uint64_t cols, uint32_t type, uint64_t offset) {
    return String(name).Put<uint32_t>(1).Put(cols).Put(type).Put(offset);
  }
  std::string WithData(size_t size_bytes) {
    text_.resize((text_.size() + 31) / 32 * 32);
    return text_ + std::string(size_bytes, '\1');
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string Fault(const std::string& bytes) {
  return std::string(Gguf::Parse(Bytes(bytes)).status().message());
}

TEST(GgufTest, ReadsMetadataAndTensors) {
  const std::string file = ReadFile(TestData("bad/good.gguf"));
  const auto gguf = Gguf::Parse(Bytes(file));
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ(gguf->String("general.architecture").value(), "llama");
  EXPECT_EQ(gguf->Integer("llama.embedding_length").value(), 16);
  EXPECT_EQ(gguf->Real("llama.rope.freq_base").value(), 10000.0);
  EXPECT_EQ(gguf->Strings("tokenizer.ggml.merges").value()[1], "t h");
  EXPECT_EQ(gguf->Integers("tokenizer.ggml.token_type").value()[1], 3);
  const Tensor* tensor = gguf->FindTensor("blk.0.ffn_down.weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->cols(), 32u);
  EXPECT_EQ(tensor->rows(), 16u);
  EXPECT_EQ(tensor->bytes.size(), 32u * 16 * 4);
  EXPECT_EQ(tensor->bytes.data() + tensor->bytes.size(), Bytes(file).data() + file.size());
}

TEST(GgufTest, KnowsTheSizesOfAllTensorTypes) {
  const std::string file = ReadFile(TestData("gguf/types/all_types.gguf"));
  const auto gguf = Gguf::Parse(Bytes(file));
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ(gguf->tensors().size(), 26u);
  for (const Tensor& tensor : gguf->tensors()) {
    EXPECT_EQ(tensor.name, "t." + std::string(tensor.type->name));
  }
}

TEST(GgufTest, MissingKeysAreNamedOrReplaced) {
  const std::string file = Writer(0, 0).text();
  const auto gguf = Gguf::Parse(Bytes(file));
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ(gguf->Integer("a.key").status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(gguf->Integer("a.key").status().message().find("a.key"), std::string::npos);
  EXPECT_EQ(gguf->Integer("a.key", 7).value(), 7);
}

TEST(GgufTest, ValuesOfAnotherTypeAreRefused) {
  const std::string file = Writer(0, 2)
                               .String("text")
                               .Put(GgufType::kString)
                               .String("x")
                               .String("large")
                               .Put(GgufType::kU64)
                               .Put<uint64_t>(~uint64_t{0})
                               .text();
  const auto gguf = Gguf::Parse(Bytes(file));
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_FALSE(gguf->Integer("text").ok());
  EXPECT_FALSE(gguf->Integer("text", 3).ok());
  EXPECT_FALSE(gguf->Strings("text").ok());
  EXPECT_FALSE(gguf->Integer("large").ok());
}

TEST(GgufTest, NeighbouringTensorsMayTouchButNotOverlap) {
  EXPECT_EQ(Fault(Writer(2, 0).Tensor("a", 8, 0, 0).Tensor("b", 8, 0, 32).WithData(64)), "");
  EXPECT_NE(Fault(Writer(2, 0).Tensor("a", 9, 0, 0).Tensor("b", 8, 0, 32).WithData(64)), "");
}

TEST(GgufTest, TensorsEndInsideTheFile) {
  EXPECT_EQ(Fault(Writer(1, 0).Tensor("a", 16, 0, 0).WithData(64)), "");
  EXPECT_NE(Fault(Writer(1, 0).Tensor("a", 16, 0, 0).WithData(63)), "");
  EXPECT_NE(Fault(Writer(1, 0).Tensor("a", 16, 0, ~uint64_t{31}).WithData(64)), "");
}

TEST(GgufTest, RemovedTypesAreRefusedByNumber) {
  const std::string fault = Fault(Writer(1, 0).Tensor("a", 32, 4, 0).WithData(64));
  EXPECT_NE(fault.find("'a'"), std::string::npos) << fault;
  EXPECT_NE(fault.find("type 4"), std::string::npos) << fault;
}

TEST(GgufTest, EveryTruncationIsAnErrorOrDropsPadding) {
  const std::string file = ReadFile(TestData("bad/good.gguf"));
  for (size_t size = 0; size < file.size(); size += size < 1000 ? 1 : 97) {
    EXPECT_NE(Fault(file.substr(0, size)), "") << size;
  }
}

TEST(MappedFileTest, FoldersEmptyAndMissingFilesAreErrors) {
  EXPECT_FALSE(MappedFile::Open(TestData("bad")).ok());
  EXPECT_FALSE(MappedFile::Open(TestData("bad/empty.gguf")).ok());
  EXPECT_EQ(MappedFile::Open("/no/such/file").status().code(), absl::StatusCode::kNotFound);
}

TEST(MappedFileTest, AChangedFileIsNoticed) {
  const std::string path = ::testing::TempDir() + "mapped_file_test.bin";
  std::ofstream(path) << "some bytes";
  const auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->Unchanged().ok());
  std::ofstream(path, std::ios::app) << "more";
  EXPECT_FALSE((*file)->Unchanged().ok());
}

}  // namespace
}  // namespace pdserve::engine
