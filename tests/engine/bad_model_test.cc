// Every malformed file does what its entry in the manifest asks for, when loaded as a model.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cctype>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/model.h"
#include "tests/engine/model_runner.h"
#include "tests/testing/files.h"
#include "text/text.h"

namespace pdserve::engine {
namespace {

using pdserve::testing::ReadFile;
using pdserve::testing::TestData;
using Json = nlohmann::json;

absl::StatusOr<std::unique_ptr<Model>> Load(const std::string& path) {
  ModelOptions options;
  options.path = path;
  options.threads = 1;
  options.max_rows = 16;
  return LoadModel(options);
}

int64_t PeakKilobytes() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

class BadModelTest : public ::testing::TestWithParam<Json> {};

TEST_P(BadModelTest, EndsAsTheManifestSays) {
  const std::string name = GetParam()["path"];
  const std::string expect = GetParam()["expect"];
  const std::string path = TestData("bad/" + name);
  const int64_t before = PeakKilobytes();
  auto model = Load(path);
  if (model.ok()) {  // what the text layer refuses isn't served either
    const auto text = text::Text::Load((*model)->card().text_spec);
    if (!text.ok()) model = text.status();
  }
  EXPECT_LT(PeakKilobytes() - before, 64 << 10) << "kilobytes";
  if (expect != "no-crash") {
    EXPECT_EQ(model.ok(), expect == "loads") << GetParam()["wrong"] << "; " << model.status();
  }
  if (model.ok()) return;
  const std::string fault(model.status().message());
  EXPECT_EQ(fault.find('\n'), std::string::npos) << fault;
  const size_t named = fault.find(path + ": ") == 0 ? path.size() - name.size() : 0;
  EXPECT_TRUE(named > 0 || GetParam()["wrong"].get<std::string>().find("tokenizer") == 0) << fault;
  EXPECT_GT(fault.size(), named + name.size() + 10) << fault;
  std::printf("%s\n", fault.c_str() + named);
}

std::vector<Json> Entries() {
  return Json::parse(ReadFile(TestData("bad/manifest.json")))["files"].get<std::vector<Json>>();
}

INSTANTIATE_TEST_SUITE_P(Files, BadModelTest, ::testing::ValuesIn(Entries()), [](const auto& info) {
  std::string name = info.param["path"];
  for (char& c : name) c = std::isalnum(c) ? c : '_';
  return name;
});

TEST(GoodModelTest, TheFileThatTheBadOnesComeFromComputes) {
  const auto model = Load(TestData("bad/good.gguf"));
  ASSERT_TRUE(model.ok()) << model.status();
  testing::ModelRunner runner(**model, 1, 8);
  const std::vector<float> logits =
      runner.Feed(0, testing::Tokens(std::vector<uint32_t>{1, 5, 9}), 8);
  for (const float logit : logits) EXPECT_TRUE(std::isfinite(logit));
}

TEST(UnreadTypeTest, ErrorsNameTheTensorAndItsType) {
  std::string bytes = ReadFile(TestData("bad/good.gguf"));
  const size_t name = bytes.find("output_norm.weight");
  ASSERT_NE(name, std::string::npos);
  bytes[name + 18 + 4 + 8] = 26;  // I32: as large as F32
  const std::string path = ::testing::TempDir() + "unread_type.gguf";
  std::ofstream(path, std::ios::binary) << bytes;
  const std::string fault(Load(path).status().message());
  EXPECT_NE(fault.find("output_norm.weight"), std::string::npos) << fault;
  EXPECT_NE(fault.find("I32"), std::string::npos) << fault;
}

}  // namespace
}  // namespace pdserve::engine
