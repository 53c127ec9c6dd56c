// The prefill node with the fewest prompt tokens before it, the decode node with the fewest
// sequences; equals are split by free blocks, then by turn. A node's work is what it last said or
// what this router has given it, whichever is more: its word is late, ours is only our part.
#include <algorithm>
#include <tuple>

#include "router/policy.h"

namespace pdserve::router {
namespace {

using Cost = std::tuple<int64_t, int64_t, size_t>;

int64_t FreeBlocks(const NodeState& node) {
  return int64_t{node.load.free_blocks} + node.load.cached_blocks;
}

Cost PrefillCost(const NodeState& node, size_t turn) {
  const int64_t tokens =
      std::max(static_cast<int64_t>(node.load.queued_tokens), node.work.prompt_tokens);
  return {tokens, -FreeBlocks(node), turn};
}

Cost DecodeCost(const NodeState& node, size_t turn) {
  const int64_t told = int64_t{node.load.waiting} + node.load.transferring + node.load.decoding;
  return {std::max(told, node.work.decodes), -FreeBlocks(node), turn};
}

const NodeState& Cheapest(const std::vector<const NodeState*>& nodes, uint64_t sequence,
                          Cost (*cost)(const NodeState&, size_t)) {
  const NodeState* best = nullptr;
  Cost best_cost;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const size_t turn = (i + nodes.size() - sequence % nodes.size()) % nodes.size();
    const Cost this_cost = cost(*nodes[i], turn);
    if (best != nullptr && best_cost <= this_cost) continue;
    best = nodes[i];
    best_cost = this_cost;
  }
  return *best;
}

class LeastWork final : public Policy {
 public:
  Placement Choose(const RequestFacts& facts, const Candidates& candidates,
                   absl::Time /*now*/) const override {
    const NodeState& prefill = Cheapest(candidates.prefill, facts.sequence, PrefillCost);
    const NodeState& decode = Cheapest(candidates.decode, facts.sequence, DecodeCost);
    return {prefill.index, decode.index,
            prefill.index == decode.index ? "same_node" : "least_work"};
  }
};

}  // namespace

std::unique_ptr<Policy> MakePolicy_least_work() { return std::make_unique<LeastWork>(); }

}  // namespace pdserve::router
