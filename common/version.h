// This build's version, said once.
#ifndef PDSERVE_COMMON_VERSION_H_
#define PDSERVE_COMMON_VERSION_H_

#include <string_view>

namespace pdserve {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace pdserve

#endif  // PDSERVE_COMMON_VERSION_H_
