#include "text/utf8_stream.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace pdserve::text {
namespace {

const std::string kBad = "\xef\xbf\xbd";

std::string Whole(const std::string& bytes) {
  Utf8Stream stream;
  const std::string shown = stream.Next(bytes);
  return shown + stream.Finish();
}

TEST(Utf8StreamTest, HoldsACodePointBackUntilItIsWhole) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Next("a\xf0\x9f"), "a");
  EXPECT_EQ(stream.Next("\x98"), "");
  EXPECT_EQ(stream.Next("\x80"
                        "b"),
            "\xf0\x9f\x98\x80"
            "b");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(Utf8StreamTest, AnUnfinishedCodePointEndsAsOneReplacement) {
  Utf8Stream stream;
  EXPECT_EQ(stream.Next("\xe2\x82"), "");
  EXPECT_EQ(stream.Finish(), kBad);
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_EQ(stream.Next("a"), "a");
}

TEST(Utf8StreamTest, EachMaximalPartOfABadSequenceIsOneReplacement) {
  EXPECT_EQ(Whole("\xe2\x82"
                  "a"),
            kBad + "a");
  EXPECT_EQ(Whole("\xc0\x80"), kBad + kBad);
  EXPECT_EQ(Whole("\xed\xa0\x80"), kBad + kBad + kBad);
  EXPECT_EQ(Whole("\xf4\x90\x80\x80"), kBad + kBad + kBad + kBad);
  EXPECT_EQ(Whole("\xf0\x9f\xf0\x9f\x98\x80"), kBad + "\xf0\x9f\x98\x80");
  EXPECT_EQ(Whole("\x80\xff"), kBad + kBad);
  EXPECT_EQ(Whole("\xe0\x80\x80"), kBad + kBad + kBad);
}

TEST(Utf8StreamTest, HowTheBytesAreCutDoesNotMatter) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::string bytes =
      "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xed\xa0\xf4\x8f\xbf\xbf\xc1\x80\xff";
  for (int round = 0; round < 2000; ++round) {
    std::string input;
    for (int i = 0; i < 12; ++i) input += bytes[random() % bytes.size()];
    Utf8Stream stream;
    std::string shown;
    for (size_t at = 0; at < input.size();) {
      const size_t length = 1 + random() % 4;
      shown += stream.Next(std::string_view(input).substr(at, length));
      at += length;
    }
    EXPECT_EQ(shown + stream.Finish(), Whole(input));
  }
}

}  // namespace
}  // namespace pdserve::text
