// What goes over a byte stream: a frame is a fixed header, a serialised pdserve.v1.Control, and a
// payload. Pure functions of bytes; nothing a peer sends is believed before it was checked here.
//
//   byte  size  field, little-endian
//      0     4  magic "PDKV"
//      4     2  version of the framing, 1
//      6     2  flags, 0
//      8     4  control_bytes
//     12     4  control_crc32c
//     16     8  payload_bytes
//     24     4  reserved, 0
//     28     4  crc32c of bytes [0, 28)
#ifndef PDSERVE_KVTRANSFER_WIRE_H_
#define PDSERVE_KVTRANSFER_WIRE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "proto/kv.pb.h"

namespace pdserve::kvtransfer {

inline constexpr size_t kFrameHeaderBytes = 32;
inline constexpr uint16_t kFrameVersion = 1;

struct FrameHeader {
  uint32_t control_bytes = 0;
  uint32_t control_crc32c = 0;
  uint64_t payload_bytes = 0;
};

struct FrameLimits {
  uint32_t max_control_bytes = 256 << 10;
  uint64_t max_payload_bytes = 0;
};

/// The header's 32 bytes, its own checksum filled in.
std::array<std::byte, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header);

/// InvalidArgument: not ours, damaged, or over a limit. FailedPrecondition: another version.
absl::StatusOr<FrameHeader> DecodeFrameHeader(std::span<const std::byte, kFrameHeaderBytes> bytes,
                                              const FrameLimits& limits);

/// Header and control in one string, as they go out before the payload.
std::string EncodeFrameHead(std::string_view control, uint64_t payload_bytes);

/// InvalidArgument: the control's bytes are not those that the header speaks of.
absl::Status CheckControl(const FrameHeader& header, std::string_view control);

/// InvalidArgument: no Control, or one whose fields can't be meant. A kind that this version does
/// not know parses as a Control without a kind and is to be ignored.
absl::StatusOr<v1::Control> ParseControl(std::string_view bytes);

Ticket TicketFromBytes(std::string_view bytes);  // ParseControl has checked the length
std::string TicketToBytes(const Ticket& ticket);

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_WIRE_H_
