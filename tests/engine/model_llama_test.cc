// The llama architecture on a tiny model whose tensors have mixed types: the recorded float32
// results, and that a row's result depends on nothing but its own sequence.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/ops.h"
#include "tests/engine/model_runner.h"
#include "tests/testing/files.h"

namespace pdserve::engine::testing {
namespace {

using pdserve::testing::ReadFile;
using pdserve::testing::RealModelPath;
using pdserve::testing::TestData;
using Json = nlohmann::json;

ModelOptions Tiny(const std::string& isa, const std::string& activations, int32_t threads = 2) {
  ModelOptions options;
  options.path = TestData("gguf/tiny-llama.gguf");
  options.isa = isa;
  options.activations = activations;
  options.threads = threads;
  options.max_rows = 128;
  return options;
}

std::vector<std::string> RunnableIsas() {
  std::vector<std::string> names;
  for (const OpsVariant& variant : AllOps()) {
    if (variant.ops != nullptr) names.emplace_back(variant.name);
  }
  return names;
}

std::vector<TokenId> SomeTokens(size_t count, uint32_t vocab_size) {
  std::vector<TokenId> tokens;
  for (uint32_t i = 0; i < count; ++i) tokens.push_back({(i * 7919 + 13) % vocab_size});
  return tokens;
}

std::vector<float> DecodeFloats(const Json& json) {
  std::string bytes;
  EXPECT_TRUE(absl::Base64Unescape(json["b64"].get<std::string>(), &bytes));
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

std::vector<Json> Prompts() {
  return Json::parse(ReadFile(TestData("gguf/reference.json")))["prompts"].get<std::vector<Json>>();
}

class TinyLlamaTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Isas, TinyLlamaTest, ::testing::ValuesIn(RunnableIsas()),
                         [](const auto& info) { return info.param; });

TEST_P(TinyLlamaTest, Fp32LogitsEqualTheRecordedOnes) {
  const auto model = MustLoad(Tiny(GetParam(), "fp32"));
  for (const Json& prompt : Prompts()) {
    const auto tokens = Tokens(prompt["ids"].get<std::vector<uint32_t>>());
    const std::vector<float> wanted = DecodeFloats(prompt["logits"]);
    ModelRunner runner(*model, 1, 128);
    std::vector<float> logits = runner.FeedAll(0, tokens, 16);
    ASSERT_GE(logits.size(), wanted.size());
    logits.erase(logits.begin(), logits.end() - wanted.size());  // all positions, or the last
    for (size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(logits[i], wanted[i], 1e-3) << i;
  }
}

TEST_P(TinyLlamaTest, Fp32GreedyTokensEqualTheRecordedOnes) {
  const auto model = MustLoad(Tiny(GetParam(), "fp32"));
  for (const Json& prompt : Prompts()) {
    const auto wanted = prompt["greedy"]["ids"].get<std::vector<uint32_t>>();
    ModelRunner runner(*model, 1, 128);
    std::vector<float> logits =
        runner.Feed(0, Tokens(prompt["ids"].get<std::vector<uint32_t>>()), 128);
    for (const uint32_t token : wanted) {  // the closest margin is 0.0056
      ASSERT_EQ(ArgMax(logits), token);
      logits = runner.Step({{0, {{token}}}});
    }
  }
}

class InvarianceTest
    : public ::testing::TestWithParam<std::tuple<std::string, std::string, std::string>> {
 protected:
  std::unique_ptr<Model> Load(int32_t threads) const {
    const auto& [isa, activations, kv_dtype] = GetParam();
    ModelOptions options = Tiny(isa, activations, threads);
    options.kv_dtype = kv_dtype;
    return MustLoad(options);
  }
};
INSTANTIATE_TEST_SUITE_P(Kinds, InvarianceTest,
                         ::testing::Combine(::testing::ValuesIn(RunnableIsas()),
                                            ::testing::Values("int8", "fp32"),
                                            ::testing::Values("bf16", "fp32")),
                         [](const auto& info) {
                           return std::get<0>(info.param) + "_" + std::get<1>(info.param) + "_" +
                                  std::get<2>(info.param);
                         });

TEST_P(InvarianceTest, ChunksOfAnySizeGiveTheSameBits) {
  const auto model = Load(2);
  const auto tokens = SomeTokens(101, model->card().vocab_size);
  ModelRunner whole(*model, 1, 128);
  const std::vector<float> logits = whole.FeedAll(0, tokens, 101);
  for (const int32_t chunk : {1, 7, 8, 9, 32, 40}) {
    ModelRunner runner(*model, 1, 128);
    EXPECT_EQ(runner.FeedAll(0, tokens, chunk), logits) << chunk;
  }
}

TEST_P(InvarianceTest, AnyNumberOfThreadsGivesTheSameBits) {
  const auto single = Load(1);
  const auto tokens = SomeTokens(70, single->card().vocab_size);
  ModelRunner runner(*single, 1, 96);
  const std::vector<float> logits = runner.FeedAll(0, tokens, 70);
  for (const int32_t threads : {2, 3, 5}) {
    const auto model = Load(threads);
    for (const int32_t chunk : {5, 70}) {
      ModelRunner other(*model, 1, 96);
      EXPECT_EQ(other.FeedAll(0, tokens, chunk), logits) << threads << " " << chunk;
    }
  }
}

TEST_P(InvarianceTest, CompanyInTheBatchChangesNothing) {
  const auto model = Load(2);
  const uint32_t vocab = model->card().vocab_size;
  const auto tokens = SomeTokens(60, vocab);
  ModelRunner alone(*model, 1, 96);
  const std::vector<float> wanted = alone.FeedAll(0, tokens, 60);
  // Sequence 2 is fed one token at a time, between prompts of others in chunks of changing size.
  ModelRunner mixed(*model, 4, 96);
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<TokenId> company(1 + i % 3, {uint32_t(i * 31) % vocab});
    if (i >= 30) company.resize(1);
    const auto logits = mixed.Step({{0, company}, {2, {tokens[i]}}, {3, {{uint32_t(i) % vocab}}}});
    ASSERT_TRUE(
        std::equal(logits.begin() + vocab, logits.begin() + 2 * vocab, wanted.begin() + i * vocab))
        << i;
  }
}

TEST_P(InvarianceTest, TwoLoopsThatShareAModelGetWhatEachGetsAlone) {
  const auto model = Load(2);
  const auto tokens = SomeTokens(40, model->card().vocab_size);
  ModelRunner alone(*model, 1, 64);
  const std::vector<float> wanted = alone.FeedAll(0, tokens, 4);
  std::vector<std::vector<float>> results(2);
  std::vector<std::thread> loops;
  for (std::vector<float>& result : results) {
    loops.emplace_back([&] {
      ModelRunner runner(*model, 1, 64);
      result = runner.FeedAll(0, tokens, 4);
    });
  }
  for (std::thread& loop : loops) loop.join();
  EXPECT_EQ(results[0], wanted);
  EXPECT_EQ(results[1], wanted);
}

TEST(RealModelTest, ChunksThreadsAndCompanyGiveTheSameBits) {
  ModelOptions options;
  options.path = RealModelPath();
  options.threads = 2;
  const auto two = MustLoad(options);
  options.threads = 3;
  const auto three = MustLoad(options);
  const uint32_t vocab = two->card().vocab_size;
  const auto tokens = SomeTokens(75, vocab);
  ModelRunner whole(*two, 1, 96);
  const std::vector<float> wanted = whole.Feed(0, tokens, 75);
  for (const int32_t chunk : {7, 32}) {
    ModelRunner runner(*three, 1, 96);
    EXPECT_EQ(runner.Feed(0, tokens, chunk), wanted) << chunk;
  }
  ModelRunner mixed(*two, 2, 96);
  mixed.Step({{0, {tokens.begin(), tokens.begin() + 74}}});
  std::vector<float> logits = mixed.Step({{1, SomeTokens(40, vocab)}, {0, {tokens[74]}}});
  logits.erase(logits.begin(), logits.begin() + vocab);
  EXPECT_EQ(logits, wanted);
}

TEST(ModelCardTest, SaysWhatTheFileSays) {
  const auto model = MustLoad(Tiny("auto", "int8"));
  const ModelCard& card = model->card();
  EXPECT_EQ(card.name, "tiny-llama");
  EXPECT_EQ(card.architecture, "llama");
  EXPECT_EQ(card.vocab_size, 512);
  EXPECT_EQ(card.max_context_tokens, 512);
  EXPECT_EQ(card.end_tokens, (std::vector<TokenId>{{2}}));
  EXPECT_EQ(card.cache_layout.dtype, KvDtype::kBf16);
  EXPECT_EQ(card.cache_layout.head_dim, 16);
  EXPECT_EQ(Json::parse(card.text_spec)["tokens"].size(), 512u);
}

TEST(ModelCardTest, WhatDecidesOverResultsChangesTheFingerprint) {
  const auto model = MustLoad(Tiny("auto", "int8"));
  EXPECT_EQ(MustLoad(Tiny("auto", "int8", 3))->card().fingerprint, model->card().fingerprint);
  EXPECT_NE(MustLoad(Tiny("auto", "fp32"))->card().fingerprint, model->card().fingerprint);
  ModelOptions options = Tiny("auto", "int8");
  options.kv_dtype = "fp32";
  EXPECT_NE(MustLoad(options)->card().fingerprint, model->card().fingerprint);
  std::string bytes = ReadFile(options.path);
  bytes.back() ^= 1;
  options = Tiny("auto", "int8");
  options.path = ::testing::TempDir() + "fingerprint_test.gguf";
  std::ofstream(options.path, std::ios::binary) << bytes;
  EXPECT_NE(MustLoad(options)->card().fingerprint, model->card().fingerprint);
}

TEST(LoadModelTest, WrongOptionsAreNamed) {
  ModelOptions options = Tiny("auto", "int8");
  options.max_context_tokens = 513;
  EXPECT_FALSE(LoadModel(options).ok());
  options = Tiny("auto", "int4");
  EXPECT_NE(LoadModel(options).status().message().find("int4"), std::string::npos);
  options = Tiny("mmx", "int8");
  EXPECT_NE(LoadModel(options).status().message().find("mmx"), std::string::npos);
}

}  // namespace
}  // namespace pdserve::engine::testing
