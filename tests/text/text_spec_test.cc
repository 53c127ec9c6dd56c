// Specs come from files and peers: whatever is wrong with one is an error that says so.
#include "tests/text/fixtures.h"

namespace pdserve::text {
namespace {

void ExpectRefused(const std::string& spec, const std::string& words) {
  const auto text = Text::Load(spec);
  ASSERT_FALSE(text.ok()) << spec.substr(0, 200);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << text.status();
  EXPECT_NE(text.status().message().find(words), absl::string_view::npos) << text.status();
}

void ExpectRefusedWith(const char* key, const Json& value, const std::string& words) {
  Json spec = SmallSpec();
  spec[key] = value;
  SCOPED_TRACE(key);
  ExpectRefused(spec.dump(), words);
}

TEST(TextSpecTest, TheSmallSpecLoads) {
  const auto text = Text::Load(SmallSpec().dump());
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_FALSE((*text)->has_chat_template());
  EXPECT_EQ((*text)->RenderChat("[]", true).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TextSpecTest, NotJsonIsRefused) {
  ExpectRefused("", "malformed");
  ExpectRefused("[1", "malformed");
  ExpectRefused("{}", "kind");
  ExpectRefused("\xff\xfe", "malformed");
  ExpectRefused(std::string(100'000, '['), "malformed");
}

TEST(TextSpecTest, UnknownNamesAreRefusedNotGuessed) {
  ExpectRefusedWith("kind", "other", "kind 'other'");
  ExpectRefusedWith("model", "llama", "model 'llama'");
  ExpectRefusedWith("model", nullptr, "model");
  ExpectRefusedWith("pre", "default", "pre-tokenizer 'default'");
  ExpectRefusedWith("pre", nullptr, "pre-tokenizer");
  ExpectRefusedWith("pre", std::string(10'000, 'x'), "pre-tokenizer");
}

TEST(TextSpecTest, MissingOrMalformedMergesAreRefused) {
  ExpectRefusedWith("merges", nullptr, "no merges");
  ExpectRefusedWith("merges", {"ab"}, "merge 0 is malformed");
  ExpectRefusedWith("merges", {"a b", " b"}, "merge 1 is malformed");
  ExpectRefusedWith("merges", {"a "}, "merge 0 is malformed");
  ExpectRefusedWith("merges", {"a b a"}, "merge 0 is malformed");
  ExpectRefusedWith("merges", {"a " + std::string(10'000, 'b')}, "merge 0 is malformed");
  ExpectRefusedWith("merges", {"b a"}, "merges do not fit");
  ExpectRefusedWith("merges", {1}, "malformed");
}

TEST(TextSpecTest, VocabulariesThatDoNotFitTogetherAreRefused) {
  ExpectRefusedWith("tokens", nullptr, "no tokens");
  ExpectRefusedWith("tokens", Json::array(), "0 tokens");
  ExpectRefusedWith("tokens", {"a", "b", "ab", "a", "c", "d", "e"}, "twice");
  ExpectRefusedWith("token_types", {1, 1}, "2 token types for 7");
  ExpectRefusedWith("token_types", {1, 1, 1, 1, 1, 1, 9}, "token type 9");
  ExpectRefusedWith("bos", 7, "bos token 7");
  ExpectRefusedWith("eos", -1, "eos token -1");
  ExpectRefusedWith("unk", 1e18, "malformed");
  Json spec = SmallSpec();
  spec["add_bos"] = true;
  spec["bos"] = nullptr;
  ExpectRefused(spec.dump(), "BOS");
}

TEST(TextSpecTest, ATemplateThatDoesNotParseIsRefusedWithoutItsSource) {
  Json spec = SmallSpec();
  spec["chat_template"] = "{% for m in messages %}secret{% endif %}";
  ExpectRefused(spec.dump(), "does not parse");
  EXPECT_EQ(Text::Load(spec.dump()).status().message().find("secret"), absl::string_view::npos);
}

TEST(TextSpecTest, EveryKnownPreTokenizerKeepsTheWholeText) {
  const std::string input = "I'll  say 1234\n\n it's \t\r\n OK!?\n (a) \n";
  for (const char* name :
       {"gpt-2", "smollm", "starcoder", "llama-bpe", "llama3", "qwen2", "dbrx"}) {
    Json spec = Json::parse(testing::ReadFile(testing::TestData("text/tiny_llama_spec.json")));
    spec["pre"] = name;
    spec["add_bos"] = false;
    const std::unique_ptr<Text> text = MustLoad(spec.dump());
    EXPECT_EQ(Decode(*text, MustEncode(*text, input, true, true), true), input) << name;
  }
}

}  // namespace
}  // namespace pdserve::text
