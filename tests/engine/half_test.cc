#include "engine/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

namespace pdserve::engine {
namespace {

TEST(Half, EveryHalfSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value))));
    } else {
      EXPECT_EQ(FloatToHalf(value), bits);
    }
  }
}

TEST(Half, EveryBfloat16SurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = Bf16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(value))));
    } else {
      EXPECT_EQ(FloatToBf16(value), bits);
    }
  }
}

TEST(Half, BetweenTwoHalvesTheNearerWinsAndTiesGoToTheEvenOne) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = HalfToFloat(static_cast<uint16_t>(bits));
    const float high = HalfToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(FloatToHalf(middle), bits + bits % 2);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, low)), bits);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, high)), bits + 1);
  }
}

TEST(Half, TooLargeForHalfIsInfinite) {
  EXPECT_EQ(FloatToHalf(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfc00);
  EXPECT_EQ(FloatToHalf(-INFINITY), 0xfc00);
}

TEST(Half, RoundedBfloat16TiesGoToTheEvenOne) {
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x7f7fffffu)), 0x7f80);
}

}  // namespace
}  // namespace pdserve::engine
