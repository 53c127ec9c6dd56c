// One request's choices on their way: places them, speaks to the sessions, merges what comes back,
// until each has ended. The decisions are Choice's; here are the queue, the messages and the
// metrics. All on the request's strand, save OnNodeEvent. After Detach nothing is woken any more
// and every node has been told.
#ifndef PDSERVE_ROUTER_DISPATCH_H_
#define PDSERVE_ROUTER_DISPATCH_H_

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/metrics.h"
#include "common/mutex.h"
#include "proto/generation.pb.h"
#include "router/ask.h"
#include "router/choice.h"
#include "router/choice_text.h"
#include "router/errors.h"
#include "router/event.h"
#include "router/fleet.h"
#include "router/policy.h"
#include "router/random.h"

namespace pdserve::router {

/// What all dispatches share; outlives them.
struct DispatchContext {
  Fleet* fleet = nullptr;
  const Policy* policy = nullptr;
  Metrics* metrics = nullptr;
  const Clock* clock = nullptr;
  int64_t max_tries = 3;
  int64_t whole_prompt_tokens = 0;
  std::atomic<uint64_t> placements = 0;
  std::atomic<uint64_t> last_attempt = RandomBits();
};

/// One choice: its life and what it shows.
struct Lane {
  Lane(ChoiceLimits limits, ChoiceText shown, absl::Time now)
      : choice(std::move(limits), now), text(std::move(shown)) {}
  Choice choice;
  ChoiceText text;
  v1::Generation generation;
  std::shared_ptr<const FleetSnapshot> placed_by;
  Booking prefill_work, decode_work;
  absl::Time last_token_at = absl::InfinitePast();
  bool has_ended() const { return choice.state() == ChoiceState::kEnded; }
};

class Dispatch final : public AttemptSink, public std::enable_shared_from_this<Dispatch> {
 public:
  Dispatch(DispatchContext* context, std::shared_ptr<const ServedModel> model,
           const boost::asio::any_io_executor& strand, absl::Time received, absl::Time deadline);

  /// One choice of `ask`: sample `sample` of a prompt. Before Start.
  void Add(const Ask& ask, const PreparedPrompt& prompt, uint32_t sample, uint64_t seed);

  /// `wake` is notified whenever something has changed, until Detach.
  void Start(Event* wake);
  /// The request's time is over: what has not ended fails with `error`.
  void Expire(const ApiError& error);
  /// The same from any thread.
  void PostExpire(ApiError error);
  /// Nobody waits for an answer any more: cancels what still runs.
  void Detach();

  bool is_done() const { return num_ended_ == lanes_.size(); }
  /// Set as soon as one choice has failed: the request as a whole has.
  const std::optional<ApiError>& error() const { return error_; }
  std::deque<Lane>& lanes() { return lanes_; }
  absl::Time deadline() const { return deadline_; }

  void OnNodeEvent(NodeEvent event) override;

 private:
  using Events = std::deque<ChoiceEvent>;

  void Drain();
  void Feed(Lane& lane, ChoiceEvent event);
  void FeedAll(const ChoiceEvent& event);
  void Perform(Lane& lane, const ChoiceAction& action, Events& events);
  ChoiceEvent TryPlace(Lane& lane);
  void SendAttempt(Lane& lane, const Attempt& attempt, Events& events);
  void ShowTokens(Lane& lane, const Deliver& deliver, Events& events);
  void EndLane(Lane& lane);
  void CountEnd(const Lane& lane);

  DispatchContext* const context_;
  const std::shared_ptr<const ServedModel> model_;
  const boost::asio::any_io_executor strand_;
  const absl::Time received_;
  const absl::Time deadline_;
  Event* wake_ = nullptr;
  std::deque<Lane> lanes_;
  absl::flat_hash_map<AttemptId, Lane*> attempts_;
  size_t num_ended_ = 0;
  bool has_first_token_ = false;
  std::optional<ApiError> error_;

  Mutex mutex_;
  std::vector<NodeEvent> mailbox_ ABSL_GUARDED_BY(mutex_);
  bool is_scheduled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_DISPATCH_H_
