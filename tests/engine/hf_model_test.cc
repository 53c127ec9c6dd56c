// Models in Hugging Face's form against the recorded float32 results of an independent computation.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/ops.h"
#include "tests/engine/model_runner.h"
#include "tests/testing/files.h"

namespace pdserve::engine::testing {
namespace {

namespace fs = std::filesystem;
using pdserve::testing::ReadFile;
using pdserve::testing::TestData;
using Json = nlohmann::json;

constexpr double kTolerance = 1e-3;
constexpr char kOnlyHere[] = "tokenizer.json";  // all checkpoints have this one's vocabulary size

// The checkpoint in a folder of its own that may be changed, with a tokenizer.
std::string Folder(const std::string& checkpoint, const std::string& name) {
  const fs::path folder = fs::path(::testing::TempDir()) / name;
  fs::remove_all(folder);
  fs::copy(TestData("hf/" + checkpoint), folder);
  if (!fs::exists(folder / kOnlyHere)) {
    fs::copy_file(TestData("hf/llama/" + std::string(kOnlyHere)), folder / kOnlyHere);
  }
  return folder;
}

ModelOptions Options(const std::string& path, const std::string& isa = "auto") {
  ModelOptions options;
  options.path = path;
  options.isa = isa;
  options.activations = "fp32";
  options.threads = 2;
  options.max_rows = 128;
  return options;
}

std::vector<float> DecodeFloats(const Json& json) {
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(json["b64"].get<std::string>(), &bytes));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<Json> Prompts(const std::string& checkpoint) {
  const std::string path = TestData("hf/" + checkpoint + "/reference.json");
  return Json::parse(ReadFile(path))["prompts"].get<std::vector<Json>>();
}

void ExpectTheRecordedLogits(Model& model, const Json& prompt) {
  const std::vector<float> wanted = DecodeFloats(prompt["logits"]);
  ModelRunner runner(model, 1, 128);
  std::vector<float> logits =
      runner.FeedAll(0, Tokens(prompt["ids"].get<std::vector<uint32_t>>()), 16);
  ASSERT_GE(logits.size(), wanted.size());
  logits.erase(logits.begin(), logits.end() - wanted.size());  // all positions, or the last
  for (size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(logits[i], wanted[i], kTolerance) << i;
}

void ExpectTheRecordedGreedyTokens(Model& model, const Json& prompt) {
  const auto wanted = prompt["greedy"]["ids"].get<std::vector<uint32_t>>();
  const auto margins = prompt["greedy"]["margin"].get<std::vector<double>>();
  ModelRunner runner(model, 1, 128);
  std::vector<float> logits =
      runner.Feed(0, Tokens(prompt["ids"].get<std::vector<uint32_t>>()), 128);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (ArgMax(logits) != wanted[i]) {
      ASSERT_LE(margins[i], 2 * kTolerance) << i;
      return;
    }
    logits = runner.Step({{0, {{wanted[i]}}}});
  }
}

std::vector<std::string> Isas() {
  std::vector<std::string> names;
  for (const OpsVariant& variant : AllOps()) {
    if (variant.ops != nullptr) names.emplace_back(variant.name);
  }
  return names;
}

class HfModelTest : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  static std::unique_ptr<Model> Load() {
    const auto& [checkpoint, isa] = GetParam();
    return MustLoad(Options(Folder(checkpoint, "hf_" + checkpoint + "_" + isa), isa));
  }
};
INSTANTIATE_TEST_SUITE_P(Checkpoints, HfModelTest,
                         ::testing::Combine(::testing::Values("llama", "llama-rope3"),
                                            ::testing::ValuesIn(Isas())),
                         [](const auto& info) {
                           std::string name =
                               std::get<0>(info.param) + "_" + std::get<1>(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(HfModelTest, Fp32LogitsEqualTheRecordedOnes) {
  const auto model = Load();
  for (const Json& prompt : Prompts(std::get<0>(GetParam()))) {
    ExpectTheRecordedLogits(*model, prompt);
  }
}

TEST_P(HfModelTest, Fp32GreedyTokensEqualTheRecordedOnes) {
  const auto model = Load();
  for (const Json& prompt : Prompts(std::get<0>(GetParam()))) {
    ExpectTheRecordedGreedyTokens(*model, prompt);
  }
}

Json ReadJson(const std::string& path) { return Json::parse(ReadFile(path)); }

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(HfFolderTest, TheNewerSpellingOfTheConfigGivesTheSameLogits) {
  const std::string folder = Folder("llama-rope3", "hf_newer_spelling");
  Json config = ReadJson(folder + "/config.json");
  config["rope_parameters"] = config["rope_scaling"];
  config["rope_parameters"]["rope_theta"] = config["rope_theta"];
  config["dtype"] = config["torch_dtype"];
  for (const char* name : {"rope_scaling", "rope_theta", "torch_dtype"}) config.erase(name);
  WriteText(folder + "/config.json", config.dump());
  const auto model = MustLoad(Options(folder));
  for (const Json& prompt : Prompts("llama-rope3")) ExpectTheRecordedLogits(*model, prompt);
}

// Splits the one weight file in two, by the tensors' order.
void Shard(const std::string& folder) {
  const std::string bytes = ReadFile(folder + "/model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const Json header = Json::parse(bytes.substr(8, length));
  Json heads[2];
  std::string data[2];
  Json index = {{"weight_map", Json::object()}};
  const std::string names[] = {"model-00001-of-00002.safetensors",
                               "model-00002-of-00002.safetensors"};
  size_t count = 0;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const size_t shard = count++ < header.size() / 2 ? 0 : 1;
    const size_t begin = entry["data_offsets"][0];
    const size_t end = entry["data_offsets"][1];
    heads[shard][name] = entry;
    heads[shard][name]["data_offsets"] = {data[shard].size(), data[shard].size() + end - begin};
    data[shard] += bytes.substr(8 + length + begin, end - begin);
    index["weight_map"][name] = names[shard];
  }
  for (size_t shard = 0; shard < 2; ++shard) {
    const std::string head = heads[shard].dump();
    const uint64_t head_bytes = head.size();
    std::string file(reinterpret_cast<const char*>(&head_bytes), 8);
    WriteText(folder + "/" + names[shard], file + head + data[shard]);
  }
  WriteText(folder + "/model.safetensors.index.json", index.dump());
  fs::remove(folder + "/model.safetensors");
}

TEST(HfFolderTest, ShardsGiveTheSameLogitsAsOneFile) {
  const std::string folder = Folder("llama", "hf_shards");
  Shard(folder);
  const auto model = MustLoad(Options(folder));
  for (const Json& prompt : Prompts("llama")) ExpectTheRecordedLogits(*model, prompt);
}

TEST(HfFolderTest, TheCardSaysWhatTheFilesSay) {
  const auto model = MustLoad(Options(Folder("llama", "hf_card")));
  const ModelCard& card = model->card();
  EXPECT_EQ(card.name, "hf_card");
  EXPECT_EQ(card.architecture, "llama");
  EXPECT_EQ(card.vocab_size, 512);
  EXPECT_EQ(card.max_context_tokens, 512);
  EXPECT_EQ(card.end_tokens, (std::vector<TokenId>{{2}}));
  const Json spec = Json::parse(card.text_spec);
  EXPECT_EQ(spec["kind"], "hf");
  EXPECT_EQ(spec["bos"], "<|begin_of_text|>");
  EXPECT_EQ(spec["eos"], "<|eot_id|>");
}

TEST(HfFolderTest, EveryFileOfTheFolderChangesTheFingerprint) {
  const std::string folder = Folder("llama", "hf_fingerprint");
  const Fingerprint before = MustLoad(Options(folder))->card().fingerprint;
  EXPECT_EQ(MustLoad(Options(folder))->card().fingerprint, before);
  for (const char* name : {"config.json", "tokenizer.json", "generation_config.json"}) {
    const std::string text = ReadFile(folder + "/" + name);
    WriteText(folder + "/" + name, text + " ");
    EXPECT_NE(MustLoad(Options(folder))->card().fingerprint, before) << name;
    WriteText(folder + "/" + name, text);
  }
  EXPECT_EQ(MustLoad(Options(folder))->card().fingerprint, before);
}

// What loading says after one field of a file was changed.
std::string FaultAfter(const std::string& file, const std::string& pointer, const Json& value) {
  const std::string folder = Folder("llama", "hf_fault");
  Json json = ReadJson(folder + "/" + file);
  json[Json::json_pointer(pointer)] = value;
  WriteText(folder + "/" + file, json.dump());
  const auto model = LoadModel(Options(folder));
  return model.ok() ? "loaded" : std::string(model.status().message());
}

TEST(HfFolderTest, WhatIsNotComputedIsRefusedWithItsName) {
  const auto expect = [](const std::string& fault, const char* words) {
    EXPECT_NE(fault.find(words), std::string::npos) << fault;
  };
  expect(FaultAfter("config.json", "/rope_scaling", {{"type", "wobbly"}, {"factor", 2.0}}),
         "wobbly");
  expect(FaultAfter("config.json", "/model_type", "gronk"), "gronk");
  expect(FaultAfter("config.json", "/hidden_act", "gelu"), "gelu");
  expect(FaultAfter("config.json", "/quantization_config", {{"quant_method", "awq"}}), "awq");
  expect(FaultAfter("config.json", "/architectures/0", "LlamaForTokenClassification"),
         "LlamaForTokenClassification");
  expect(FaultAfter("config.json", "/partial_rotary_factor", 0.5), "even length");
  expect(FaultAfter("config.json", "/tie_word_embeddings", false), "lm_head.weight");
  expect(FaultAfter("config.json", "/vocab_size", 0), "vocab_size");
  expect(FaultAfter("generation_config.json", "/eos_token_id", {2, 512}), "eos_token_id");
  expect(FaultAfter("tokenizer.json", "/added_tokens/0/id", 4000000), "added token");
}

TEST(HfFolderTest, ATypeThatIsNotReadIsRefusedWithItsName) {
  const std::string folder = Folder("llama", "hf_dtype");
  std::string bytes = ReadFile(folder + "/model.safetensors");
  const size_t at = bytes.find("\"BF16\",\"shape\":[512,64]");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 6, "\"I16\" ");
  WriteText(folder + "/model.safetensors", bytes);
  const std::string fault(LoadModel(Options(folder)).status().message());
  EXPECT_NE(fault.find("model.embed_tokens.weight"), std::string::npos) << fault;
  EXPECT_NE(fault.find("I16"), std::string::npos) << fault;
}

}  // namespace
}  // namespace pdserve::engine::testing
