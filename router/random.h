// Random bits from the operating system: good for tickets, which are secrets. Any thread.
#ifndef PDSERVE_ROUTER_RANDOM_H_
#define PDSERVE_ROUTER_RANDOM_H_

#include <sys/random.h>

#include <cstdint>
#include <string>

#include "common/check.h"

namespace pdserve::router {

/// At most 256 bytes: those come at once or not at all.
inline std::string RandomBytes(size_t count) {
  PD_CHECK(count <= 256);
  std::string bytes(count, '\0');
  PD_CHECK(getrandom(bytes.data(), count, 0) == static_cast<ssize_t>(count));
  return bytes;
}

inline uint64_t RandomBits() {
  uint64_t bits = 0;
  PD_CHECK(getrandom(&bits, sizeof bits, 0) == static_cast<ssize_t>(sizeof bits));
  return bits;
}

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_RANDOM_H_
