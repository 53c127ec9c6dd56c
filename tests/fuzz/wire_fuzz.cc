// What a peer may send, as a fuzz target: a frame's header, its control, and what the two state
// machines make of it. Any input must leave without a crash and without a broken promise.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kvtransfer/handshake.h"
#include "kvtransfer/receiver.h"
#include "kvtransfer/sender.h"
#include "kvtransfer/wire.h"

namespace {

using namespace pdserve;              // NOLINT
using namespace pdserve::kvtransfer;  // NOLINT

constexpr FrameLimits kLimits{4096, 1 << 20};
constexpr HandOverLimits kHandOver{64, 32, 256, 4, 1000, absl::Seconds(1)};

void Require(bool holds) {
  if (!holds) std::abort();
}

void FeedReceiver(const v1::Control& control, uint64_t payload_bytes) {
  const absl::Time now = absl::FromUnixSeconds(1000);
  std::vector<std::byte> memory(4 * 64);
  FetchSpec spec;
  for (size_t i = 0; i < 4; ++i) spec.destinations.push_back(std::span(memory).subspan(64 * i, 64));
  spec.deadline = now + absl::Seconds(1);
  Receiver receiver(spec, kHandOver);
  receiver.Apply(LinkReady{1}, now);
  for (int times = 0; times < 2; ++times) {
    Actions actions;
    if (control.has_piece()) {
      actions = receiver.Apply(PieceArrived{control.piece(), payload_bytes}, now);
    }
    if (control.has_commit()) actions = receiver.Apply(CommitArrived{control.commit()}, now);
    for (const Action& action : actions) {
      const auto* accept = std::get_if<AcceptPiece>(&action);
      if (accept == nullptr) continue;
      uint64_t placed = 0;
      for (const auto& part : accept->parts) {
        Require(part.data() >= memory.data());
        Require(part.data() + part.size() <= memory.data() + memory.size());
        placed += part.size();
      }
      Require(placed == payload_bytes);
      receiver.Apply(PieceLanded{accept->sequence, absl::OkStatus()}, now);
    }
  }
}

void FeedSender(const v1::Control& control) {
  const absl::Time now = absl::FromUnixSeconds(1000);
  const std::vector<std::byte> memory(4 * 64);
  Sender sender({Ticket{}, 4, now + absl::Seconds(1)}, kHandOver);
  std::vector<std::span<const std::byte>> blocks;
  for (size_t i = 0; i < 4; ++i) blocks.push_back(std::span(memory).subspan(64 * i, 64));
  sender.Apply(Extended{blocks}, now);
  sender.Apply(Fetched{control.has_fetch() ? control.fetch() : v1::Fetch{}}, now);
  for (int turn = 0; turn < 20 && sender.wants_window(); ++turn) {
    sender.Apply(WindowOpen{}, now);
    if (control.has_resend()) sender.Apply(ResendAsked{control.resend().sequence()}, now);
    sender.Apply(PieceSent{}, now);
    if (sender.state() == Sender::State::kEnded) return;
  }
  if (control.has_acknowledge()) sender.Apply(Acknowledged{}, now);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < kFrameHeaderBytes) return 0;
  std::array<std::byte, kFrameHeaderBytes> bytes;
  std::memcpy(bytes.data(), data, bytes.size());
  const std::string control_bytes(reinterpret_cast<const char*>(data) + kFrameHeaderBytes,
                                  size - kFrameHeaderBytes);
  const auto header = DecodeFrameHeader(bytes, kLimits);
  uint64_t payload_bytes = control_bytes.size();
  if (header.ok()) {
    Require(header->control_bytes <= kLimits.max_control_bytes);
    Require(header->payload_bytes <= kLimits.max_payload_bytes);
    Require(EncodeFrameHeader(*header) == bytes);
    (void)CheckControl(*header, control_bytes);
    payload_bytes = header->payload_bytes;
  }
  const auto control = ParseControl(control_bytes);
  if (!control.ok()) return 0;
  if (control->has_hello()) {
    PumpOptions options;
    (void)CheckHello(options, Incarnation{1}, control->hello());
  }
  FeedReceiver(*control, payload_bytes);
  FeedSender(*control);
  return 0;
}
