// The agreement of two nodes before anything else goes over a link: same protocol, same model and
// cache layout, and the very process that was meant. Pure.
#ifndef PDSERVE_KVTRANSFER_HANDSHAKE_H_
#define PDSERVE_KVTRANSFER_HANDSHAKE_H_

#include <string>

#include "absl/status/status.h"
#include "common/ids.h"
#include "kvtransfer/pump.h"
#include "proto/kv.pb.h"

namespace pdserve::kvtransfer {

inline constexpr uint32_t kProtocolMajor = 1;
inline constexpr uint32_t kProtocolMinor = 0;

/// What we say first. `expected_peer` 0: any process will do.
v1::LinkHello MakeHello(const PumpOptions& options, Incarnation expected_peer);

/// FailedPrecondition with both values, or the peer's own words, where the two can't pair.
/// `expected_peer` 0: any.
absl::Status CheckHello(const PumpOptions& ours, Incarnation expected_peer,
                        const v1::LinkHello& theirs);

}  // namespace pdserve::kvtransfer

#endif  // PDSERVE_KVTRANSFER_HANDSHAKE_H_
