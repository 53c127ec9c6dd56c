// The nodes as the router knows them at one moment. Immutable values; no thread, no I/O.
#ifndef PDSERVE_ROUTER_FLEET_SNAPSHOT_H_
#define PDSERVE_ROUTER_FLEET_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/ids.h"
#include "router/ask.h"

namespace pdserve::router {

/// A node's place in the router's list; stays the same over its sessions.
using NodeIndex = Id<struct NodeIndexTag, uint32_t>;

/// What a node says of itself when its session opens.
struct NodeFacts {
  std::string id;
  Incarnation incarnation;
  bool prefills = false;
  bool decodes = false;
  Fingerprint fingerprint;
  std::string transfer_address;
  std::string model_name;
  uint32_t vocab_size = 0;
  uint32_t max_context_tokens = 0;
  uint32_t block_tokens = 0;
  uint32_t capacity_blocks = 0;
  std::string text_sha256;
  std::vector<TokenId> end_tokens;  // sorted
};

/// A node's last load message; blocks add up to the capacity.
struct NodeLoad {
  uint32_t capacity_blocks = 0, free_blocks = 0, cached_blocks = 0;
  uint32_t sequence_blocks = 0, transfer_blocks = 0;
  uint32_t waiting = 0, prefilling = 0, transferring = 0, decoding = 0;
  uint64_t queued_tokens = 0, preemptions = 0;
  uint64_t prefilled_tokens = 0, generated_tokens = 0, transfer_bytes = 0;
};

/// Work that this router has given to a node and that has not ended: known at once, where a load
/// message is up to 50 ms old.
struct NodeWork {
  int64_t prompt_tokens = 0;  // of attempts that wait for their first token
  int64_t decodes = 0;        // attempts that decode there, or will
};

enum class NodeStage { kAbsent, kLoadingText, kUnusable, kMismatched, kDraining, kReady };

struct NodeState {
  NodeIndex index;
  NodeStage stage = NodeStage::kAbsent;
  std::string address;
  std::string problem;  // why it is not ready, for people
  NodeFacts facts;
  NodeLoad load;
  NodeWork work;
  bool is_ready() const { return stage == NodeStage::kReady; }
};

struct FleetSnapshot {
  std::vector<NodeState> nodes;
  std::shared_ptr<const ServedModel> model;  // null until a first node has told its own
  int64_t max_context_tokens = 0;            // the smallest of the ready nodes
};

/// Role names that no ready node has; empty: requests can be served.
std::vector<std::string> MissingRoles(const FleetSnapshot& snapshot);

/// prefill, decode, both, or unknown before the first session.
std::string RoleOf(const NodeState& node);
std::string StageName(NodeStage stage);

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_FLEET_SNAPSHOT_H_
