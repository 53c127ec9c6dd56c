// A tokenizer.json with its chat template, against what its makers' own library gives.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/text/fixtures.h"

namespace pdserve::text {
namespace {

Json SpecOf(const std::string& model) {
  const std::string folder = testing::TestData("hf/" + model + "/");
  const Json config = Json::parse(testing::ReadFile(folder + "tokenizer_config.json"));
  return {{"kind", "hf"},
          {"vocab_size", 512},
          {"tokenizer", testing::ReadFile(folder + "tokenizer.json")},
          {"bos", config["bos_token"]},
          {"eos", config["eos_token"]},
          {"unk", nullptr},
          {"add_bos", config["add_bos_token"]},
          {"add_eos", nullptr},
          {"chat_template", config["chat_template"]}};
}

// The spec after changes to its tokenizer.json.
template <typename Change>
Json Changed(const std::string& model, Change change) {
  Json spec = SpecOf(model);
  Json tokenizer = Json::parse(spec["tokenizer"].get<std::string>());
  change(tokenizer);
  spec["tokenizer"] = tokenizer.dump();
  return spec;
}

// Our own splitting is used only where nothing is normalized; this normalizes nothing either.
Json ThroughTheFilesPipeline(const std::string& model) {
  return Changed(model, [](Json& tokenizer) {
    tokenizer["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  });
}

void ExpectTheRecordedIds(const Text& text, const std::string& model) {
  for (const Json& line : ReadLines("../hf/" + model + "/tokenizer.jsonl")) {
    const std::string input = line["text"];
    EXPECT_EQ(MustEncode(text, input, line["add_special"], line["parse_special"]),
              line["ids"].get<std::vector<uint32_t>>())
        << input;
  }
}

class HfTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Models, HfTest, ::testing::Values("llama", "qwen3"),
                         [](const auto& info) { return info.param; });

TEST_P(HfTest, EncodesEveryReferenceTextToItsIds) {
  ExpectTheRecordedIds(*MustLoad(SpecOf(GetParam()).dump()), GetParam());
}

TEST_P(HfTest, TheFilesOwnPipelineGivesTheSameIds) {
  ExpectTheRecordedIds(*MustLoad(ThroughTheFilesPipeline(GetParam()).dump()), GetParam());
}

TEST_P(HfTest, RendersAndEncodesEveryReferenceChatWithoutTools) {
  const auto text = MustLoad(SpecOf(GetParam()).dump());
  int num_chats = 0;
  for (const Json& line : ReadLines("../hf/" + GetParam() + "/chat.jsonl")) {
    if (!line["tools"].is_null() || line.contains("template_kwargs")) continue;
    ++num_chats;
    const std::string messages = line["messages"].dump();
    const auto rendered = text->RenderChat(messages, line["add_generation_prompt"]);
    ASSERT_TRUE(rendered.ok()) << rendered.status();
    EXPECT_EQ(*rendered, line["text"].get<std::string>());
    const auto ids = text->EncodeChat(messages, line["add_generation_prompt"]);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(Values(*ids), line["ids"].get<std::vector<uint32_t>>());
  }
  EXPECT_GE(num_chats, 6);
}

TEST_P(HfTest, TextsComeBackFromTheirIds) {
  const auto text = MustLoad(SpecOf(GetParam()).dump());
  for (const std::string input : {"Hello, world!", " 12345 \n\n\tx", "\u00e9\u4e2d\U0001f600"}) {
    EXPECT_EQ(Decode(*text, MustEncode(*text, input, false, false), false), input);
  }
}

TEST_P(HfTest, ControlTokensInATextStayText) {
  for (const Json& spec : {SpecOf(GetParam()), ThroughTheFilesPipeline(GetParam())}) {
    const auto text = MustLoad(spec.dump());
    const std::string input = "a" + spec["eos"].get<std::string>() + "b";
    for (const uint32_t id : MustEncode(*text, input, false, false)) EXPECT_GT(id, 6u);
    EXPECT_EQ(Decode(*text, MustEncode(*text, input, false, false), true), input);
  }
}

TEST(HfSpecTest, TokensBeyondTheTokenizersAreEmpty) {
  Json spec = SpecOf("llama");
  spec["vocab_size"] = 600;
  const auto text = MustLoad(spec.dump());
  EXPECT_EQ(text->vocab_size(), 600u);
  EXPECT_EQ(text->TokenBytes(TokenId{599}), "");
}

TEST(HfSpecTest, WhiteSpaceBesideATokenGoesWhereTheTokenTakesIt) {
  const Json spec = Changed("qwen3", [](Json& tokenizer) {
    tokenizer["added_tokens"][2]["rstrip"] = true;
    tokenizer["added_tokens"][2]["lstrip"] = true;
  });
  const auto text = MustLoad(spec.dump());
  const auto plain = MustLoad(SpecOf("qwen3").dump());
  EXPECT_EQ(MustEncode(*text, "a \n<|im_end|> \nb", false, true),
            MustEncode(*plain, "a<|im_end|>b", false, true));
}

TEST(HfSpecTest, SentencePieceTokensStandForTheirBytes) {
  const Json spec = Changed("qwen3", [](Json& tokenizer) {
    tokenizer["decoder"] = {
        {"type", "Sequence"},
        {"decoders",
         {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
          {{"type", "ByteFallback"}},
          {{"type", "Fuse"}}}}};
    tokenizer["model"]["vocab"]["\u2581a"] = 512;
    tokenizer["model"]["vocab"]["<0x0A>"] = 513;
  });
  Json larger = spec;
  larger["vocab_size"] = 514;
  const auto text = MustLoad(larger.dump());
  EXPECT_EQ(text->TokenBytes(TokenId{512}), " a");
  EXPECT_EQ(text->TokenBytes(TokenId{513}), "\n");
}

void ExpectFault(const Json& spec, const char* words) {
  const auto text = Text::Load(spec.dump());
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(text.status().message().find(words), std::string::npos) << text.status();
}

TEST(HfSpecTest, WhatCannotBeReadIsNamed) {
  ExpectFault(Changed("llama", [](Json& t) { t["model"]["type"] = "Gronk"; }), "Gronk");
  ExpectFault(Changed("llama", [](Json& t) { t["model"]["vocab"]["zz"] = 4000000000; }), "zz");
  ExpectFault(Changed("llama", [](Json& t) { t["decoder"] = {{"type", "CTC"}}; }),
              "tokenizer.json");
  ExpectFault(Changed("llama", [](Json& t) { t["decoder"] = nullptr; }), "decoder");
  ExpectFault(Changed("llama", [](Json& t) { t["added_tokens"][1]["single_word"] = true; }),
              "single_word");
  Json spec = SpecOf("llama");
  spec["tokenizer"] = "{";
  ExpectFault(spec, "tokenizer.json");
  spec["vocab_size"] = 0;
  ExpectFault(spec, "0 tokens");
}

}  // namespace
}  // namespace pdserve::text
