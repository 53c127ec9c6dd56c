#include "router/router.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <thread>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "router/api.h"
#include "router/dispatch.h"
#include "router/fleet.h"
#include "router/http.h"
#include "router/policy.h"
#include "spdlog/fmt/fmt.h"

namespace pdserve::router {
namespace {

// For the errors of requests that a drain has ended, on their way to the clients.
constexpr absl::Duration kLastWords = absl::Seconds(1);

class LiveRouter final : public Router {
 public:
  LiveRouter(const RouterOptions& options, std::unique_ptr<Policy> policy, Metrics* metrics,
             const Clock* clock)
      : options_(options),
        policy_(std::move(policy)),
        io_(static_cast<int>(options.http_threads)),
        fleet_(options, io_, metrics, clock),
        api_(options, Prepare(metrics, clock)),
        http_(
            HttpOptionsFrom(options), io_,
            [this](Exchange& exchange) { return api_.Handle(exchange); }, clock) {}

  // Requests first, as they speak to sessions; then sessions, whose timers need the threads.
  ~LiveRouter() override {
    api_.gate().Shut();
    http_.Close();
    fleet_.Close();
    work_.reset();
    io_.stop();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Listen() {
    for (int64_t i = 0; i < options_.http_threads; ++i) {
      threads_.emplace_back([this] { io_.run(); });
    }
    RETURN_IF_ERROR(http_.Listen(options_.listen));
    address_ = http_.address();
    fleet_.Open();
    return absl::OkStatus();
  }

  std::string address() const override { return address_; }

  bool Drain(absl::Duration timeout) override {
    api_.gate().Shut();
    const bool is_empty = api_.gate().WaitUntilEmpty(timeout);
    if (!is_empty) {
      api_.ExpireRunning();
      api_.gate().WaitUntilEmpty(kLastWords);
    }
    http_.StopListening();
    return is_empty;
  }

 private:
  static HttpOptions HttpOptionsFrom(const RouterOptions& options) {
    return {options.max_connections, options.max_body_bytes, options.max_header_bytes,
            options.idle_timeout, options.max_bodies_bytes};
  }

  DispatchContext* Prepare(Metrics* metrics, const Clock* clock) {
    context_.fleet = &fleet_;
    context_.policy = policy_.get();
    context_.metrics = metrics;
    context_.clock = clock;
    context_.max_tries = options_.max_tries;
    context_.whole_prompt_tokens = options_.whole_prompt_tokens;
    return &context_;
  }

  const RouterOptions options_;
  const std::unique_ptr<Policy> policy_;
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  Fleet fleet_;
  DispatchContext context_;
  Api api_;
  HttpServer http_;
  std::string address_;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Router>> Router::Start(const RouterOptions& options,
                                                      Metrics* metrics, const Clock* clock) {
  std::unique_ptr<Policy> policy = MakePolicy(options.policy);
  if (policy == nullptr) {
    return absl::InvalidArgumentError(fmt::format("policy '{}' is unknown; known are: {}",
                                                  options.policy,
                                                  absl::StrJoin(PolicyNames(), ", ")));
  }
  auto router = std::make_unique<LiveRouter>(options, std::move(policy), metrics, clock);
  RETURN_IF_ERROR(router->Listen());
  return router;
}

}  // namespace pdserve::router
