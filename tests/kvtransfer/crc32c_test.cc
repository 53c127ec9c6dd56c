#include "kvtransfer/crc32c.h"

#include <random>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

namespace pdserve::kvtransfer {
namespace {

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Crc32cTest, GivesTheKnownValues) {
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c(BytesOf("123456789")), 0xE3069283u);
  const std::vector<std::byte> zeros(32), ones(32, std::byte{0xFF});  // RFC 3720, B.4
  EXPECT_EQ(Crc32c(zeros), 0x8A9136AAu);
  EXPECT_EQ(Crc32c(ones), 0x62A8AB43u);
}

TEST(Crc32cTest, EveryVariantAgreesWithThePortableOneAtEveryLengthAndOffset) {
  std::mt19937_64 random(1);
  std::vector<std::byte> data(40'000);
  for (auto& byte : data) byte = static_cast<std::byte>(random());
  const auto& portable = Crc32cVariants().front();
  for (const Crc32cVariant& variant : Crc32cVariants()) {
    if (!variant.works()) continue;
    SCOPED_TRACE(variant.name);
    for (size_t bytes = 0; bytes < data.size(); bytes += bytes < 300 ? 1 : 577) {
      const size_t offset = bytes % 17;
      const size_t length = std::min(bytes, data.size() - offset);
      ASSERT_EQ(variant.extend(0xDEADBEEF, data.data() + offset, length),
                portable.extend(0xDEADBEEF, data.data() + offset, length))
          << length;
    }
  }
}

TEST(Crc32cTest, PartsGiveTheSameAsTheWhole) {
  std::vector<std::byte> data(20'000, std::byte{3});
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7);
  const auto all = std::span<const std::byte>(data);
  for (const size_t cut : {0u, 1u, 7u, 6144u, 12'289u, 20'000u}) {
    EXPECT_EQ(Crc32c(all.subspan(cut), Crc32c(all.first(cut))), Crc32c(all)) << cut;
  }
}

TEST(Crc32cTest, EveryFlippedBitShows) {
  std::vector<std::byte> data(64, std::byte{9});
  const uint32_t right = Crc32c(data);
  for (size_t bit = 0; bit < 8 * data.size(); ++bit) {
    data[bit / 8] ^= std::byte(1 << bit % 8);
    EXPECT_NE(Crc32c(data), right);
    data[bit / 8] ^= std::byte(1 << bit % 8);
  }
}

}  // namespace
}  // namespace pdserve::kvtransfer
