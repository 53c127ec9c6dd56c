// CRC32C (Castagnoli), the checksum of every frame and piece. The fastest variant that works on
// this machine is chosen once; all give the same numbers. Pure; any thread.
#ifndef PDSERVE_KVTRANSFER_CRC32C_H_
#define PDSERVE_KVTRANSFER_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace pdserve::kvtransfer {

/// The checksum of `data`, or, given the checksum `crc` of what came before it, of both.
uint32_t Crc32c(std::span<const std::byte> data, uint32_t crc = 0);

/// One way to compute it. `extend` works on the raw register, without the inversions.
struct Crc32cVariant {
  const char* name;
  bool (*works)();
  uint32_t (*extend)(uint32_t raw, const std::byte* data, size_t bytes);
};

/// All that were built, slowest first; the first one works everywhere.
std::span<const Crc32cVariant> Crc32cVariants();

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_CRC32C_H_
