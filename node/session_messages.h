// Between messages and the node's own words: one function per message, both ways. Beside it only
// the greeting (session_stream.cc, node.cc) and the outbox's tokens know a message's fields. Pure.
#ifndef PDSERVE_NODE_SESSION_MESSAGES_H_
#define PDSERVE_NODE_SESSION_MESSAGES_H_

#include <cstdint>

#include "decode/role.h"
#include "engine/attempt.h"
#include "prefill/role.h"
#include "proto/node.pb.h"

namespace pdserve::node {

inline constexpr uint32_t kProtocolMajor = 1;
inline constexpr uint32_t kProtocolMinor = 0;

/// What a node says of itself; capacity = free + cached + sequence + transfer.
struct LoadFigures {
  uint32_t capacity_blocks = 0;
  uint32_t free_blocks = 0;
  uint32_t cached_blocks = 0;
  uint32_t sequence_blocks = 0;
  uint32_t transfer_blocks = 0;
  uint32_t waiting = 0;
  uint32_t prefilling = 0;
  uint32_t transferring = 0;
  uint32_t decoding = 0;
  uint64_t queued_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t prefilled_tokens = 0;
  uint64_t generated_tokens = 0;
  uint64_t transfer_bytes = 0;

  friend bool operator==(const LoadFigures&, const LoadFigures&) = default;
};

/// Nothing is checked but that it fits: the roles refuse what is not sane.
prefill::Request FromMessage(SessionId session, const v1::PrefillRequest& message);
decode::Request FromMessage(SessionId session, const v1::DecodeRequest& message);

v1::NodeMessage AcceptedMessage(AttemptId attempt);
v1::NodeMessage RefusedMessage(AttemptId attempt, const engine::Refusal& refusal);
v1::NodeMessage FinishedMessage(AttemptId attempt, const engine::Ending& ending);
v1::NodeMessage DrainingMessage();
v1::NodeMessage PongMessage(uint64_t sequence);
v1::NodeMessage LoadMessage(const LoadFigures& figures);

}  // namespace pdserve::node

#endif  // PDSERVE_NODE_SESSION_MESSAGES_H_
