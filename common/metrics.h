// Every Prometheus series once: one line of PD_METRICS. Names carry their base unit; labels are
// bounded and never hold a request's id. Series without labels exist at 0 from the start.
// Thread-safe.
#ifndef PDSERVE_COMMON_METRICS_H_
#define PDSERVE_COMMON_METRICS_H_

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"

// X(kind, id, name, labels parted by commas, help)
// clang-format off
#define PD_METRICS(X)                                                                               \
  /* router: requests */                                                                            \
  X(Counter, kRequests, "pdserve_requests_total", "endpoint,code", "HTTP requests ended; code 499 is a client that left") \
  X(Gauge, kRunningRequests, "pdserve_running_requests", "", "requests in progress in the router") \
  X(Counter, kAttempts, "pdserve_attempts_total", "outcome", "attempts ended, by outcome")           \
  X(Counter, kDecisions, "pdserve_disagg_decisions_total", "decision,reason", "placements: split, whole or reject, and why") \
  X(Counter, kLateCancels, "pdserve_late_cancels_total", "", "cancels that a node did not acknowledge in time") \
  X(Counter, kPromptTokens, "pdserve_prompt_tokens_total", "", "prompt tokens of finished choices")   \
  X(Counter, kGenerationTokens, "pdserve_generation_tokens_total", "", "output tokens sent to clients") \
  X(Seconds, kTtft, "pdserve_request_ttft_seconds", "path", "request received to first token")       \
  X(Seconds, kItl, "pdserve_request_itl_seconds", "", "between two tokens of a stream")             \
  X(Seconds, kE2e, "pdserve_request_e2e_seconds", "", "request received to last byte")              \
  X(Seconds, kPhase, "pdserve_phase_seconds", "phase", "phases of a finished attempt")              \
  X(Gauge, kNodes, "pdserve_nodes", "role,state", "nodes known to the router")                      \
  X(Gauge, kNodeUp, "pdserve_node_up", "node", "1 while the session to the node is open")           \
  /* nodes; on the router's page too, from their load messages */                                   \
  X(Gauge, kBlocks, "pdserve_kv_blocks", "node,state", "cache blocks by state; states sum to the capacity") \
  X(Gauge, kBlocksCapacity, "pdserve_kv_blocks_capacity", "node", "cache blocks of the pool")       \
  X(Gauge, kNodeAttempts, "pdserve_attempts", "node,stage", "attempts on a node: waiting, prefilling, transferring, decoding") \
  X(Gauge, kQueuedTokens, "pdserve_queued_prompt_tokens", "node", "prompt tokens not yet computed") \
  X(Gauge, kPreemptions, "pdserve_preemptions", "node", "sequences that lost their blocks, since the node's start") \
  X(Gauge, kPrefilledTokens, "pdserve_prefilled_tokens", "node", "prompt tokens computed since the node's start") \
  X(Gauge, kGeneratedTokens, "pdserve_generated_tokens", "node", "tokens generated since the node's start") \
  X(Gauge, kTransferBytes, "pdserve_kv_transfer_bytes", "node", "cache bytes handed over since the node's start") \
  X(Counter, kPrefixQueries, "pdserve_prefix_cache_queries_tokens_total", "node,role", "tokens looked up in the prefix cache: prompts to compute (prefill), prompts to fetch (decode)") \
  X(Counter, kPrefixHits, "pdserve_prefix_cache_hits_tokens_total", "node,role", "of them, tokens found") \
  X(Gauge, kLastStep, "pdserve_engine_last_step_timestamp_seconds", "node", "when the step loop last turned") \
  X(Gauge, kTransportInfo, "pdserve_transport_info", "node,transport", "1: the transport in use")   \
  X(Counter, kOffersEnded, "pdserve_kv_offers_total", "node,outcome", "hand-overs ended on the prefill side") \
  X(Counter, kFetchesEnded, "pdserve_kv_fetches_total", "node,outcome", "hand-overs ended on the decode side") \
  X(Seconds, kTransferTime, "pdserve_kv_transfer_seconds", "node", "first to last byte of a hand-over") \
  X(Seconds, kTransferExposed, "pdserve_kv_transfer_exposed_seconds", "node", "hand-over time after the prefill's end") \
  X(Counter, kPoolFaults, "pdserve_kv_pool_faults_total", "node", "idle nodes found with blocks that nobody gave back") \
  X(Gauge, kBuildInfo, "pdserve_build_info", "version", "1: this build")
// clang-format on

namespace pdserve {

enum class Series {
#define PD_SERIES(kind, id, name, labels, help) id,
  PD_METRICS(PD_SERIES)
#undef PD_SERIES
};

class Metrics {
 public:
  /// Label values in the order of the series' list.
  using Labels = std::initializer_list<std::string_view>;

  static std::unique_ptr<Metrics> Create();
  virtual ~Metrics() = default;

  virtual void Add(Series series, Labels labels, double amount) = 0;       // Counter
  virtual void Set(Series series, Labels labels, double value) = 0;        // Gauge
  virtual void Observe(Series series, Labels labels, double seconds) = 0;  // Seconds
  /// Deletes every series whose first label is `node` and this one, but for pdserve_node_up: that a
  /// node is down must stay to be seen.
  virtual void RemoveNode(std::string_view node) = 0;
  /// The page in Prometheus' text format.
  virtual std::string Render() const = 0;
  /// Serves the page on `address` (host:port) from a thread of its own. Once. Unavailable: it
  /// can't.
  virtual absl::Status Serve(const std::string& address) = 0;
};

}  // namespace pdserve

#endif  // PDSERVE_COMMON_METRICS_H_
