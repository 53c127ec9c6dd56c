// pdserve: parse the options, start the role's parts, wait for SIGTERM, drain, exit.
#include <grpc/grpc.h>
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/config.h"
#include "common/metrics.h"
#include "common/status_macros.h"
#include "engine/model.h"
#include "engine/ops.h"
#include "kvtransfer/transport.h"
#include "node/node.h"
#include "router/policy.h"
#include "router/router.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"
#include "text/text.h"

namespace pdserve {
namespace {

engine::ModelOptions ModelOptionsFrom(const Config& config) {
  engine::ModelOptions options;
  options.path = config.model;
  options.isa = config.isa;
  options.activations = config.activations;
  options.kv_dtype = config.kv_dtype;
  options.block_tokens = static_cast<int32_t>(config.block_tokens);
  options.max_context_tokens = static_cast<int32_t>(config.max_context);
  options.threads = static_cast<int32_t>(config.threads);
  options.max_rows = static_cast<int32_t>(config.max_step_tokens);
  return options;
}

kvtransfer::PumpOptions PumpOptionsFrom(const Config& config) {
  kvtransfer::PumpOptions options;
  const bool is_one_process = config.role == Role::kAll;
  options.transport =
      config.transport == "auto" ? (is_one_process ? "inproc" : "tcp") : config.transport;
  options.listen = config.transfer_listen;
  options.piece_bytes = config.piece_bytes;
  options.pieces_in_flight = config.pieces_in_flight;
  options.max_unknown_fetches = config.max_unknown_fetches;
  options.max_hand_overs = config.max_attempts;
  options.fetch_wait = config.fetch_wait;
  options.heartbeat_interval = config.heartbeat_interval;
  options.peer_timeout = config.peer_timeout;
  return options;
}

node::NodeOptions NodeOptionsFrom(const Config& config, Role role) {
  node::NodeOptions options;
  options.node_id = config.role == Role::kAll ? RoleName(role) : config.node_id;
  options.prefills = role == Role::kPrefill || role == Role::kBoth;
  options.decodes = role == Role::kDecode || role == Role::kBoth;
  options.listen = config.role == Role::kAll ? "" : config.listen;
  options.kv_pool_bytes = config.kv_pool_bytes;
  options.prefix_cache = config.prefix_cache;
  options.max_batch = static_cast<int32_t>(config.max_batch);
  options.max_attempts = static_cast<int32_t>(config.max_attempts);
  options.step_loop.max_step_tokens = static_cast<int32_t>(config.max_step_tokens);
  options.step_loop.itl_target = absl::Milliseconds(config.itl_target_ms);
  options.pump = PumpOptionsFrom(config);
  options.heartbeat_interval = config.heartbeat_interval;
  options.peer_timeout = config.peer_timeout;
  options.model_name =
      config.model_name.empty() ? engine::ModelNameFromPath(config.model) : config.model_name;
  return options;
}

router::RouterOptions RouterOptionsFrom(const Config& config) {
  router::RouterOptions options;
  options.listen = config.listen;
  options.policy = config.policy;
  options.model_name = config.model_name;
  options.whole_prompt_tokens = config.whole_prompt_tokens;
  options.http_threads = config.http_threads;
  options.max_connections = config.max_connections;
  options.max_requests = config.max_requests;
  options.max_body_bytes = config.max_body_bytes;
  options.max_header_bytes = config.max_header_bytes;
  options.max_choices = config.max_choices;
  options.max_tries = config.max_tries;
  options.request_timeout = config.request_timeout;
  options.idle_timeout = config.idle_timeout;
  options.keepalive_interval = config.keepalive_interval;
  options.heartbeat_interval = config.heartbeat_interval;
  options.peer_timeout = config.peer_timeout;
  for (const std::string& address : config.node_addresses()) {
    options.nodes.push_back({address, nullptr});
  }
  return options;
}

// The options know no variant by name: the lists of variants do, so that a new one needs no change
// of the options.
VariantNames ListVariants() {
  VariantNames variants;
  variants["policy"] = router::PolicyNames();
  variants["transport"] = {"auto"};
  for (const std::string& name : kvtransfer::TransportNames()) {
    variants["transport"].push_back(name);
  }
  variants["isa"] = {"auto"};
  for (const engine::OpsVariant& isa : engine::AllOps()) variants["isa"].emplace_back(isa.name);
  return variants;
}

// What runs in this process. Members end in reverse order: router first, clock last.
struct Process {
  SystemClock clock;
  std::unique_ptr<Metrics> metrics = Metrics::Create();
  std::vector<std::unique_ptr<node::Node>> nodes;
  std::unique_ptr<router::Router> router;

  // Requests end at the router before its nodes stop taking attempts.
  bool Drain(absl::Duration timeout) {
    const absl::Time deadline = clock.Now() + timeout;
    bool is_clean = router == nullptr || router->Drain(timeout);
    for (auto& node : nodes) {
      const absl::Duration left = deadline - clock.Now();
      is_clean = node->Drain(left < absl::ZeroDuration() ? absl::ZeroDuration() : left) && is_clean;
    }
    return is_clean;
  }
};

std::vector<Role> NodeRoles(Role role) {
  if (role == Role::kRouter) return {};
  if (role == Role::kAll) return {Role::kPrefill, Role::kDecode};
  return {role};
}

absl::Status StartNodes(const Config& config, Process& process) {
  const std::vector<Role> roles = NodeRoles(config.role);
  if (roles.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(std::shared_ptr<engine::Model> model,
                   engine::LoadModel(ModelOptionsFrom(config)));
  // Routers build their tokenizer from this; what they would refuse must not be served.
  if (const auto text = text::Text::Load(model->card().text_spec); !text.ok()) {
    return absl::InvalidArgumentError(config.model + ": " + std::string(text.status().message()));
  }
  for (const Role role : roles) {
    ASSIGN_OR_RETURN(auto node, node::Node::Start(NodeOptionsFrom(config, role), model,
                                                  process.metrics.get(), &process.clock));
    process.nodes.push_back(std::move(node));
  }
  return absl::OkStatus();
}

absl::Status StartProcess(const Config& config, Process& process) {
  RETURN_IF_ERROR(StartNodes(config, process));
  if (config.role == Role::kRouter || config.role == Role::kAll) {
    router::RouterOptions options = RouterOptionsFrom(config);
    for (auto& node : process.nodes) options.nodes.push_back({"", node->InProcessChannel()});
    ASSIGN_OR_RETURN(process.router,
                     router::Router::Start(options, process.metrics.get(), &process.clock));
  }
  if (config.metrics_listen.empty()) return absl::OkStatus();
  if (const auto served = process.metrics->Serve(config.metrics_listen); !served.ok()) {
    return absl::Status(served.code(), "--metrics_listen: " + std::string(served.message()));
  }
  return absl::OkStatus();
}

// Blocked in every thread, so that only a wait takes them.
sigset_t BlockSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return signals;
}

int WaitAndDrain(const sigset_t& signals, const Config& config, Process& process) {
  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("signal {}: draining for at most {}", signal,
               absl::FormatDuration(config.drain_timeout));
  std::thread([signals] {
    int second = 0;
    sigwait(&signals, &second);
    spdlog::warn("second signal: ending at once");
    _exit(1);
  }).detach();
  if (!process.Drain(config.drain_timeout)) {
    spdlog::warn("the drain time is over; what still ran was ended");
  }
  return 0;
}

int Run(const Config& config) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("pdserve"));
  spdlog::set_level(spdlog::level::from_str(config.log_level));
  const sigset_t signals = BlockSignals();
  grpc_init();  // and never shut down: with the last server gone, that waits up to 10 s for a
                // poller
  Process process;
  if (const absl::Status status = StartProcess(config, process); !status.ok()) {
    spdlog::error("{}", std::string(status.message()));
    return 1;
  }
  if (process.router != nullptr) spdlog::info("router: http on {}", process.router->address());
  for (auto& node : process.nodes) {
    spdlog::info("node: sessions on {}",
                 config.role == Role::kAll ? "this process" : node->session_address());
  }
  return WaitAndDrain(signals, config, process);
}

}  // namespace
}  // namespace pdserve

int main(int argc, char** argv) {
  const pdserve::CommandLine line = pdserve::ParseCommandLine(argc, argv, pdserve::ListVariants());
  if (!line.text.empty()) {
    std::fputs(line.text.c_str(), line.exit_code == 0 ? stdout : stderr);
    return line.exit_code;
  }
  return pdserve::Run(line.config);
}
