#include "router/choice_text.h"

#include "gtest/gtest.h"
#include "tests/testing/fake_text.h"

namespace pdserve::router {
namespace {

std::vector<TokenId> Tokens(std::string_view text) {
  std::vector<TokenId> tokens;
  for (const char byte : text) tokens.push_back(TokenId{static_cast<uint8_t>(byte)});
  return tokens;
}

ChoiceText NewText(const std::vector<std::string>& stops) {
  return ChoiceText(std::make_unique<testing::FakeDecoder>(), stops);
}

TEST(ChoiceTextTest, CountsTokensUpToTheOneThatCompletesTheMatch) {
  ChoiceText text = NewText({"cd"});
  EXPECT_FALSE(text.Push(Tokens("abc")));
  EXPECT_TRUE(text.Push(Tokens("defgh")));
  EXPECT_EQ(text.num_tokens(), 4u);
  EXPECT_EQ(text.TakeText(), "ab");
  EXPECT_EQ(text.TakeTokens().size(), 4u);
  EXPECT_EQ(text.matched(), "cd");
}

TEST(ChoiceTextTest, TokensComeEvenWhereTheirTextIsHeldBack) {
  ChoiceText text = NewText({"abX"});
  text.Push(Tokens("ab"));
  EXPECT_EQ(text.TakeText(), "");
  EXPECT_EQ(text.TakeTokens(), Tokens("ab"));
  text.Finish();
  EXPECT_EQ(text.TakeText(), "ab");
  EXPECT_TRUE(text.TakeTokens().empty());
}

TEST(ChoiceTextTest, AnUnfinishedCodePointIsReplacedAtTheEnd) {
  ChoiceText text = NewText({});
  text.Push(Tokens("a\xe2\x82"));
  EXPECT_EQ(text.TakeText(), "a");
  text.Finish();
  EXPECT_EQ(text.TakeText(), "\uFFFD");
}

}  // namespace
}  // namespace pdserve::router
