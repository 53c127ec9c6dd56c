#include "router/fleet.h"

#include "gtest/gtest.h"
#include "tests/router/router_rig.h"

namespace pdserve::testing {
namespace {

using nlohmann::json;

class FleetTest : public ::testing::Test {
 protected:
  RouterRig rig_;

  json Ready() { return Get(rig_.address(), "/readyz").json(); }
  bool Comes(const json& missing, size_t nodes_in_state, const std::string& state) {
    return Eventually([&] {
      const json body = Ready();
      size_t count = 0;
      for (const json& node : body["nodes"]) count += node["state"] == state;
      return body["missing"] == missing && count == nodes_in_state;
    });
  }
};

TEST_F(FleetTest, WithoutNodesBothRolesAreMissing) {
  rig_.Start(/*must_be_ready=*/false);
  EXPECT_EQ(Get(rig_.address(), "/readyz").status, 503);
  EXPECT_EQ(Ready()["missing"], json({"prefill", "decode"}));
  EXPECT_EQ(Get(rig_.address(), "/health").status, 503);
  EXPECT_EQ(Get(rig_.address(), "/livez").status, 200);
  EXPECT_EQ(Get(rig_.address(), "/v1/models").json()["data"], json::array());
  const HttpAnswer answer = rig_.Ask("/v1/completions", CompletionBody(1));
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.code(), "server_is_overloaded");
  EXPECT_TRUE(answer.headers.contains("retry-after"));
}

TEST_F(FleetTest, APrefillNodeAloneIsNotReadyAndDecidesNothing) {
  rig_.Add(rig_.PrefillOptions());
  rig_.Start(/*must_be_ready=*/false);
  EXPECT_TRUE(Comes({"decode"}, 1, "ready"));
  EXPECT_EQ(rig_.Ask("/v1/completions", CompletionBody(1)).status, 503);
  EXPECT_EQ(rig_.nodes[0]->num_prefills(), 0u);
  EXPECT_EQ(
      rig_.Metric(R"(pdserve_disagg_decisions_total{decision="reject",reason="no_decode_node"})"),
      1);
}

TEST_F(FleetTest, ADecodeNodeNeverPrefillsByItself) {
  rig_.Add(rig_.DecodeOptions());
  rig_.Start(/*must_be_ready=*/false);
  EXPECT_TRUE(Comes({"prefill"}, 1, "ready"));
  EXPECT_EQ(rig_.Ask("/v1/completions", CompletionBody(1)).status, 503);
  EXPECT_EQ(rig_.nodes[0]->num_prefills() + rig_.nodes[0]->num_decodes(), 0u);
}

TEST_F(FleetTest, ANodeWithBothRolesSuffices) {
  rig_.Add({});
  rig_.Start();
  EXPECT_EQ(Get(rig_.address(), "/health").body, R"({"status":"ok"})");
  EXPECT_EQ(rig_.Ask("/v1/completions", CompletionBody(3)).json()["choices"][0]["text"], "abc");
  EXPECT_EQ(rig_.Metric(R"(pdserve_disagg_decisions_total{decision="whole",reason="same_node"})"),
            1);
}

TEST_F(FleetTest, NodesOfAnotherModelDoNotPair) {
  rig_.Add(rig_.PrefillOptions());
  rig_.Start(/*must_be_ready=*/false);
  ASSERT_TRUE(Comes({"decode"}, 1, "ready"));
  rig_.StopRouter();
  MockNodeOptions other = rig_.DecodeOptions();
  other.fingerprint = 2;
  rig_.Add(other);
  rig_.Start(/*must_be_ready=*/false);
  EXPECT_TRUE(Eventually([&] {
    const json nodes = Ready()["nodes"];
    return nodes[0]["state"] != nodes[1]["state"] &&
           (nodes[0]["state"] == "mismatched" || nodes[1]["state"] == "mismatched");
  }));
  EXPECT_EQ(Ready()["missing"].size(), 1u);
}

TEST_F(FleetTest, NodesThatDoNotKeepToTheProtocolAreLeftOut) {
  MockNodeOptions old = rig_.PrefillOptions();
  old.protocol_major = 2;
  rig_.Add(old);
  MockNodeOptions refusing = rig_.PrefillOptions();
  refusing.refusal = "too many routers";
  rig_.Add(refusing);
  MockNodeOptions broken = rig_.PrefillOptions();
  broken.text_spec = "broken";
  rig_.Add(broken);
  rig_.Add(rig_.DecodeOptions());
  rig_.Start(/*must_be_ready=*/false);
  ASSERT_TRUE(Comes({"prefill"}, 1, "unusable"));
  for (const char* problem : {"too many routers", "protocol 2", "broken spec"}) {
    EXPECT_TRUE(Eventually([&] {
      return Ready()["nodes"].dump().find(problem) != std::string::npos;
    })) << problem;
  }
}

TEST_F(FleetTest, DrainingNodesGetNothingNew) {
  rig_.AddPair();
  rig_.Start();
  rig_.prefill().SendDraining();
  EXPECT_TRUE(Comes({"prefill"}, 1, "draining"));
  EXPECT_EQ(rig_.Ask("/v1/completions", CompletionBody(1)).status, 503);
}

TEST_F(FleetTest, NodesMayComeLateGoAndComeBackInAnyOrder) {
  rig_.AddListening(rig_.PrefillOptions()).Stop();
  rig_.AddListening(rig_.DecodeOptions()).Stop();
  rig_.Start(/*must_be_ready=*/false);
  EXPECT_EQ(Ready()["missing"].size(), 2u);
  rig_.decode().Start();
  EXPECT_TRUE(Comes({"prefill"}, 1, "ready"));
  rig_.prefill().Start();
  EXPECT_TRUE(Comes(json::array(), 2, "ready"));
  for (int round = 0; round < 3; ++round) {
    MockNode& node = round % 2 == 0 ? rig_.prefill() : rig_.decode();
    node.Stop();
    EXPECT_TRUE(Eventually([&] { return !rig_.IsReady(); }));
    node.Start();
    EXPECT_TRUE(Eventually([&] { return rig_.IsReady(); }));
    EXPECT_EQ(rig_.Ask("/v1/completions", CompletionBody(3)).json()["choices"][0]["text"], "abc");
  }
}

TEST_F(FleetTest, LostSessionsAreOpenedAgain) {
  rig_.AddPair();
  rig_.Start();
  rig_.prefill().DropSessions();
  EXPECT_TRUE(
      Eventually([&] { return rig_.Ask("/v1/completions", CompletionBody(2)).status == 200; }));
}

TEST_F(FleetTest, LoadMessagesBecomeGaugesAndGoWithTheNode) {
  rig_.AddPair();
  rig_.Start();
  v1::Load load;
  load.set_capacity_blocks(100);
  load.set_free_blocks(40);
  load.set_cached_blocks(30);
  load.set_sequence_blocks(20);
  load.set_transfer_blocks(10);
  load.set_waiting(3);
  load.set_queued_tokens(77);
  rig_.prefill().SendLoad(load);
  EXPECT_TRUE(Eventually([&] { return rig_.Metric(R"(pdserve_kv_blocks{node="p0")") == 100; }));
  EXPECT_EQ(rig_.Metric(R"(pdserve_kv_blocks{node="p0",state="transfer"})"), 10);
  EXPECT_EQ(rig_.Metric(R"(pdserve_kv_blocks_capacity{node="p0"})"), 100);
  EXPECT_EQ(rig_.Metric(R"(pdserve_attempts{node="p0",stage="waiting"})"), 3);
  EXPECT_EQ(rig_.Metric(R"(pdserve_queued_prompt_tokens{node="p0"})"), 77);
  EXPECT_EQ(rig_.Metric(R"(pdserve_node_up{node="p0"})"), 1);
  rig_.prefill().Stop();
  EXPECT_TRUE(Eventually([&] {
    const std::string page = rig_.metrics->Render();
    return page.find(R"(pdserve_kv_blocks{node="p0")") == std::string::npos &&
           page.find(R"(pdserve_node_up{node="p0"} 0)") != std::string::npos;
  }));
}

TEST_F(FleetTest, TwoNodesOfOneIdAreToldAndOnlyTheFirstIsUsedAndShown) {
  MockNodeOptions options;
  options.id = "twin";
  MockNode& first = rig_.AddListening(options);
  MockNode& second = rig_.AddListening(options);
  second.Stop();
  rig_.Start();
  v1::Load load;
  load.set_capacity_blocks(100);
  load.set_waiting(3);
  first.SendLoad(load);
  const char* waiting = R"(pdserve_attempts{node="twin",stage="waiting"})";
  EXPECT_TRUE(Eventually([&] { return rig_.Metric(waiting) == 3; }));
  second.Start();
  EXPECT_TRUE(Comes(json::array(), 1, "unusable"));
  EXPECT_NE(Ready().dump().find(first.address() + " has the same --node_id"), std::string::npos);
  EXPECT_EQ(rig_.Metric(waiting), 3);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(rig_.Ask("/v1/completions", CompletionBody(2)).status, 200);
  }
  EXPECT_EQ(second.num_prefills(), 0u);
  first.Stop();
  EXPECT_TRUE(Comes(json::array(), 1, "absent"));
  EXPECT_TRUE(Comes(json::array(), 1, "ready"));  // the name is the second's now
  EXPECT_EQ(rig_.Metric(R"(pdserve_node_up{node="twin"})"), 1);
  EXPECT_EQ(rig_.Metric(waiting), 0);
  EXPECT_EQ(rig_.Ask("/v1/completions", CompletionBody(2)).status, 200);
}

TEST_F(FleetTest, ModelsShowWhatIsServed) {
  rig_.options.model_name = "org/alias:1";
  rig_.AddPair();
  rig_.Start();
  const json entry = Get(rig_.address(), "/v1/models").json()["data"][0];
  EXPECT_EQ(entry["id"], "org/alias:1");
  EXPECT_EQ(entry["object"], "model");
  EXPECT_EQ(entry["max_model_len"], 4096);
  EXPECT_EQ(Get(rig_.address(), "/v1/models/org/alias:1").json(), entry);
  EXPECT_EQ(Get(rig_.address(), "/models/org%2Falias%3A1/").json(), entry);
  EXPECT_EQ(Get(rig_.address(), "/v1/models/other").code(), "model_not_found");
  EXPECT_EQ(rig_.Ask("/v1/completions", CompletionBody(1, R"("model":"mock-model")")).status, 404);
  EXPECT_EQ(rig_.Ask("/v1/completions", CompletionBody(1, R"("model":"org/alias:1")")).status, 200);
}

TEST_F(FleetTest, AnUnknownPolicyOrAddressIsAClearError) {
  SystemClock clock;
  router::RouterOptions options;
  options.policy = "guess";
  auto started = router::Router::Start(options, rig_.metrics.get(), &clock);
  ASSERT_FALSE(started.ok());
  EXPECT_NE(std::string(started.status().message()).find("least_work"), std::string::npos);
  rig_.Start(/*must_be_ready=*/false);
  for (const std::string& address : {rig_.address(), std::string("127.0.0.1"),
                                     std::string("127.0.0.1:99999"), std::string("nowhere")}) {
    options = rig_.options;
    options.listen = address;
    started = router::Router::Start(options, rig_.metrics.get(), &clock);
    EXPECT_TRUE(absl::IsUnavailable(started.status())) << address;
    EXPECT_NE(std::string(started.status().message()).find(address), std::string::npos);
  }
}

}  // namespace
}  // namespace pdserve::testing
