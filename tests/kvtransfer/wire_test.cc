#include "kvtransfer/wire.h"

#include <string>

#include "gtest/gtest.h"

namespace pdserve::kvtransfer {
namespace {

constexpr FrameLimits kLimits{1000, 100'000};
using Bytes = std::array<std::byte, kFrameHeaderBytes>;

TEST(WireTest, AHeaderComesBackAsItWas) {
  const auto bytes = EncodeFrameHeader({999, 0x12345678, 100'000});
  const auto header = DecodeFrameHeader(bytes, kLimits);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->control_bytes, 999u);
  EXPECT_EQ(header->control_crc32c, 0x12345678u);
  EXPECT_EQ(header->payload_bytes, 100'000u);
}

TEST(WireTest, TheBytesOfVersionOneAreFixed) {
  const auto bytes = EncodeFrameHeader({0x0102, 0x0A0B0C0D, 0x1122});
  const std::string text(reinterpret_cast<const char*>(bytes.data()), 28);
  EXPECT_EQ(
      text,
      std::string("PDKV\x01\0\0\0\x02\x01\0\0\x0D\x0C\x0B\x0A\x22\x11\0\0\0\0\0\0\0\0\0\0", 28));
}

TEST(WireTest, EveryFlippedBitOfAHeaderIsRefused) {
  Bytes bytes = EncodeFrameHeader({10, 20, 30});
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= std::byte(1 << bit % 8);
    EXPECT_FALSE(DecodeFrameHeader(bytes, kLimits).ok()) << bit;
    bytes[bit / 8] ^= std::byte(1 << bit % 8);
  }
}

TEST(WireTest, LengthsOverALimitAreRefusedWithBothNumbers) {
  for (const FrameHeader header : {FrameHeader{1001, 0, 0}, FrameHeader{0, 0, 100'001},
                                   FrameHeader{UINT32_MAX, 0, 0}, FrameHeader{0, 0, UINT64_MAX}}) {
    const auto status = DecodeFrameHeader(EncodeFrameHeader(header), kLimits).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("limit is 100"), absl::string_view::npos) << status;
  }
}

TEST(WireTest, AnotherVersionIsNamed) {
  Bytes bytes = EncodeFrameHeader({1, 2, 3});
  bytes[4] = std::byte{9};
  const auto status = DecodeFrameHeader(bytes, kLimits).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("version 9"), absl::string_view::npos) << status;
}

TEST(WireTest, AControlMustBeTheOneTheHeaderSpeaksOf) {
  const std::string head = EncodeFrameHead("control", 5);
  Bytes bytes;
  std::memcpy(bytes.data(), head.data(), bytes.size());
  const auto header = DecodeFrameHeader(bytes, kLimits);
  ASSERT_TRUE(header.ok());
  EXPECT_TRUE(CheckControl(*header, head.substr(kFrameHeaderBytes)).ok());
  EXPECT_FALSE(CheckControl(*header, "contros").ok());
  EXPECT_FALSE(CheckControl(*header, "controls").ok());
}

TEST(WireTest, FieldsThatCannotBeMeantAreRefused) {
  v1::Control control;
  control.mutable_fetch()->set_ticket("short");
  EXPECT_FALSE(ParseControl(control.SerializeAsString()).ok());
  control.mutable_fetch()->set_ticket(std::string(16, 't'));
  EXPECT_TRUE(ParseControl(control.SerializeAsString()).ok());
  control.mutable_fetch()->set_deadline_ms(-1);
  EXPECT_FALSE(ParseControl(control.SerializeAsString()).ok());
  control.mutable_hello()->set_fingerprint("short");
  EXPECT_FALSE(ParseControl(control.SerializeAsString()).ok());
  EXPECT_FALSE(ParseControl("\xFF\xFF\xFF").ok());
}

// A later minor version may add kinds and fields; they are skipped, not refused.
TEST(WireTest, AnUnknownKindAndUnknownFieldsAreIgnored) {
  const std::string unknown_kind = "\xFA\x01\x02\x08\x01";  // field 31, two bytes
  const auto control = ParseControl(unknown_kind);
  ASSERT_TRUE(control.ok()) << control.status();
  EXPECT_EQ(control->kind_case(), v1::Control::KIND_NOT_SET);
  v1::Control known;
  known.mutable_heartbeat()->set_sequence(7);
  const auto both = ParseControl(known.SerializeAsString() + unknown_kind);
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(both->heartbeat().sequence(), 7u);
}

TEST(WireTest, ATicketComesBackAsItWas) {
  Ticket ticket;
  for (size_t i = 0; i < ticket.value.size(); ++i) ticket.value[i] = static_cast<uint8_t>(250 + i);
  EXPECT_EQ(TicketFromBytes(TicketToBytes(ticket)), ticket);
}

}  // namespace
}  // namespace pdserve::kvtransfer
