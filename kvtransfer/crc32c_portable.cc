// CRC32C from tables, eight bytes at a time: the twin that every other variant is compared with.
#include <array>

#include "kvtransfer/crc32c.h"

namespace pdserve::kvtransfer {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

// tables[k][b]: what byte b, k bytes before the end of a group of eight, does to the register.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? kPolynomial : 0);
    tables[0][byte] = value;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint32_t Extend(uint32_t raw, const std::byte* data, size_t bytes) {
  const auto at = [&](size_t i) { return std::to_integer<uint32_t>(data[i]); };
  for (; bytes >= 8; bytes -= 8, data += 8) {
    const uint32_t low = raw ^ (at(0) | at(1) << 8 | at(2) << 16 | at(3) << 24);
    raw = kTables[7][low & 0xFF] ^ kTables[6][(low >> 8) & 0xFF] ^ kTables[5][(low >> 16) & 0xFF] ^
          kTables[4][low >> 24] ^ kTables[3][at(4)] ^ kTables[2][at(5)] ^ kTables[1][at(6)] ^
          kTables[0][at(7)];
  }
  for (; bytes > 0; --bytes, ++data) raw = (raw >> 8) ^ kTables[0][(raw ^ at(0)) & 0xFF];
  return raw;
}

bool Works() { return true; }

}  // namespace

Crc32cVariant Crc32cVariant_portable() { return {"portable", Works, Extend}; }

}  // namespace pdserve::kvtransfer
