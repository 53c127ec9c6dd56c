#include "tests/router/router_rig.h"

#include <sstream>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "common/check.h"

namespace pdserve::testing {

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (!condition()) {
    if (absl::Now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

RouterRig::RouterRig() : metrics(Metrics::Create()) {
  options.listen = "127.0.0.1:0";
  options.load_text = &FakeText::Load;
  options.heartbeat_interval = absl::Milliseconds(50);
}

RouterRig::~RouterRig() { router.reset(); }

MockNodeOptions RouterRig::PrefillOptions() const {
  MockNodeOptions node;
  node.id = "p" + std::to_string(nodes.size());
  node.decodes = false;
  return node;
}

MockNodeOptions RouterRig::DecodeOptions() const {
  MockNodeOptions node;
  node.id = "d" + std::to_string(nodes.size());
  node.prefills = false;
  return node;
}

MockNode& RouterRig::Add(MockNodeOptions node) {
  nodes.push_back(std::make_unique<MockNode>(std::move(node)));
  options.nodes.push_back({"", nodes.back()->InProcessChannel()});
  return *nodes.back();
}

MockNode& RouterRig::AddListening(MockNodeOptions node) {
  node.listen = "127.0.0.1:0";
  nodes.push_back(std::make_unique<MockNode>(std::move(node)));
  options.nodes.push_back({nodes.back()->address(), nullptr});
  return *nodes.back();
}

void RouterRig::AddPair(bool is_automatic) {
  MockNodeOptions prefill = PrefillOptions();
  prefill.is_automatic = is_automatic;
  Add(prefill);
  MockNodeOptions decode = DecodeOptions();
  decode.is_automatic = is_automatic;
  Add(decode);
}

void RouterRig::Start(bool must_be_ready) {
  auto started = router::Router::Start(options, metrics.get(), &clock);
  PD_CHECK(started.ok());
  router = *std::move(started);
  if (must_be_ready) PD_CHECK(Eventually([this] { return IsReady(); }));
}

double RouterRig::Metric(const std::string& prefix) const {
  std::istringstream page(metrics->Render());
  double sum = 0;
  for (std::string line; std::getline(page, line);) {
    if (line.compare(0, prefix.size(), prefix) != 0) continue;
    sum += std::stod(line.substr(line.rfind(' ') + 1));
  }
  return sum;
}

std::string CompletionBody(int max_tokens, const std::string& more) {
  return R"({"prompt":"hi","max_tokens":)" + std::to_string(max_tokens) +
         (more.empty() ? "" : "," + more) + "}";
}

std::string ChatBody(int max_tokens, const std::string& more) {
  return R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":)" +
         std::to_string(max_tokens) + (more.empty() ? "" : "," + more) + "}";
}

}  // namespace pdserve::testing
