#include "kvtransfer/handshake.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace pdserve::kvtransfer {
namespace {

std::string FingerprintBytes(const Fingerprint& fingerprint) {
  return {reinterpret_cast<const char*>(fingerprint.value.data()), fingerprint.value.size()};
}

// The peer's text ends up in logs and errors: short, and nothing but printable characters.
std::string Printable(const std::string& text) { return absl::CEscape(text.substr(0, 200)); }

template <typename T>
absl::Status Unequal(const char* what, const T& ours, const T& theirs) {
  return absl::FailedPreconditionError(
      absl::StrCat(what, " differs: ", ours, " here, ", theirs, " there"));
}

}  // namespace

v1::LinkHello MakeHello(const PumpOptions& options, Incarnation expected_peer) {
  v1::LinkHello hello;
  hello.set_protocol_major(kProtocolMajor);
  hello.set_protocol_minor(kProtocolMinor);
  hello.set_node_id(options.node_id);
  hello.set_incarnation(options.incarnation.value);
  hello.set_expected_peer_incarnation(expected_peer.value);
  hello.set_fingerprint(FingerprintBytes(options.fingerprint));
  hello.set_block_bytes(options.block_bytes);
  hello.set_block_tokens(options.block_tokens);
  return hello;
}

absl::Status CheckHello(const PumpOptions& ours, Incarnation expected_peer,
                        const v1::LinkHello& theirs) {
  if (!theirs.refusal().empty()) {
    return absl::FailedPreconditionError(absl::StrCat("node ", Printable(theirs.node_id()),
                                                      " refuses: ", Printable(theirs.refusal())));
  }
  if (theirs.protocol_major() != kProtocolMajor) {
    return Unequal("protocol version", kProtocolMajor, theirs.protocol_major());
  }
  if (theirs.expected_peer_incarnation() != 0 &&
      theirs.expected_peer_incarnation() != ours.incarnation.value) {
    return absl::FailedPreconditionError(
        absl::StrCat("incarnation ", theirs.expected_peer_incarnation(), " was meant, this is ",
                     ours.incarnation.value));
  }
  if (expected_peer.value != 0 && expected_peer.value != theirs.incarnation()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "incarnation ", expected_peer.value, " was meant, the peer is ", theirs.incarnation()));
  }
  if (theirs.block_bytes() != ours.block_bytes) {
    return Unequal("block size in bytes", ours.block_bytes, theirs.block_bytes());
  }
  if (theirs.block_tokens() != ours.block_tokens) {
    return Unequal("block size in tokens", ours.block_tokens, theirs.block_tokens());
  }
  if (const std::string own = FingerprintBytes(ours.fingerprint); own != theirs.fingerprint()) {
    return Unequal("fingerprint", absl::BytesToHexString(own),
                   absl::BytesToHexString(theirs.fingerprint()));
  }
  return absl::OkStatus();
}

}  // namespace pdserve::kvtransfer
