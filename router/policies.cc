#include <algorithm>
#include <array>

#include "router/policy.h"

namespace pdserve::router {

#define X(name) std::unique_ptr<Policy> MakePolicy_##name();
#include "router/policy_list.inc"
#undef X

std::unique_ptr<Policy> MakePolicy(std::string_view name) {
#define X(word) \
  if (name == #word) return MakePolicy_##word();
#include "router/policy_list.inc"
#undef X
  return nullptr;
}

std::vector<std::string> PolicyNames() {
  return {
#define X(word) #word,
#include "router/policy_list.inc"
#undef X
  };
}

namespace {

using NodeList = std::vector<const NodeState*>;

// Drops the avoided nodes, unless nothing would be left.
void Prefer(NodeList& nodes, std::span<const NodeIndex> avoid) {
  NodeList others;
  for (const NodeState* node : nodes) {
    if (std::find(avoid.begin(), avoid.end(), node->index) == avoid.end()) others.push_back(node);
  }
  if (!others.empty()) nodes = std::move(others);
}

Candidates UsableNodes(const RequestFacts& facts, const FleetSnapshot& snapshot) {
  Candidates usable;
  for (const NodeState& node : snapshot.nodes) {
    if (!node.is_ready()) continue;
    if (node.facts.prefills) usable.prefill.push_back(&node);
    if (node.facts.decodes) usable.decode.push_back(&node);
    if (node.facts.prefills && node.facts.decodes) usable.both.push_back(&node);
  }
  for (NodeList* list : {&usable.prefill, &usable.decode, &usable.both}) {
    Prefer(*list, facts.avoid);
  }
  return usable;
}

}  // namespace

Picked Pick(const Policy& policy, const RequestFacts& facts, const FleetSnapshot& snapshot,
            absl::Time now) {
  Candidates candidates = UsableNodes(facts, snapshot);
  const absl::Duration soon = absl::Seconds(1);
  if (candidates.prefill.empty() && candidates.decode.empty()) return Rejection{"no_node", soon};
  if (candidates.prefill.empty()) return Rejection{"no_prefill_node", soon};
  if (candidates.decode.empty()) return Rejection{"no_decode_node", soon};
  if (facts.prompt_tokens <= facts.whole_prompt_tokens && !candidates.both.empty()) {
    candidates.prefill = candidates.both;
    candidates.decode = candidates.both;
    Placement placement = policy.Choose(facts, candidates, now);
    placement.decode = placement.prefill;
    placement.reason = "short_prompt";
    return placement;
  }
  return policy.Choose(facts, candidates, now);
}

}  // namespace pdserve::router
