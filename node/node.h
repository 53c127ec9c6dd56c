// A node: one engine, its roles, its pump, and the gRPC service of sessions. Composes; decides
// nothing. Start and Drain from one thread; the parts have their own.
#ifndef PDSERVE_NODE_NODE_H_
#define PDSERVE_NODE_NODE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "engine/model.h"
#include "engine/step_loop.h"
#include "kvtransfer/pump.h"

namespace grpc {
class Channel;
}

namespace pdserve::node {

struct NodeOptions {
  std::string node_id;
  bool prefills = true;
  bool decodes = true;
  std::string listen;  // of sessions; empty: reached by InProcessChannel only
  int64_t kv_pool_bytes = int64_t{1} << 30;
  bool prefix_cache = true;
  int32_t max_batch = 64;
  int32_t max_attempts = 1024;
  engine::StepLoopOptions step_loop;
  kvtransfer::PumpOptions pump;  // block sizes, fingerprint, incarnation: filled in here
  absl::Duration heartbeat_interval = absl::Milliseconds(500);
  absl::Duration peer_timeout = absl::Seconds(3);
  std::string model_name;  // empty: the card's
};

class Node {
 public:
  /// The model may be shared by nodes of one process. `metrics` and `clock` outlive the
  /// node.
  static absl::StatusOr<std::unique_ptr<Node>> Start(const NodeOptions& options,
                                                     std::shared_ptr<engine::Model> model,
                                                     Metrics* metrics, const Clock* clock);
  virtual ~Node() = default;  // Stop at once

  virtual std::string session_address() const = 0;
  /// A private connection to this node from its own process; nullptr: no descriptor could be had.
  /// Call again for another one, also when the one before has broken.
  virtual std::shared_ptr<grpc::Channel> InProcessChannel() = 0;

  /// Refuses new attempts, tells the routers, waits until what runs has ended or `timeout` is over.
  /// True: all ended.
  virtual bool Drain(absl::Duration timeout) = 0;
};

}  // namespace pdserve::node

#endif  // PDSERVE_NODE_NODE_H_
