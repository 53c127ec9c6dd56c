#include "kvtransfer/wire.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kvtransfer/crc32c.h"

namespace pdserve::kvtransfer {
namespace {

constexpr uint32_t kMagic = 0x564B4450;  // "PDKV"

struct RawHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t flags;
  uint32_t control_bytes;
  uint32_t control_crc32c;
  uint64_t payload_bytes;
  uint32_t reserved;
  uint32_t header_crc32c;
};
static_assert(sizeof(RawHeader) == kFrameHeaderBytes);
static_assert(offsetof(RawHeader, version) == 4 && offsetof(RawHeader, flags) == 6);
static_assert(offsetof(RawHeader, control_bytes) == 8);
static_assert(offsetof(RawHeader, control_crc32c) == 12);
static_assert(offsetof(RawHeader, payload_bytes) == 16);
static_assert(offsetof(RawHeader, reserved) == 24);
static_assert(offsetof(RawHeader, header_crc32c) == 28);
static_assert(std::endian::native == std::endian::little, "the header is copied as it lies");

constexpr size_t kCheckedBytes = offsetof(RawHeader, header_crc32c);

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

std::array<std::byte, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header) {
  RawHeader raw{};
  raw.magic = kMagic;
  raw.version = kFrameVersion;
  raw.control_bytes = header.control_bytes;
  raw.control_crc32c = header.control_crc32c;
  raw.payload_bytes = header.payload_bytes;
  std::array<std::byte, kFrameHeaderBytes> bytes;
  std::memcpy(bytes.data(), &raw, sizeof raw);
  const uint32_t crc = Crc32c(std::span(bytes).first<kCheckedBytes>());
  std::memcpy(bytes.data() + kCheckedBytes, &crc, sizeof crc);
  return bytes;
}

absl::StatusOr<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                              const FrameLimits& limits) {
  RawHeader raw;
  std::memcpy(&raw, bytes.data(), sizeof raw);
  if (raw.magic != kMagic) return absl::InvalidArgumentError("the peer does not speak our frames");
  // Before the checksum: a later version may have it elsewhere, and the reason must name it.
  if (raw.version != kFrameVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the peer's frames have version ", raw.version, ", ours ", kFrameVersion));
  }
  if (raw.header_crc32c != Crc32c(bytes.first<kCheckedBytes>())) {
    return absl::InvalidArgumentError("a frame's header is damaged");
  }
  if (raw.flags != 0 || raw.reserved != 0) {
    return absl::InvalidArgumentError("a frame's header has unknown flags");
  }
  if (raw.control_bytes > limits.max_control_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a frame's control has ", raw.control_bytes,
                                                   " bytes, the limit is ",
                                                   limits.max_control_bytes));
  }
  if (raw.payload_bytes > limits.max_payload_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a frame's payload has ", raw.payload_bytes,
                                                   " bytes, the limit is ",
                                                   limits.max_payload_bytes));
  }
  return FrameHeader{raw.control_bytes, raw.control_crc32c, raw.payload_bytes};
}

std::string EncodeFrameHead(std::string_view control, uint64_t payload_bytes) {
  const auto header = EncodeFrameHeader(
      {static_cast<uint32_t>(control.size()), Crc32c(BytesOf(control)), payload_bytes});
  std::string head(reinterpret_cast<const char*>(header.data()), header.size());
  head.append(control);
  return head;
}

absl::Status CheckControl(const FrameHeader& header, std::string_view control) {
  if (control.size() != header.control_bytes || Crc32c(BytesOf(control)) != header.control_crc32c) {
    return absl::InvalidArgumentError("a frame's control is damaged");
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Control> ParseControl(std::string_view bytes) {
  v1::Control control;
  if (!control.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("a frame's control is no Control message");
  }
  if (control.has_fetch()) {
    const v1::Fetch& fetch = control.fetch();
    if (fetch.ticket().size() != sizeof(Ticket::value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a fetch has a ticket of ", fetch.ticket().size(), " bytes"));
    }
    if (fetch.deadline_ms() < 0) {
      return absl::InvalidArgumentError("a fetch has a deadline before its receipt");
    }
  }
  if (control.has_hello() && control.hello().fingerprint().size() != sizeof(Fingerprint::value)) {
    return absl::InvalidArgumentError(absl::StrCat("a hello has a fingerprint of ",
                                                   control.hello().fingerprint().size(), " bytes"));
  }
  return control;
}

Ticket TicketFromBytes(std::string_view bytes) {
  Ticket ticket;
  std::memcpy(ticket.value.data(), bytes.data(), std::min(bytes.size(), ticket.value.size()));
  return ticket;
}

std::string TicketToBytes(const Ticket& ticket) {
  return {reinterpret_cast<const char*>(ticket.value.data()), ticket.value.size()};
}

}  // namespace pdserve::kvtransfer
