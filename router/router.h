// The router: HTTP to clients, sessions to nodes. Holds no weights; learns model and tokenizer from
// its nodes' hellos. Start and Drain from one thread.
#ifndef PDSERVE_ROUTER_ROUTER_H_
#define PDSERVE_ROUTER_ROUTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "text/text.h"

namespace grpc {
class Channel;
}

namespace pdserve::router {

/// Where a node's sessions are: an address to dial, or a channel within this process.
struct NodeEndpoint {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;  // null: dial `address`
};

struct RouterOptions {
  std::string listen = "127.0.0.1:8000";
  std::vector<NodeEndpoint> nodes;
  std::string policy = "least_work";
  std::string model_name;  // empty: the nodes'
  int64_t whole_prompt_tokens = 0;
  int64_t http_threads = 2;
  int64_t max_connections = 4096;
  int64_t max_requests = 512;
  int64_t max_body_bytes = 8 << 20;
  int64_t max_bodies_bytes = 256 << 20;  // of all requests at once
  int64_t max_header_bytes = 32 << 10;
  int64_t max_choices = 16;
  int64_t max_tries = 3;
  absl::Duration request_timeout = absl::Minutes(10);
  absl::Duration idle_timeout = absl::Seconds(75);
  absl::Duration keepalive_interval = absl::Seconds(10);
  absl::Duration heartbeat_interval = absl::Milliseconds(500);
  absl::Duration peer_timeout = absl::Seconds(3);
  /// Builds a tokenizer from a node's text_spec; empty: text::Text::Load.
  std::function<absl::StatusOr<std::unique_ptr<text::Text>>(std::string_view)> load_text;
};

class Router {
 public:
  /// Unavailable names the address where it can't listen. Nodes may come later and come back.
  static absl::StatusOr<std::unique_ptr<Router>> Start(const RouterOptions& options,
                                                       Metrics* metrics, const Clock* clock);
  virtual ~Router() = default;  // Stop at once

  virtual std::string address() const = 0;

  /// New requests get 503; waits until running ones have ended or `timeout` is over; those that
  /// still run then end in an error, and a second is theirs to send it. True: all ended in time.
  virtual bool Drain(absl::Duration timeout) = 0;
};

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_ROUTER_H_
