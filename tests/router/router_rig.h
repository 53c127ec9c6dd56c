// A router over mock nodes, ready to be asked. Belongs to one test.
#ifndef PDSERVE_TESTS_ROUTER_ROUTER_RIG_H_
#define PDSERVE_TESTS_ROUTER_ROUTER_RIG_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "router/router.h"
#include "tests/router/http_client.h"
#include "tests/testing/fake_text.h"
#include "tests/testing/mock_node.h"

namespace pdserve::testing {

/// True as soon as the condition is; false when it is not within 20 s.
bool Eventually(const std::function<bool()>& condition);

class RouterRig {
 public:
  RouterRig();
  ~RouterRig();

  MockNodeOptions PrefillOptions() const;
  MockNodeOptions DecodeOptions() const;
  MockNode& Add(MockNodeOptions options);
  /// A node that the router dials on loopback, so that it can die and come back.
  MockNode& AddListening(MockNodeOptions options);
  /// One prefill and one decode node.
  void AddPair(bool is_automatic = true);

  /// Starts the router; waits until it is ready, unless told not to.
  void Start(bool must_be_ready = true);
  void StopRouter() { router.reset(); }
  bool IsReady() const { return Get(address(), "/readyz").status == 200; }

  std::string address() const { return router->address(); }
  HttpAnswer Ask(const std::string& path, const std::string& body) const {
    return Post(address(), path, body);
  }
  /// The sum of the page's lines that begin with `prefix`.
  double Metric(const std::string& prefix) const;

  MockNode& prefill() { return *nodes[0]; }
  MockNode& decode() { return *nodes[1]; }

  router::RouterOptions options;
  SystemClock clock;
  std::unique_ptr<Metrics> metrics;
  std::vector<std::unique_ptr<MockNode>> nodes;
  std::unique_ptr<router::Router> router;
};

/// {"prompt":"hi","max_tokens":N} and what else is given, like R"("stream":true)".
std::string CompletionBody(int max_tokens, const std::string& more = "");
std::string ChatBody(int max_tokens, const std::string& more = "");

}  // namespace pdserve::testing

#endif  // PDSERVE_TESTS_ROUTER_ROUTER_RIG_H_
