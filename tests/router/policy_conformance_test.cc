#include <set>

#include "gtest/gtest.h"
#include "router/policy.h"

namespace pdserve::router {
namespace {

NodeState Node(uint32_t index, bool prefills, bool decodes) {
  NodeState node;
  node.index = NodeIndex{index};
  node.stage = NodeStage::kReady;
  node.facts.prefills = prefills;
  node.facts.decodes = decodes;
  node.load.free_blocks = 100;
  return node;
}

class PolicyConformanceTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Policy> policy_ = MakePolicy(GetParam());
  FleetSnapshot snapshot_;
  RequestFacts facts_{.prompt_tokens = 5};

  Picked Ask() { return Pick(*policy_, facts_, snapshot_, absl::UnixEpoch()); }
  Placement Placed() { return std::get<Placement>(Ask()); }
  std::string_view Rejected() { return std::get<Rejection>(Ask()).reason; }
};

TEST_P(PolicyConformanceTest, RejectsWhatCannotBePlacedAndSaysWhy) {
  EXPECT_EQ(Rejected(), "no_node");
  snapshot_.nodes = {Node(0, true, false)};
  EXPECT_EQ(Rejected(), "no_decode_node");
  snapshot_.nodes = {Node(0, false, true)};
  EXPECT_EQ(Rejected(), "no_prefill_node");
  snapshot_.nodes.push_back(Node(1, true, true));
  snapshot_.nodes[1].stage = NodeStage::kDraining;
  EXPECT_EQ(Rejected(), "no_prefill_node");
}

TEST_P(PolicyConformanceTest, NeverNamesANodeForARoleThatItHasNot) {
  snapshot_.nodes = {Node(0, true, false), Node(1, false, true), Node(2, true, true),
                     Node(3, true, false), Node(4, false, true)};
  std::set<uint32_t> used;
  for (facts_.sequence = 0; facts_.sequence < 30; ++facts_.sequence) {
    const Placement placement = Placed();
    EXPECT_TRUE(snapshot_.nodes[placement.prefill.value].facts.prefills);
    EXPECT_TRUE(snapshot_.nodes[placement.decode.value].facts.decodes);
    used.insert(placement.prefill.value);
    used.insert(placement.decode.value);
  }
  EXPECT_EQ(used.size(), 5u) << "equal nodes share the work";
}

TEST_P(PolicyConformanceTest, AvoidsNodesThatFailedWhereThereAreOthers) {
  snapshot_.nodes = {Node(0, true, false), Node(1, true, false), Node(2, false, true)};
  const NodeIndex avoid[] = {NodeIndex{0}, NodeIndex{2}};
  facts_.avoid = avoid;
  for (facts_.sequence = 0; facts_.sequence < 4; ++facts_.sequence) {
    EXPECT_EQ(Placed().prefill, NodeIndex{1});
    EXPECT_EQ(Placed().decode, NodeIndex{2});
  }
}

TEST_P(PolicyConformanceTest, ShortPromptsGoWholeToANodeWithBothRoles) {
  snapshot_.nodes = {Node(0, true, false), Node(1, false, true), Node(2, true, true)};
  facts_.whole_prompt_tokens = 10;
  facts_.prompt_tokens = 10;
  EXPECT_TRUE(Placed().is_whole());
  EXPECT_EQ(Placed().prefill, NodeIndex{2});
  EXPECT_EQ(Placed().reason, "short_prompt");
  snapshot_.nodes.pop_back();
  EXPECT_FALSE(Placed().is_whole());
}

TEST_P(PolicyConformanceTest, IsAFunctionOfItsArguments) {
  snapshot_.nodes = {Node(0, true, true), Node(1, true, true), Node(2, true, true)};
  facts_.sequence = 7;
  const Placement first = Placed();
  facts_.sequence = 8;
  Placed();
  facts_.sequence = 7;
  EXPECT_EQ(Placed().prefill, first.prefill);
  EXPECT_EQ(Placed().decode, first.decode);
}

INSTANTIATE_TEST_SUITE_P(Policies, PolicyConformanceTest, ::testing::ValuesIn(PolicyNames()));

TEST(LeastWorkTest, TakesTheNodesWithTheLeastToDo) {
  const auto policy = MakePolicy("least_work");
  FleetSnapshot snapshot;
  snapshot.nodes = {Node(0, true, false), Node(1, true, false), Node(2, false, true),
                    Node(3, false, true)};
  snapshot.nodes[0].load.queued_tokens = 500;
  snapshot.nodes[1].work.prompt_tokens = 400;
  snapshot.nodes[2].load.decoding = 3;
  snapshot.nodes[3].work.decodes = 4;
  const auto placement =
      std::get<Placement>(Pick(*policy, {.prompt_tokens = 5}, snapshot, absl::UnixEpoch()));
  EXPECT_EQ(placement.prefill, NodeIndex{1});
  EXPECT_EQ(placement.decode, NodeIndex{2});
  EXPECT_EQ(placement.reason, "least_work");
}

TEST(MakePolicyTest, UnknownNamesMakeNone) { EXPECT_EQ(MakePolicy("guess"), nullptr); }

}  // namespace
}  // namespace pdserve::router
