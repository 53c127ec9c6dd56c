#include "router/choice.h"

#include <algorithm>
#include <utility>

#include "spdlog/fmt/fmt.h"

namespace pdserve::router {

Choice::Choice(ChoiceLimits limits, absl::Time now)
    : limits_(std::move(limits)), now_(now), entered_(now) {}

std::vector<ChoiceAction> Choice::Advance(const ChoiceEvent& event, absl::Time now) {
  Actions actions;
  if (state_ == ChoiceState::kEnded) return actions;
  now_ = now;
  if (const auto* placed = std::get_if<Placed>(&event)) On(*placed, actions);
  if (const auto* unplaceable = std::get_if<Unplaceable>(&event)) On(*unplaceable, actions);
  if (const auto* node_event = std::get_if<NodeEvent>(&event)) On(*node_event, actions);
  if (std::holds_alternative<Satisfied>(event)) Finish(Ending::kSatisfied, actions);
  if (std::holds_alternative<Abandoned>(event)) Finish(Ending::kAbandoned, actions);
  if (std::holds_alternative<Expired>(event)) Finish(Ending::kExpired, actions);
  return actions;
}

absl::Duration Choice::time_in(ChoiceState state) const {
  const absl::Duration now_spent = state == state_ ? now_ - entered_ : absl::ZeroDuration();
  return spent_[static_cast<int>(state)] + now_spent;
}

void Choice::Enter(ChoiceState state) {
  spent_[static_cast<int>(state_)] += now_ - entered_;
  entered_ = now_;
  state_ = state;
}

void Choice::On(const Placed& event, Actions& actions) {
  if (state_ != ChoiceState::kPlacing) return;
  ++tries_;
  attempt_ = event.attempt;
  is_live_ = true;
  prefill_leg_ = {event.attempt.prefill, /*is_open=*/true};
  decode_leg_ = {event.attempt.decode, /*is_open=*/!event.attempt.is_whole()};
  finish_.reset();
  leg_times_ = LegTimes{};
  Enter(ChoiceState::kPrefilling);
  actions.push_back(StartAttempt{event.attempt});
}

void Choice::On(const Unplaceable& event, Actions& actions) {
  if (state_ != ChoiceState::kPlacing) return;
  // What made the last attempt fail says more than that there is no other node.
  if (failure_.empty()) failure_ = event.reason;
  retry_after_ = std::max(retry_after_, event.retry_after);
  Finish(Ending::kRejected, actions);
}

Choice::Leg* Choice::FindLeg(NodeIndex node) {
  if (prefill_leg_.is_open && prefill_leg_.node == node) return &prefill_leg_;
  if (decode_leg_.is_open && decode_leg_.node == node) return &decode_leg_;
  return nullptr;
}

void Choice::On(const NodeEvent& event, Actions& actions) {
  if (!is_live_ || event.attempt != attempt_.id) return;
  Leg* leg = FindLeg(event.from);
  if (leg == nullptr) return;
  if (const auto* tokens = std::get_if<TokensArrived>(&event.what)) {
    OnTokens(*leg, *tokens, actions);
  }
  if (const auto* finished = std::get_if<LegFinished>(&event.what)) {
    OnFinished(*leg, *finished, actions);
  }
  if (const auto* refused = std::get_if<LegRefused>(&event.what)) {
    OnRefused(*leg, *refused, actions);
  }
  if (std::holds_alternative<LegLost>(event.what)) OnLost(*leg, actions);
}

void Choice::Merge(const TokensArrived& event) {
  for (size_t i = 0; i < event.tokens.size(); ++i) {
    const uint64_t index = uint64_t{event.first_index} + i;
    if (index >= static_cast<uint64_t>(limits_.max_tokens)) break;
    if (index == tokens_.size()) {
      tokens_.push_back(event.tokens[i]);
    } else if (index > tokens_.size()) {
      ahead_.emplace(static_cast<uint32_t>(index), event.tokens[i]);
    }
  }
  while (!ahead_.empty() && ahead_.begin()->first <= tokens_.size()) {
    if (ahead_.begin()->first == tokens_.size()) tokens_.push_back(ahead_.begin()->second);
    ahead_.erase(ahead_.begin());
  }
}

void Choice::OnTokens(Leg& leg, const TokensArrived& event, Actions& actions) {
  for (const TokenId token : event.tokens) {
    if (token.value < limits_.vocab_size) continue;
    return Fail(leg, "a node sent a token outside the vocabulary", actions);
  }
  leg.has_tokens = leg.has_tokens || !event.tokens.empty();
  const size_t before = tokens_.size();
  Merge(event);
  if (tokens_.size() > before) {
    if (state_ == ChoiceState::kPrefilling) Enter(ChoiceState::kDecoding);
    actions.push_back(Deliver{before, tokens_.size() - before});
  }
  EndIfComplete(actions);
}

void Choice::OnFinished(Leg& leg, const LegFinished& event, Actions& actions) {
  leg.is_open = false;
  cached_tokens_ = std::max(cached_tokens_, event.cached_tokens);
  // The decode node repeats what its peer told it with the commit.
  leg_times_.queue = std::max(leg_times_.queue, event.times.queue);
  leg_times_.prefill = std::max(leg_times_.prefill, event.times.prefill);
  leg_times_.transfer = std::max(leg_times_.transfer, event.times.transfer);
  leg_times_.decode_queue = std::max(leg_times_.decode_queue, event.times.decode_queue);
  leg_times_.decode = std::max(leg_times_.decode, event.times.decode);
  const bool is_prefill_of_pair = &leg == &prefill_leg_ && !attempt_.is_whole();
  switch (event.end) {
    case LegEnd::kStop:
    case LegEnd::kLength:
      finish_ = event;
      break;
    case LegEnd::kHandedOver:
      if (!is_prefill_of_pair) return Fail(leg, "a node ended without its tokens", actions);
      break;
    case LegEnd::kCancelled:
      // Its peer gave the hand-over up, and is about to say how the attempt ended.
      if (&leg == &decode_leg_ && prefill_leg_.is_open) return;
      return Fail(leg, "a node gave the attempt up", actions);
    case LegEnd::kFailed:
      // The decode node has the cache once it decodes; what its peer says then is of no matter.
      if (is_prefill_of_pair && decode_leg_.has_tokens) return;
      return Fail(leg, fmt::format("failed on a node: {}", event.error), actions);
  }
  EndIfComplete(actions);
  const bool may_still_come = prefill_leg_.is_open || decode_leg_.is_open;
  if (state_ != ChoiceState::kEnded && !may_still_come) {
    Fail(leg, "tokens are missing", actions);
  }
}

void Choice::OnRefused(Leg& leg, const LegRefused& event, Actions& actions) {
  leg.is_open = false;
  std::string why = fmt::format("refused by a node: {}", event.reason);
  if (event.is_retryable) {
    retry_after_ = event.retry_after;
    return Fail(leg, std::move(why), actions, Ending::kRejected);
  }
  // What is the router's own in a request is sound, so this is about what the client asked for.
  failure_ = std::move(why);
  Finish(Ending::kRefused, actions);
}

void Choice::OnLost(Leg& leg, Actions& actions) {
  leg.is_open = false;
  if (&leg == &prefill_leg_ && !attempt_.is_whole() && decode_leg_.has_tokens) return;
  Fail(leg, "the connection to a node was lost", actions);
}

void Choice::EndIfComplete(Actions& actions) {
  if (!finish_) return;
  const LegFinished& finish = *finish_;
  const uint64_t expected =
      std::min<uint64_t>(finish.output_tokens, static_cast<uint64_t>(limits_.max_tokens));
  if (tokens_.size() < expected) return;
  Finish(finish.end == LegEnd::kStop ? Ending::kStop : Ending::kLength, actions);
}

void Choice::LetGoOfLegs(bool is_complete, Actions& actions) {
  for (Leg* leg : {&prefill_leg_, &decode_leg_}) {
    if (!leg->is_open) continue;
    // When the decode node has finished, its peer is about to say that it has handed over.
    const bool is_over = is_complete && leg == &prefill_leg_ && decode_leg_.has_tokens;
    actions.push_back(LetGo{attempt_.id, leg->node, is_over});
    leg->is_open = false;
  }
  is_live_ = false;
}

void Choice::Finish(Ending ending, Actions& actions) {
  const bool is_complete = ending == Ending::kStop || ending == Ending::kLength;
  ending_ = ending;
  if (is_live_) LetGoOfLegs(is_complete, actions);
  Enter(ChoiceState::kEnded);
  actions.push_back(End{});
}

std::optional<Ending> Choice::FoundEnd() const {
  if (tokens_.empty()) return std::nullopt;
  const auto& ends = limits_.end_tokens;
  if (std::binary_search(ends.begin(), ends.end(), tokens_.back())) return Ending::kStop;
  if (std::ssize(tokens_) >= limits_.max_tokens) return Ending::kLength;
  return std::nullopt;
}

void Choice::Fail(const Leg& leg, std::string why, Actions& actions, Ending ending) {
  if (const auto found = FoundEnd()) return Finish(*found, actions);
  failure_ = std::move(why);
  // An earlier attempt's refusal says nothing about this one's failure.
  if (ending != Ending::kRejected) retry_after_ = absl::ZeroDuration();
  avoid_.push_back(leg.node);
  if (tries_ >= limits_.max_tries) return Finish(ending, actions);
  ahead_.clear();
  finish_.reset();
  LetGoOfLegs(/*is_complete=*/false, actions);
  Enter(ChoiceState::kPlacing);
  actions.push_back(Place{});
}

}  // namespace pdserve::router
