// Every option once: one line of PD_OPTIONS. The list makes the flag, its parsing, its range check,
// its help line and its field of Config. Parsed once at start, frozen after; a component takes its
// own small struct by value, made from Config by main. No other code reads flags or environment.
#ifndef PDSERVE_COMMON_CONFIG_H_
#define PDSERVE_COMMON_CONFIG_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

// X(type, name, default, low, high, help): type is Text, Integer, Time or Switch. A Text's range is
// a list of its allowed values parted by '|', or "" for any and for names of variants; numbers and
// times lie in [low, high]; a Switch is true or false. Durations are written like 250ms, 30s, 5m.
// clang-format off
#define PD_OPTIONS(X)                                                                                   \
  /* where */                                                                                           \
  X(Text, listen, "", "", "", "address of the HTTP server (router, all) or of the sessions (nodes); default by role") \
  X(Text, transfer_listen, "127.0.0.1:0", "", "", "address where a node's peers reach its cache pool; port 0 takes any") \
  X(Text, metrics_listen, "", "", "", "address of a node's own Prometheus page; empty for none")        \
  X(Text, nodes, "", "", "", "router: addresses of the nodes' sessions, parted by commas")              \
  X(Text, node_id, "", "", "", "name of this node in metrics and logs; default role@listen")            \
  /* model and engine */                                                                                \
  X(Text, model, "", "", "", "the model: a GGUF file, or a folder with config.json and safetensors")      \
  X(Text, model_name, "", "", "", "name under which the model is served; default the file name without its ending")        \
  X(Text, isa, "auto", "", "", "kernels' instruction set; auto takes the best that works")             \
  X(Text, activations, "int8", "int8|fp32", "", "activations in products with quantised weights: int8 is fast, fp32 is exact") \
  X(Text, kv_dtype, "auto", "auto|bf16|fp32", "", "type of the cache; auto is bf16, and fp32 with fp32 activations") \
  X(Integer, threads, 0, 0, 1024, "compute threads of a node; 0 is one per core")                       \
  X(Integer, block_tokens, 32, 32, 32, "tokens in a cache block")                                       \
  X(Integer, kv_pool_bytes, int64_t{1} << 30, 1 << 20, int64_t{1} << 46, "bytes of each node's cache pool") \
  X(Switch, prefix_cache, true, false, true, "keep computed blocks for later prompts that begin alike, until their room is needed") \
  X(Integer, max_context, 0, 0, 1 << 24, "longest sequence in tokens; 0 is the model's own limit")      \
  X(Integer, max_step_tokens, 256, 1, 65536, "tokens computed in one engine step at most")              \
  X(Integer, itl_target_ms, 0, 0, 60000, "milliseconds between a sequence's tokens that prompts on the same node leave; 0 for no target") \
  X(Integer, max_batch, 64, 1, 4096, "sequences decoded together at most")                              \
  X(Integer, max_attempts, 1024, 1, 1 << 20, "attempts that a node holds at once, waiting ones included") \
  /* hand-over */                                                                                       \
  X(Text, transport, "auto", "", "", "how cache bytes travel; auto is inproc within one process, else tcp") \
  X(Integer, piece_bytes, 4 << 20, 4096, int64_t{1} << 30, "bytes in one piece at most (at least one block is sent)") \
  X(Integer, pieces_in_flight, 8, 1, 1024, "pieces of a hand-over sent and not yet written out")        \
  X(Integer, max_unknown_fetches, 1024, 1, 1 << 20, "fetches kept that came before their ticket")       \
  X(Time, fetch_wait, absl::Seconds(10), absl::Milliseconds(1), absl::Hours(1), "how long such a fetch is kept") \
  X(Time, heartbeat_interval, absl::Milliseconds(500), absl::Milliseconds(10), absl::Minutes(5), "between heartbeats on a session and a link") \
  X(Time, peer_timeout, absl::Seconds(3), absl::Milliseconds(50), absl::Hours(1), "silence after which a peer counts as lost") \
  /* router */                                                                                          \
  X(Text, policy, "least_work", "", "", "how the router places attempts")                               \
  X(Integer, whole_prompt_tokens, 0, 0, 1 << 24, "prompts up to this many tokens run whole on a node with both roles") \
  X(Integer, http_threads, 2, 1, 256, "threads of the HTTP server")                                     \
  X(Integer, max_connections, 4096, 1, 1 << 20, "HTTP connections at once")                             \
  X(Integer, max_requests, 512, 1, 1 << 20, "choices of requests in progress; more are refused with 429") \
  X(Integer, max_body_bytes, 8 << 20, 1024, 1 << 30, "bytes of a request's body")                       \
  X(Integer, max_header_bytes, 32 << 10, 1024, 1 << 20, "bytes of a request's header")                  \
  X(Integer, max_choices, 16, 1, 128, "largest n of a request")                                         \
  X(Integer, max_tries, 3, 1, 16, "attempts for one choice before it fails")                            \
  X(Time, request_timeout, absl::Minutes(10), absl::Seconds(1), absl::Hours(24), "longest life of a request") \
  X(Time, idle_timeout, absl::Seconds(75), absl::Seconds(1), absl::Hours(1), "an HTTP connection without a request is closed after") \
  X(Time, keepalive_interval, absl::Seconds(10), absl::Milliseconds(10), absl::Hours(1), "between comments on a silent stream") \
  /* process */                                                                                         \
  X(Time, drain_timeout, absl::Seconds(30), absl::ZeroDuration(), absl::Hours(1), "time for running requests after SIGTERM") \
  X(Text, log_level, "info", "debug|info|warn|error", "", "least severe level that is logged")
// clang-format on

namespace pdserve {

enum class Role { kRouter, kPrefill, kDecode, kBoth, kAll };

/// All options, parsed and checked. Field types: Text std::string, Integer int64_t, Time
/// absl::Duration, Switch bool.
struct Config {
  using Text = std::string;
  using Integer = int64_t;
  using Time = absl::Duration;
  using Switch = bool;
  Role role = Role::kAll;
#define PD_FIELD(type, name, standard, low, high, help) type name{standard};
  PD_OPTIONS(PD_FIELD)
#undef PD_FIELD

  std::vector<std::string> node_addresses() const;
};

/// What the command line asked for: a config to run with, or text to print and end with.
struct CommandLine {
  Config config;
  std::string text;   // set: print this and end with `exit_code`
  int exit_code = 0;  // 0 for help, 2 for a wrong value (one line that names it)
};

/// Option > the values it may have, where those are the names of variants: main knows their lists.
using VariantNames = std::map<std::string, std::vector<std::string>>;

/// Parses `pdserve ROLE --option=value ...`; also --flagfile, --help, --version. Call once.
CommandLine ParseCommandLine(int argc, char** argv, const VariantNames& variants = {});

std::string RoleName(Role role);

}  // namespace pdserve

#endif  // PDSERVE_COMMON_CONFIG_H_
