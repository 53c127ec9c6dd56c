// The two models' tokenizer specs, and small ones made by hand.
#ifndef PDSERVE_TESTS_TEXT_FIXTURES_H_
#define PDSERVE_TESTS_TEXT_FIXTURES_H_

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/files.h"
#include "text/text.h"

namespace pdserve::text {

using Json = nlohmann::json;

inline std::unique_ptr<Text> MustLoad(const std::string& spec) {
  absl::StatusOr<std::unique_ptr<Text>> text = Text::Load(spec);
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? *std::move(text) : nullptr;
}

/// SmolLM2-135M-Instruct: 49,152 tokens, pre-tokenizer "smollm", no BOS.
inline const Text& SmolLm2() {
  static const auto* const text =
      MustLoad(testing::ReadFile(testing::TestData("text/smollm2_spec.json"))).release();
  return *text;
}

/// 512 tokens, pre-tokenizer "llama-bpe", BOS 1.
inline const Text& TinyLlama() {
  static const auto* const text =
      MustLoad(testing::ReadFile(testing::TestData("text/tiny_llama_spec.json"))).release();
  return *text;
}

inline std::vector<Json> ReadLines(const std::string& name) {
  std::istringstream in(testing::ReadFile(testing::TestData("text/" + name)));
  std::vector<Json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  EXPECT_FALSE(lines.empty()) << name;
  return lines;
}

inline std::vector<uint32_t> Values(const std::vector<TokenId>& ids) {
  std::vector<uint32_t> values;
  for (TokenId id : ids) values.push_back(id.value);
  return values;
}

inline std::vector<uint32_t> MustEncode(const Text& text, const std::string& input,
                                        bool add_special, bool parse_special) {
  auto ids = text.Encode(input, add_special, parse_special);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? Values(*ids) : std::vector<uint32_t>{};
}

inline std::string Decode(const Text& text, const std::vector<uint32_t>& ids, bool skip_special) {
  std::unique_ptr<Decoder> decoder = text.NewDecoder(skip_special);
  std::string shown;
  for (uint32_t id : ids) shown += decoder->Next(TokenId{id});
  return shown + decoder->Finish();
}

/// A vocabulary of <s>, </s> (both control), <think> (user defined), a, b, ab and a space.
inline Json SmallSpec() {
  return {{"kind", "gguf"},
          {"model", "gpt2"},
          {"pre", "gpt-2"},
          {"tokens", {"<s>", "</s>", "<think>", "a", "b", "ab", "\u0120"}},
          {"token_types", {3, 3, 4, 1, 1, 1, 1}},
          {"merges", {"a b"}},
          {"add_bos", false},
          {"add_eos", false},
          {"bos", 0},
          {"eos", 1},
          {"unk", nullptr},
          {"chat_template", nullptr}};
}

/// The tiny llama's tokenizer with another chat template.
inline std::unique_ptr<Text> WithTemplate(const std::string& chat_template) {
  Json spec = Json::parse(testing::ReadFile(testing::TestData("text/tiny_llama_spec.json")));
  spec["chat_template"] = chat_template;
  return MustLoad(spec.dump());
}

}  // namespace pdserve::text

#endif  // PDSERVE_TESTS_TEXT_FIXTURES_H_
