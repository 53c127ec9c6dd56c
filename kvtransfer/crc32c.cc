#include "kvtransfer/crc32c.h"

#include <array>

namespace pdserve::kvtransfer {

#define X(word) Crc32cVariant Crc32cVariant_##word();
#include "kvtransfer/crc32c_list.inc"
#undef X

std::span<const Crc32cVariant> Crc32cVariants() {
#define X(word) Crc32cVariant_##word(),
  static const std::array variants = {
#include "kvtransfer/crc32c_list.inc"
  };
#undef X
  return variants;
}

namespace {

const Crc32cVariant& Best() {
  const Crc32cVariant* best = &Crc32cVariants().front();
  for (const Crc32cVariant& variant : Crc32cVariants()) {
    if (variant.works()) best = &variant;
  }
  return *best;
}

}  // namespace

uint32_t Crc32c(std::span<const std::byte> data, uint32_t crc) {
  static const Crc32cVariant& best = Best();
  return ~best.extend(~crc, data.data(), data.size());
}

}  // namespace pdserve::kvtransfer
