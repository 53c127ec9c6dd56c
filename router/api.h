// What each route does. One for the router; a request's work is on its connection's strand, the
// other methods may be called from any thread.
#ifndef PDSERVE_ROUTER_API_H_
#define PDSERVE_ROUTER_API_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/thread_pool.hpp>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "router/answer_shape.h"
#include "router/dispatch.h"
#include "router/fleet_snapshot.h"
#include "router/gate.h"
#include "router/http.h"
#include "router/router.h"
#include "router/routes.h"

namespace pdserve::router {

class Api {
 public:
  Api(const RouterOptions& options, DispatchContext* context);

  boost::asio::awaitable<void> Handle(Exchange& exchange);
  Gate& gate() { return gate_; }
  /// Ends what runs, and what is just about to, with the error of a shutdown.
  void ExpireRunning();

 private:
  class Registration;

  boost::asio::awaitable<int> Serve(Exchange& exchange, const Route& route, absl::Time received);
  boost::asio::awaitable<int> Generate(Exchange& exchange, Endpoint endpoint, absl::Time received);
  boost::asio::awaitable<int> Run(Exchange& exchange, const Ask& ask, absl::Time received);
  boost::asio::awaitable<Result<std::vector<PreparedPrompt>>> PrepareOffThread(
      const Ask& ask, const FleetSnapshot& snapshot);
  int Refuse(Exchange& exchange, const ApiError& error);

  const RouterOptions options_;
  DispatchContext* const context_;
  Gate gate_;
  Mutex mutex_;
  absl::flat_hash_set<std::shared_ptr<Dispatch>> running_ ABSL_GUARDED_BY(mutex_);
  bool is_expiring_ ABSL_GUARDED_BY(mutex_) = false;
  boost::asio::thread_pool text_threads_{1};  // tokenises long texts, so that streams go on
};

/// Sends a request's answer: whole or as a stream. One for each request.
class AnswerSender {
 public:
  AnswerSender(Exchange& exchange, const Ask& ask, std::shared_ptr<Dispatch> dispatch,
               const std::vector<PreparedPrompt>& prompts, AnswerHead head);

  /// The status for metrics: 499 when the client left.
  boost::asio::awaitable<int> SendWhole(const Gate& gate);
  boost::asio::awaitable<int> SendStream(const Clock& clock, absl::Duration keepalive);

 private:
  enum class Step { kGoOn, kEnd };
  Step Pump(absl::Time now, int* status);
  Step Fail(const ApiError& error, int* status);
  std::string TakeEvents();
  ChoicePiece TakePiece(size_t index);
  Usage CountUsage() const;

  Exchange& exchange_;
  const Ask& ask_;
  const std::shared_ptr<Dispatch> dispatch_;
  const std::vector<PreparedPrompt>& prompts_;
  const AnswerShape& shape_;
  const AnswerHead head_;
  const EventWriter events_;
  std::vector<bool> has_begun_, is_finished_;  // by choice
  absl::Duration keepalive_;
  absl::Time hold_until_;
  absl::Time ping_at_;
};

/// Bodies of the small endpoints; pure.
Answer ModelsAnswer(const FleetSnapshot& snapshot);
Answer ModelAnswer(const FleetSnapshot& snapshot, const std::string& id);
Answer HealthAnswer(const FleetSnapshot& snapshot, bool is_draining);
Answer ReadyAnswer(const FleetSnapshot& snapshot, bool is_draining);

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_API_H_
