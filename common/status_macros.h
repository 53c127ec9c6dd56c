// The one macro that returns, and its twin for values.
#ifndef PDSERVE_COMMON_STATUS_MACROS_H_
#define PDSERVE_COMMON_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define RETURN_IF_ERROR(expression)                                               \
  do {                                                                            \
    if (absl::Status pd_status = (expression); !pd_status.ok()) return pd_status; \
  } while (false)

// NOLINTBEGIN(bugprone-macro-parentheses): a name and a declaration take none.
#define PD_STATUS_CONCAT_INNER(a, b) a##b
#define PD_STATUS_CONCAT(a, b) PD_STATUS_CONCAT_INNER(a, b)
#define ASSIGN_OR_RETURN(target, expression) \
  ASSIGN_OR_RETURN_NAMED(PD_STATUS_CONCAT(pd_status_or_, __LINE__), target, expression)
#define ASSIGN_OR_RETURN_NAMED(name, target, expression) \
  auto name = (expression);                              \
  if (!name.ok()) return std::move(name).status();       \
  target = *std::move(name)
// NOLINTEND(bugprone-macro-parentheses)

#endif  // PDSERVE_COMMON_STATUS_MACROS_H_
