#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kvtransfer/transport.h"

namespace pdserve::kvtransfer {

#define X(word) std::unique_ptr<Transport> MakeTransport_##word(const TransportOptions& options);
#include "kvtransfer/transport_list.inc"
#undef X

std::vector<std::string> TransportNames() {
#define X(word) #word,
  return {
#include "kvtransfer/transport_list.inc"
  };
#undef X
}

absl::StatusOr<std::unique_ptr<Transport>> MakeTransport(const std::string& name,
                                                         const TransportOptions& options) {
#define X(word) \
  if (name == #word) return MakeTransport_##word(options);
#include "kvtransfer/transport_list.inc"
#undef X
  return absl::InvalidArgumentError(absl::StrCat("no transport is called ", name, "; there are ",
                                                 absl::StrJoin(TransportNames(), ", ")));
}

}  // namespace pdserve::kvtransfer
