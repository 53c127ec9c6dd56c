#include "engine/vocabulary.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/testing/files.h"

namespace pdserve::engine {
namespace {

using pdserve::testing::ReadFile;
using pdserve::testing::TestData;
using Json = nlohmann::json;

absl::StatusOr<Vocabulary> Read(const std::string& file) {
  auto gguf = Gguf::Parse(std::as_bytes(std::span(file.data(), file.size())));
  if (!gguf.ok()) return gguf.status();
  return ReadVocabulary(*gguf);
}

TEST(VocabularyTest, TheSpecHoldsWhatTheTextLayerNeeds) {
  const auto vocabulary = Read(ReadFile(TestData("gguf/tiny-llama.gguf")));
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  const Json spec = Json::parse(vocabulary->text_spec);
  EXPECT_EQ(spec["kind"], "gguf");
  EXPECT_EQ(spec["model"], "gpt2");
  EXPECT_EQ(spec["pre"], "llama-bpe");
  EXPECT_EQ(spec["tokens"][2], "<|eot_id|>");
  EXPECT_EQ(spec["token_types"][2], 3);
  EXPECT_EQ(spec["merges"][1], "h e");
  EXPECT_EQ(spec["add_bos"], true);
  EXPECT_TRUE(spec["add_eos"].is_null());
  EXPECT_EQ(spec["bos"], 1);
  EXPECT_TRUE(spec["unk"].is_null());
  EXPECT_TRUE(spec["chat_template"].is_string());
}

TEST(VocabularyTest, AControlTokenThatEndsATurnIsAnEndToken) {
  const auto vocabulary = Read(ReadFile(TestData("bad/good.gguf")));
  ASSERT_TRUE(vocabulary.ok()) << vocabulary.status();
  EXPECT_EQ(vocabulary->end_tokens, (std::vector<TokenId>{{2}}));  // </s>, not <s>
}

TEST(VocabularyTest, TokensThatAreNotUtf8AreRefusedByIndex) {
  std::string file = ReadFile(TestData("bad/good.gguf"));
  const size_t at = file.find("<unk>");
  ASSERT_NE(at, std::string::npos);
  file[at + 1] = '\xff';
  const auto vocabulary = Read(file);
  EXPECT_NE(vocabulary.status().message().find("tokenizer.ggml.tokens[0]"), std::string::npos);
}

TEST(Utf8Test, OnlyWellFormedTextPasses) {
  for (const char* good : {"", "abc", "\u00e9", "\u20ac", "\U0001f600", "\U0010ffff"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xc0\x80", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80",
                          "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xe2\x82"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
  }
}

}  // namespace
}  // namespace pdserve::engine
