// Tokenizing and detokenizing against what two independent tokenizers agree on.
#include "text/text.h"

#include <atomic>
#include <random>
#include <thread>

#include "absl/strings/str_format.h"
#include "tests/text/fixtures.h"

namespace pdserve::text {
namespace {

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

void ExpectReferenceIds(const Text& text, const Json& line) {
  const std::string input = line["text"];
  EXPECT_EQ(MustEncode(text, input, line["add_special"], line["parse_special"]),
            line["ids"].get<std::vector<uint32_t>>())
      << input.substr(0, 200);
}

TEST(TextTest, EncodesEveryReferenceTextToItsIds) {
  int num_lossy = 0;
  int num_texts = 0;
  for (const Json& line : ReadLines("smollm2_tokenizer.jsonl")) {
    if (line["kind"] != "encode") continue;
    ++num_texts;
    num_lossy += line.contains("lossy");
    ExpectReferenceIds(SmolLm2(), line);
  }
  EXPECT_EQ(num_texts, 345);
  EXPECT_EQ(num_lossy, 10);
}

TEST(TextTest, ReferenceTextsComeBackUnlessAByteHasNoToken) {
  for (const Json& line : ReadLines("smollm2_tokenizer.jsonl")) {
    if (line["kind"] != "encode" || line.contains("lossy")) continue;
    EXPECT_EQ(Decode(SmolLm2(), line["ids"], false), line["text"].get<std::string>());
  }
}

TEST(TextTest, EncodesTheTinyLlamasReferenceTexts) {
  for (const Json& line : ReadLines("tiny_llama_tokenizer.jsonl")) {
    ExpectReferenceIds(TinyLlama(), line);
  }
}

TEST(TextTest, DecodesEveryReferenceCasePieceByPiece) {
  int num_strict = 0;
  for (const Json& line : ReadLines("smollm2_tokenizer.jsonl")) {
    if (line["kind"] != "decode") continue;
    std::unique_ptr<Decoder> decoder = SmolLm2().NewDecoder(false);
    std::vector<std::string> pieces;
    std::string bytes;
    std::string shown;
    for (uint32_t id : line["ids"]) {
      pieces.push_back(decoder->Next(TokenId{id}));
      shown += pieces.back();
      bytes += SmolLm2().TokenBytes(TokenId{id});
    }
    const std::string flush = decoder->Finish();
    EXPECT_EQ(bytes, FromHex(line["bytes_hex"]));
    EXPECT_EQ(shown + flush, line["text"].get<std::string>());
    if (!line["strict_pieces"]) continue;
    ++num_strict;
    EXPECT_EQ(pieces, line["pieces"].get<std::vector<std::string>>());
    EXPECT_EQ(flush, line["flush"].get<std::string>());
  }
  EXPECT_EQ(num_strict, 33);
}

TEST(TextTest, RandomTextsComeBackFromTheirIds) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  // Ranges in which every UTF-8 byte has a token: 0xc0, 0xc1 and 0xf5 up never occur in UTF-8, and
  // the others without one start planes 4 to 11.
  const std::pair<uint32_t, uint32_t> ranges[] = {
      {0x20, 0x7e},       {0x20, 0x7e},     {0xa0, 0x24f},    {0x300, 0x36f},
      {0x400, 0x5ff},     {0x2000, 0x206f}, {0x3040, 0x30ff}, {0x4e00, 0x9fff},
      {0x1f300, 0x1f6ff}, {0x30, 0x39},     {0x9, 0xd},       {0x1e, 0x20}};
  for (int round = 0; round < 500; ++round) {
    std::u32string points;
    for (uint32_t length = random() % 60; points.size() < length;) {
      const auto [low, high] = ranges[random() % std::size(ranges)];
      const uint32_t repeat = random() % 4 == 0 ? 1 + random() % 5 : 1;
      points.append(repeat, static_cast<char32_t>(low + random() % (high - low + 1)));
    }
    std::string input;
    for (char32_t point : points) {
      const Json escaped = Json::parse(absl::StrFormat(
          point > 0xffff ? "\"\\u%04x\\u%04x\"" : "\"\\u%04x\"",
          point > 0xffff ? 0xd800 + ((point - 0x10000) >> 10) : point, 0xdc00 + (point & 0x3ff)));
      input += escaped.get<std::string>();
    }
    EXPECT_EQ(Decode(SmolLm2(), MustEncode(SmolLm2(), input, true, true), false), input);
  }
}

TEST(TextTest, ControlTokensInATextAreOrdinaryCharactersUnlessParsed) {
  const std::string input = "a<|im_end|>b";
  const std::vector<uint32_t> parsed = MustEncode(SmolLm2(), input, false, true);
  const std::vector<uint32_t> plain = MustEncode(SmolLm2(), input, false, false);
  EXPECT_EQ(parsed.size(), 3u);
  EXPECT_EQ(parsed[1], 2u);
  for (uint32_t id : plain) EXPECT_GT(id, 16u);
  EXPECT_EQ(Decode(SmolLm2(), plain, true), input);
}

TEST(TextTest, SkippedControlTokensShowAsNothing) {
  const std::vector<uint32_t> ids = MustEncode(SmolLm2(), "<|im_start|>hi<|im_end|>", false, true);
  EXPECT_EQ(Decode(SmolLm2(), ids, true), "hi");
  EXPECT_EQ(Decode(SmolLm2(), ids, false), "<|im_start|>hi<|im_end|>");
}

TEST(TextTest, UserDefinedTokensAreFoundInEveryText) {
  const std::unique_ptr<Text> text = MustLoad(SmallSpec().dump());
  EXPECT_EQ(MustEncode(*text, "ab<think>a", false, false), (std::vector<uint32_t>{5, 2, 3}));
  EXPECT_EQ(Decode(*text, {5, 2, 3}, true), "ab<think>a");
}

TEST(TextTest, InvalidUtf8IsRefused) {
  const auto ids = SmolLm2().Encode("abc\xff", true, true);
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TextTest, EmptyTextIsNoTokens) {
  EXPECT_TRUE(MustEncode(SmolLm2(), "", true, true).empty());
  EXPECT_EQ(MustEncode(TinyLlama(), "", true, true), std::vector<uint32_t>{1});
}

TEST(TextTest, IdsOutsideTheVocabularyAreEmpty) {
  EXPECT_EQ(SmolLm2().vocab_size(), 49152u);
  for (uint32_t id : {49152u, 0x7fffffffu, 0xffffffffu}) {
    EXPECT_EQ(SmolLm2().TokenBytes(TokenId{id}), "");
    EXPECT_EQ(Decode(SmolLm2(), {id}, true), "");
  }
}

TEST(TextTest, LongTextsOfEveryShapeComeBack) {
  constexpr size_t kBytes = 1 << 20;
  std::string words;
  while (words.size() < kBytes) words += "The quick brown fox, 12345 times; \n\n  ";
  for (const std::string& input :
       {words, std::string(kBytes, 'a'), std::string(kBytes, ' ') + "x", std::string(kBytes, '\n'),
        std::string(kBytes, '<'), std::string(kBytes, '7')}) {
    const std::vector<uint32_t> ids = MustEncode(SmolLm2(), input, true, true);
    EXPECT_TRUE(Decode(SmolLm2(), ids, true) == input) << input.substr(0, 20);
  }
}

TEST(TextTest, ManyThreadsEncodeAlike) {
  const std::vector<Json> lines = ReadLines("smollm2_tokenizer.jsonl");
  const Text& text = SmolLm2();
  std::atomic<int> num_wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (const Json& line : lines) {
        if (line["kind"] != "encode") continue;
        const auto ids = text.Encode(line["text"].get<std::string>(), true, line["parse_special"]);
        if (!ids.ok() || Values(*ids) != line["ids"].get<std::vector<uint32_t>>()) ++num_wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_wrong, 0);
}

TEST(TextTest, ADecoderOutlivesItsText) {
  std::unique_ptr<Text> text = MustLoad(SmallSpec().dump());
  const std::unique_ptr<Decoder> decoder = text->NewDecoder(true);
  text.reset();
  EXPECT_EQ(decoder->Next(TokenId{5}), "ab");
}

}  // namespace
}  // namespace pdserve::text
