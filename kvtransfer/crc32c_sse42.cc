// CRC32C by the processor's own instruction. It has a latency of three cycles and a throughput of
// one, so three lanes run side by side; their registers are joined by a table that moves a register
// over the bytes of one lane.
#include <nmmintrin.h>

#include <array>
#include <cstring>

#include "kvtransfer/crc32c.h"

namespace pdserve::kvtransfer {
namespace {

constexpr size_t kLaneBytes = 2048;

// [k][b]: byte k of a register holding b, moved over kLaneBytes zero bytes.
using LaneShift = std::array<std::array<uint32_t, 256>, 4>;

LaneShift MakeLaneShift() {
  const Crc32cVariant& portable = Crc32cVariants().front();
  static constexpr std::array<std::byte, kLaneBytes> zeros{};
  LaneShift shift{};
  for (uint32_t k = 0; k < 4; ++k) {
    for (uint32_t bit = 0; bit < 8; ++bit) {
      shift[k][1u << bit] = portable.extend(1u << (8 * k + bit), zeros.data(), zeros.size());
    }
    for (uint32_t byte = 1; byte < 256; ++byte) {  // the rest by linearity
      const uint32_t lowest = byte & (~byte + 1);
      shift[k][byte] = shift[k][lowest] ^ shift[k][byte ^ lowest];
    }
  }
  return shift;
}

uint32_t OverLane(const LaneShift& shift, uint32_t raw) {
  return shift[0][raw & 0xFF] ^ shift[1][(raw >> 8) & 0xFF] ^ shift[2][(raw >> 16) & 0xFF] ^
         shift[3][raw >> 24];
}

uint64_t Load(const std::byte* data) {
  uint64_t value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

__attribute__((target("sse4.2"))) uint32_t Extend(uint32_t raw, const std::byte* data,
                                                  size_t bytes) {
  static const LaneShift shift = MakeLaneShift();
  uint64_t first = raw;
  for (; bytes >= 3 * kLaneBytes; bytes -= 3 * kLaneBytes, data += 3 * kLaneBytes) {
    uint64_t second = 0;
    uint64_t third = 0;
    for (size_t i = 0; i < kLaneBytes; i += 8) {
      first = _mm_crc32_u64(first, Load(data + i));
      second = _mm_crc32_u64(second, Load(data + kLaneBytes + i));
      third = _mm_crc32_u64(third, Load(data + 2 * kLaneBytes + i));
    }
    const uint32_t two = OverLane(shift, uint32_t(first)) ^ uint32_t(second);
    first = OverLane(shift, two) ^ uint32_t(third);
  }
  for (; bytes >= 8; bytes -= 8, data += 8) first = _mm_crc32_u64(first, Load(data));
  auto last = uint32_t(first);
  for (; bytes > 0; --bytes, ++data) last = _mm_crc32_u8(last, std::to_integer<uint8_t>(*data));
  return last;
}

bool Works() { return __builtin_cpu_supports("sse4.2") != 0; }

}  // namespace

Crc32cVariant Crc32cVariant_sse42() { return {"sse42", Works, Extend}; }

}  // namespace pdserve::kvtransfer
