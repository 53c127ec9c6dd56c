// Where an attempt runs: a pure choice from facts about the request, a snapshot of the fleet, and
// the time. A policy has no state; any thread may ask it.
#ifndef PDSERVE_ROUTER_POLICY_H_
#define PDSERVE_ROUTER_POLICY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "router/fleet_snapshot.h"

namespace pdserve::router {

struct RequestFacts {
  uint64_t sequence = 0;  // number of the placement, counted up by the router
  int64_t prompt_tokens = 0;
  int64_t max_tokens = 0;
  int64_t whole_prompt_tokens = 0;   // prompts up to this run whole where a node has both roles
  std::span<const NodeIndex> avoid;  // failed this generation before: only where no other is
};

/// The same node twice: the whole generation runs there.
struct Placement {
  NodeIndex prefill;
  NodeIndex decode;
  std::string_view reason;  // label of a metric
  bool is_whole() const { return prefill == decode; }
};

struct Rejection {
  std::string_view reason;  // label of a metric
  absl::Duration retry_after;
};

using Picked = std::variant<Placement, Rejection>;

/// The nodes that may serve the request, each list in the fleet's order.
struct Candidates {
  std::vector<const NodeState*> prefill;
  std::vector<const NodeState*> decode;
  std::vector<const NodeState*> both;
};

class Policy {
 public:
  virtual ~Policy() = default;
  /// Only nodes of `candidates` are named, and both lists have one.
  virtual Placement Choose(const RequestFacts& facts, const Candidates& candidates,
                           absl::Time now) const = 0;
};

/// Null for an unknown name.
std::unique_ptr<Policy> MakePolicy(std::string_view name);
/// Every name of the list.
std::vector<std::string> PolicyNames();

/// What all policies share: usable nodes, the rule for short prompts, rejection; then `policy`.
Picked Pick(const Policy& policy, const RequestFacts& facts, const FleetSnapshot& snapshot,
            absl::Time now);

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_POLICY_H_
