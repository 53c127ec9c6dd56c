// CHECK: for our own bugs only. Nothing that a client, a peer or a file sends may reach one.
#ifndef PDSERVE_COMMON_CHECK_H_
#define PDSERVE_COMMON_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define PD_CHECK(condition)                                                              \
  do {                                                                                   \
    if (!(condition)) [[unlikely]] {                                                     \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                      \
    }                                                                                    \
  } while (false)

#endif  // PDSERVE_COMMON_CHECK_H_
