#include "router/stop_strings.h"

#include <random>

#include "gtest/gtest.h"

namespace pdserve::router {
namespace {

// Byte by byte, by the definition: the match that ends first, the longest of those.
std::pair<std::string, bool> Reference(const std::string& text,
                                       const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(StopStringsTest, HoldsBackTheLongestSuffixThatMayBecomeAStop) {
  StopStrings stops({"END", "ENOUGH"});
  EXPECT_EQ(stops.Push("the EN"), "the ");
  EXPECT_EQ(stops.Push("O"), "");
  EXPECT_EQ(stops.Push("X"), "ENOX");
  EXPECT_FALSE(stops.matched());
}

TEST(StopStringsTest, CutsExactlyAtTheMatchAndShowsNothingAfterIt) {
  StopStrings stops({"END"});
  EXPECT_EQ(stops.Push("a E"), "a ");
  EXPECT_EQ(stops.Push("ND b"), "");
  EXPECT_EQ(stops.matched(), "END");
  EXPECT_EQ(stops.Push("c"), "");
  EXPECT_EQ(stops.Finish(), "");
}

TEST(StopStringsTest, ShowsWhatWasHeldWhenTheTextEnds) {
  StopStrings stops({"\n\n"});
  EXPECT_EQ(stops.Push("a\n"), "a");
  EXPECT_EQ(stops.Push(""), "");
  EXPECT_EQ(stops.Finish(), "\n");
}

TEST(StopStringsTest, TheLongestOfMatchesThatEndTogetherWins) {
  StopStrings stops({"b", "ab"});
  EXPECT_EQ(stops.Push("xab"), "x");
  EXPECT_EQ(stops.matched(), "ab");
}

TEST(StopStringsTest, EqualsTheDefinitionWhateverTheCuts) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto word = [&](size_t longest) {
    std::string text(1 + random() % longest, 'a');
    for (char& c : text) c = static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> list;
    for (size_t i = 0; i <= random() % 3; ++i) list.push_back(word(7));
    const std::string text = word(40);
    StopStrings stops(list);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t count = 1 + random() % 5;
      shown += stops.Push(text.substr(at, count));
      at += count;
    }
    shown += stops.Finish();
    const auto [expected, is_match] = Reference(text, list);
    ASSERT_EQ(shown, expected) << text;
    ASSERT_EQ(stops.matched().has_value(), is_match) << text;
  }
}

}  // namespace
}  // namespace pdserve::router
