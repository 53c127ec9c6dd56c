// Each role's nodes in turn, whatever their load.
#include "router/policy.h"

namespace pdserve::router {
namespace {

class RoundRobin final : public Policy {
 public:
  Placement Choose(const RequestFacts& facts, const Candidates& candidates,
                   absl::Time /*now*/) const override {
    const size_t turn = facts.sequence;
    const NodeState& prefill = *candidates.prefill[turn % candidates.prefill.size()];
    const NodeState& decode = *candidates.decode[turn % candidates.decode.size()];
    return {prefill.index, decode.index,
            prefill.index == decode.index ? "same_node" : "round_robin"};
  }
};

}  // namespace

std::unique_ptr<Policy> MakePolicy_round_robin() { return std::make_unique<RoundRobin>(); }

}  // namespace pdserve::router
