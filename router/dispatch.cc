#include "router/dispatch.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <string_view>
#include <utility>

#include "spdlog/spdlog.h"

namespace pdserve::router {
namespace {

// Each attempt brings at most its tokens and one end for each leg, so this is never reached by a
// node that keeps to the protocol; one that does not loses what it sends beyond it.
constexpr size_t kMailboxLimit = 1 << 18;

v1::Generation GenerationFrom(const Ask& ask, const PreparedPrompt& prompt, uint32_t sample,
                              uint64_t seed) {
  v1::Generation generation;
  generation.mutable_prompt_token_ids()->Reserve(static_cast<int>(prompt.token_ids.size()));
  for (const TokenId id : prompt.token_ids) generation.add_prompt_token_ids(id.value);
  generation.set_max_tokens(static_cast<uint32_t>(prompt.max_tokens));
  generation.set_ignore_eos(ask.ignore_eos);
  v1::Sampling& sampling = *generation.mutable_sampling();
  sampling.set_temperature(static_cast<float>(ask.temperature));
  sampling.set_top_p(static_cast<float>(ask.top_p));
  sampling.set_top_k(ask.top_k);
  sampling.set_seed(seed);
  sampling.set_choice(sample);
  return generation;
}

// The part that both requests of an attempt have in common.
template <typename Request>
Request RequestFrom(const Lane& lane, AttemptId attempt, const std::string& ticket,
                    absl::Duration left) {
  Request request;
  request.set_attempt(attempt.value);
  request.set_ticket(ticket);
  *request.mutable_generation() = lane.generation;
  for (const TokenId id : lane.choice.tokens()) request.add_emitted_token_ids(id.value);
  request.set_deadline_ms(std::max<int64_t>(1, absl::ToInt64Milliseconds(left)));
  return request;
}

ApiError ErrorOf(const Choice& choice) {
  if (choice.ending() == Ending::kFailed) return NodeFailed(choice.failure());
  if (choice.ending() == Ending::kRefused) return Unservable(choice.failure());
  return Overloaded(fmt::format("no node can take the request now: {}", choice.failure()),
                    choice.retry_after());
}

std::string_view OutcomeName(Ending ending) {
  switch (ending) {
    case Ending::kStop:
    case Ending::kLength:
    case Ending::kSatisfied:
      return "finished";
    case Ending::kAbandoned:
      return "cancelled";
    case Ending::kExpired:
      return "expired";
    case Ending::kFailed:
    case Ending::kRejected:
    case Ending::kRefused:
      return "failed";
  }
  return "failed";
}

}  // namespace

Dispatch::Dispatch(DispatchContext* context, std::shared_ptr<const ServedModel> model,
                   const boost::asio::any_io_executor& strand, absl::Time received,
                   absl::Time deadline)
    : context_(context),
      model_(std::move(model)),
      strand_(strand),
      received_(received),
      deadline_(deadline) {}

void Dispatch::Add(const Ask& ask, const PreparedPrompt& prompt, uint32_t sample, uint64_t seed) {
  ChoiceLimits limits{prompt.max_tokens, context_->max_tries, model_->vocab_size, {}};
  if (!ask.ignore_eos) limits.end_tokens = model_->end_tokens;
  ChoiceText text(model_->text->NewDecoder(/*skip_special=*/true), ask.stop);
  Lane& lane = lanes_.emplace_back(std::move(limits), std::move(text), context_->clock->Now());
  lane.generation = GenerationFrom(ask, prompt, sample, seed);
}

void Dispatch::Start(Event* wake) {
  wake_ = wake;
  for (Lane& lane : lanes_) {
    if (!error_) Feed(lane, TryPlace(lane));
  }
}

void Dispatch::Expire(const ApiError& error) {
  if (is_done()) return;
  error_ = error;
  FeedAll(Expired{});
}

void Dispatch::PostExpire(ApiError error) {
  boost::asio::post(strand_, [self = shared_from_this(), error = std::move(error)] {
    self->Expire(error);
    if (self->wake_ != nullptr) self->wake_->Notify();
  });
}

void Dispatch::Detach() {
  wake_ = nullptr;
  FeedAll(Abandoned{});
}

void Dispatch::FeedAll(const ChoiceEvent& event) {
  for (Lane& lane : lanes_) {
    if (!lane.has_ended()) Feed(lane, event);
  }
}

void Dispatch::OnNodeEvent(NodeEvent event) {
  {
    MutexLock lock(&mutex_);
    if (mailbox_.size() >= kMailboxLimit) return;
    mailbox_.push_back(std::move(event));
    if (std::exchange(is_scheduled_, true)) return;
  }
  boost::asio::post(strand_, [self = shared_from_this()] { self->Drain(); });
}

void Dispatch::Drain() {
  std::vector<NodeEvent> events;
  {
    MutexLock lock(&mutex_);
    events.swap(mailbox_);
    is_scheduled_ = false;
  }
  for (NodeEvent& event : events) {
    const auto lane = attempts_.find(event.attempt);
    if (lane != attempts_.end()) Feed(*lane->second, std::move(event));
  }
  if (wake_ != nullptr) wake_->Notify();
}

void Dispatch::Feed(Lane& lane, ChoiceEvent event) {
  Events events;
  events.push_back(std::move(event));
  while (!events.empty()) {
    const ChoiceEvent next = std::move(events.front());
    events.pop_front();
    for (const ChoiceAction& action : lane.choice.Advance(next, context_->clock->Now())) {
      Perform(lane, action, events);
    }
  }
}

void Dispatch::Perform(Lane& lane, const ChoiceAction& action, Events& events) {
  if (std::holds_alternative<Place>(action)) {
    context_->metrics->Add(Series::kAttempts, {"retried"}, 1);
    spdlog::info("attempt failed, trying again: {}", lane.choice.failure());
    events.push_back(TryPlace(lane));
  }
  if (const auto* start = std::get_if<StartAttempt>(&action)) {
    SendAttempt(lane, start->attempt, events);
  }
  if (const auto* let_go = std::get_if<LetGo>(&action)) {
    context_->fleet->session(let_go->node).LetGo(let_go->attempt, let_go->is_over);
  }
  if (const auto* deliver = std::get_if<Deliver>(&action)) ShowTokens(lane, *deliver, events);
  if (std::holds_alternative<End>(action)) EndLane(lane);
}

ChoiceEvent Dispatch::TryPlace(Lane& lane) {
  lane.prefill_work = Booking();
  lane.decode_work = Booking();
  lane.placed_by = context_->fleet->snapshot();
  if (lane.placed_by->model->fingerprint != model_->fingerprint) {
    return Unplaceable{"the model has changed", absl::Seconds(1)};
  }
  RequestFacts facts;
  facts.sequence = context_->placements++;
  facts.prompt_tokens = lane.generation.prompt_token_ids_size();
  facts.max_tokens = lane.generation.max_tokens();
  facts.whole_prompt_tokens = context_->whole_prompt_tokens;
  facts.avoid = lane.choice.avoid();
  const Picked picked = Pick(*context_->policy, facts, *lane.placed_by, context_->clock->Now());
  if (const auto* rejection = std::get_if<Rejection>(&picked)) {
    context_->metrics->Add(Series::kDecisions, {"reject", rejection->reason}, 1);
    return Unplaceable{std::string(rejection->reason), rejection->retry_after};
  }
  const auto& placement = std::get<Placement>(picked);
  context_->metrics->Add(Series::kDecisions,
                         {placement.is_whole() ? "whole" : "split", placement.reason}, 1);
  lane.prefill_work = context_->fleet->Book(placement.prefill, {facts.prompt_tokens, 0});
  lane.decode_work = context_->fleet->Book(placement.decode, {0, 1});
  return Placed{{AttemptId{++context_->last_attempt}, placement.prefill, placement.decode}};
}

void Dispatch::SendAttempt(Lane& lane, const Attempt& attempt, Events& events) {
  attempts_[attempt.id] = &lane;
  const std::string ticket = RandomBytes(16);
  const absl::Duration left = deadline_ - context_->clock->Now();
  auto prefill = RequestFrom<v1::PrefillRequest>(lane, attempt.id, ticket, left);
  prefill.set_mode(attempt.is_whole() ? v1::MODE_WHOLE : v1::MODE_HAND_OVER);
  Fleet& fleet = *context_->fleet;
  if (!fleet.session(attempt.prefill).StartPrefill(std::move(prefill), shared_from_this())) {
    events.push_back(NodeEvent{attempt.id, attempt.prefill, LegLost{}});
    return;
  }
  if (attempt.is_whole()) return;
  const NodeFacts& peer = lane.placed_by->nodes[attempt.prefill.value].facts;
  auto decode = RequestFrom<v1::DecodeRequest>(lane, attempt.id, ticket, left);
  decode.set_prefill_transfer_address(peer.transfer_address);
  decode.set_prefill_incarnation(peer.incarnation.value);
  if (!fleet.session(attempt.decode).StartDecode(std::move(decode), shared_from_this())) {
    events.push_back(NodeEvent{attempt.id, attempt.decode, LegLost{}});
  }
}

void Dispatch::ShowTokens(Lane& lane, const Deliver& deliver, Events& events) {
  const absl::Time now = context_->clock->Now();
  lane.prefill_work = Booking();
  if (!std::exchange(has_first_token_, true)) {
    context_->metrics->Observe(Series::kTtft, {lane.choice.is_whole() ? "whole" : "split"},
                               absl::ToDoubleSeconds(now - received_));
  }
  if (lane.last_token_at != absl::InfinitePast()) {
    context_->metrics->Observe(Series::kItl, {}, absl::ToDoubleSeconds(now - lane.last_token_at));
  }
  lane.last_token_at = now;
  const std::span<const TokenId> tokens(lane.choice.tokens());
  const bool was_matched = lane.text.matched().has_value();
  if (lane.text.Push(tokens.subspan(deliver.first, deliver.count)) && !was_matched) {
    events.push_back(Satisfied{});
  }
}

void Dispatch::EndLane(Lane& lane) {
  ++num_ended_;
  lane.prefill_work = Booking();
  lane.decode_work = Booking();
  lane.text.Finish();
  CountEnd(lane);
  if (error_ || OutcomeName(lane.choice.ending()) != "failed") return;
  error_ = ErrorOf(lane.choice);
  if (lane.choice.ending() == Ending::kFailed) spdlog::warn("request failed: {}", error_->message);
  FeedAll(Abandoned{});
}

void Dispatch::CountEnd(const Lane& lane) {
  Metrics& metrics = *context_->metrics;
  const std::string_view outcome = OutcomeName(lane.choice.ending());
  metrics.Add(Series::kAttempts, {outcome}, 1);
  if (outcome != "finished") return;
  metrics.Add(Series::kPromptTokens, {}, lane.generation.prompt_token_ids_size());
  metrics.Add(Series::kGenerationTokens, {}, static_cast<double>(lane.text.num_tokens()));
  const LegTimes& times = lane.choice.leg_times();
  const auto observe = [&](std::string_view phase, absl::Duration time) {
    metrics.Observe(Series::kPhase, {phase}, absl::ToDoubleSeconds(time));
  };
  observe("queue", times.queue);
  observe("prefill", times.prefill);
  observe("transfer", times.transfer);
  observe("decode_queue", times.decode_queue);
  observe("decode", times.decode);
}

}  // namespace pdserve::router
