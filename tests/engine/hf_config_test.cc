// config.json as parameters, names of tensors, and what follows from them.
#include "engine/checkpoint/hf_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <string>

#include "engine/checkpoint/json_text.h"
#include "engine/checkpoint/names.h"
#include "engine/checkpoint/rotation.h"
#include "engine/weights.h"

namespace pdserve::engine {
namespace {

using Json = nlohmann::json;

Json Smallest() {
  return {{"model_type", "llama"}, {"hidden_size", 64}, {"num_attention_heads", 4}};
}

Parameters Read(const Json& config) {
  const auto read = ReadHfConfig(config);
  EXPECT_TRUE(read.ok()) << read.status();
  return read->parameters;
}

TEST(HfConfigTest, BothSpellingsOfTheRotationGiveTheSame) {
  Json old_way = Smallest();
  old_way["rope_theta"] = 50000.0;
  old_way["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  Json new_way = Smallest();
  new_way["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 50000.0}};
  const auto rotation = ReadRotation(Read(old_way), 16);
  ASSERT_TRUE(rotation.ok()) << rotation.status();
  EXPECT_EQ(*rotation, *ReadRotation(Read(new_way), 16));
  EXPECT_DOUBLE_EQ((*rotation)[1], std::pow(50000.0, -1.0 / 8) / 4);
}

TEST(HfConfigTest, TheDefaultRotationIsNotScaled) {
  Json config = Smallest();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 100.0}};
  const auto rotation = ReadRotation(Read(config), 4);
  ASSERT_TRUE(rotation.ok()) << rotation.status();
  EXPECT_DOUBLE_EQ((*rotation)[1], 0.1);
}

TEST(HfConfigTest, AWindowCountsUnlessItIsSwitchedOff) {
  Json config = Smallest();
  config["sliding_window"] = 16;
  EXPECT_FALSE(Read(config).Has("attention.sliding_window"));  // llama has none
  config["model_type"] = "mistral";
  EXPECT_TRUE(Read(config).Has("attention.sliding_window"));
  config["use_sliding_window"] = false;
  EXPECT_FALSE(Read(config).Has("attention.sliding_window"));
  config["use_sliding_window"] = true;
  config["sliding_window"] = nullptr;
  EXPECT_FALSE(Read(config).Has("attention.sliding_window"));
}

TEST(HfConfigTest, APartOfAHeadBecomesItsNumberOfValues) {
  Json config = Smallest();
  config["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(*Read(config).Integer("rope.dimension_count"), 8);
  config["partial_rotary_factor"] = -1;
  EXPECT_FALSE(ReadHfConfig(config).ok());
}

TEST(HfConfigTest, ErrorsSayWhatTheFileCallsIt) {
  const auto missing = Read(Smallest()).Integer("block_count");
  EXPECT_EQ(missing.status().message(), "config.json: 'num_hidden_layers' is missing");
}

TEST(RotationTest, Llama3ScalesLongWavesKeepsShortOnesAndBlendsBetween) {
  Json config = Smallest();
  config["rope_theta"] = 10000.0;
  config["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0},
                            {"original_max_position_embeddings", 64}};
  const auto rotation = ReadRotation(Read(config), 16);
  ASSERT_TRUE(rotation.ok()) << rotation.status();
  EXPECT_DOUBLE_EQ((*rotation)[0], 1.0);  // 10 turns in 64 tokens
  const double turns = 64 * std::pow(10000.0, -1.0 / 8) / (2 * std::numbers::pi);  // 3.2
  const double kept = (turns - 1) / 3;
  EXPECT_NEAR((*rotation)[1], std::pow(10000.0, -1.0 / 8) * (kept + (1 - kept) / 8), 1e-12);
  EXPECT_DOUBLE_EQ((*rotation)[7], std::pow(10000.0, -7.0 / 8) / 8);
}

TEST(HfNameTest, NamesAreTranslatedAndAnArchitecturesOwnRowsComeFirst) {
  EXPECT_EQ(HfName("token_embd.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(HfName("output.weight"), "lm_head.weight");
  EXPECT_EQ(HfName("blk.12.attn_q.bias"), "model.layers.12.self_attn.q_proj.bias");
  EXPECT_EQ(HfName("blk.0.ffn_norm.weight"), "model.layers.0.post_attention_layernorm.weight");
  const NameRow own[] = {{"ffn_norm", "pre_feedforward_layernorm"}};
  EXPECT_EQ(HfName("blk.0.ffn_norm.weight", own),
            "model.layers.0.pre_feedforward_layernorm.weight");
  EXPECT_EQ(HfName("rope_freqs.weight"), "rope_freqs.weight");
  EXPECT_EQ(HfName("blk."), "model.layers..");
}

TEST(HeadRowsTest, HalvesBecomeNeighboursAndTheRestStays) {
  const HeadRows whole = {4, 4};
  const HeadRows part = {6, 4};
  const int64_t wanted_whole[] = {0, 2, 1, 3, 4, 6, 5, 7};
  const int64_t wanted_part[] = {0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11};
  for (int64_t row = 0; row < 8; ++row) EXPECT_EQ(whole.InFile(row), wanted_whole[row]) << row;
  for (int64_t row = 0; row < 12; ++row) EXPECT_EQ(part.InFile(row), wanted_part[row]) << row;
  EXPECT_EQ(HeadRows{}.InFile(5), 5);
}

TEST(JsonTextTest, DepthIsLimitedButNotWithinTexts) {
  EXPECT_FALSE(
      ParseJsonObject("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}").ok());
  EXPECT_TRUE(ParseJsonObject("{\"a\":\"\\\"" + std::string(100, '[') + "\"}").ok());
  EXPECT_FALSE(ParseJsonObject("[]").ok());
  EXPECT_FALSE(ParseJsonObject("{\"a\":1").ok());
}

TEST(JsonTextTest, AFieldThatIsLeftOutIsCheckedAllTheSame) {
  const auto json = ParseJsonObject("{\"model\":{\"a\":[1]},\"b\":2}", "model");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ(json->dump(), "{\"b\":2}");
  EXPECT_FALSE(ParseJsonObject("{\"model\":{\"a\":[1},\"b\":2}", "model").ok());
}

}  // namespace
}  // namespace pdserve::engine
