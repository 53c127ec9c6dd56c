#include <algorithm>
#include <utility>

#include "router/api.h"

namespace pdserve::router {

namespace asio = boost::asio;

namespace {

constexpr int kClientLeft = 499;
// Until the first token, and no longer, a failure can still be a status code.
constexpr absl::Duration kHoldHeaders = absl::Seconds(5);

std::string FinishReason(const Lane& lane) {
  if (lane.text.matched() || lane.choice.ending() == Ending::kStop) return "stop";
  return "length";
}

}  // namespace

AnswerSender::AnswerSender(Exchange& exchange, const Ask& ask, std::shared_ptr<Dispatch> dispatch,
                           const std::vector<PreparedPrompt>& prompts, AnswerHead head)
    : exchange_(exchange),
      ask_(ask),
      dispatch_(std::move(dispatch)),
      prompts_(prompts),
      shape_(ask.endpoint == Endpoint::kChat ? ChatShape() : CompletionsShape()),
      head_(std::move(head)),
      events_(shape_, head_, ask.include_usage),
      has_begun_(dispatch_->lanes().size()),
      is_finished_(dispatch_->lanes().size()) {}

ChoicePiece AnswerSender::TakePiece(size_t index) {
  Lane& lane = dispatch_->lanes()[index];
  const size_t samples = static_cast<size_t>(ask_.n);
  ChoicePiece piece;
  piece.index = index;
  piece.is_first = !has_begun_[index];
  piece.text = lane.text.TakeText();
  std::vector<TokenId> tokens = lane.text.TakeTokens();
  if (ask_.return_token_ids) piece.token_ids = std::move(tokens);
  if (ask_.return_token_ids && piece.is_first && index % samples == 0) {
    piece.prompt_token_ids = &prompts_[index / samples].token_ids;
  }
  if (lane.has_ended()) {
    piece.finish_reason = FinishReason(lane);
    piece.stop_reason = lane.text.matched();
  }
  return piece;
}

Usage AnswerSender::CountUsage() const {
  Usage usage;
  for (const PreparedPrompt& prompt : prompts_) {
    usage.prompt_tokens += static_cast<int64_t>(prompt.token_ids.size());
  }
  const size_t samples = static_cast<size_t>(ask_.n);
  for (size_t i = 0; i < dispatch_->lanes().size(); ++i) {
    const Lane& lane = dispatch_->lanes()[i];
    usage.completion_tokens += static_cast<int64_t>(lane.text.num_tokens());
    // As the prompt itself, what of it came from the cache counts once.
    if (i % samples == 0) usage.cached_tokens += lane.choice.cached_tokens();
  }
  return usage;
}

asio::awaitable<int> AnswerSender::SendWhole(const Gate& gate) {
  while (!dispatch_->is_done()) {
    if (exchange_.client_left()) co_return kClientLeft;
    const bool is_woken = co_await exchange_.event().Wait(dispatch_->deadline());
    if (!is_woken) dispatch_->Expire(DeadlineExceeded());
  }
  if (exchange_.client_left()) co_return kClientLeft;
  Answer answer;
  if (const auto& error = dispatch_->error()) {
    answer = AnswerFrom(*error);
  } else {
    std::vector<ChoicePiece> pieces;
    pieces.reserve(dispatch_->lanes().size());
    for (size_t i = 0; i < dispatch_->lanes().size(); ++i) pieces.push_back(TakePiece(i));
    answer.body = WholeAnswer(shape_, head_, pieces, CountUsage());
  }
  answer.must_close = gate.is_shut();
  exchange_.Respond(answer);
  co_return answer.status;
}

std::string AnswerSender::TakeEvents() {
  std::string events;
  for (size_t i = 0; i < dispatch_->lanes().size(); ++i) {
    Lane& lane = dispatch_->lanes()[i];
    if (is_finished_[i] || (lane.text.num_tokens() == 0 && !lane.has_ended())) continue;
    events_.Append(TakePiece(i), &events);
    has_begun_[i] = true;
    is_finished_[i] = lane.has_ended();
  }
  return events;
}

AnswerSender::Step AnswerSender::Fail(const ApiError& error, int* status) {
  *status = error.status;
  if (exchange_.has_started()) {
    exchange_.Send("data: " + ErrorJson(error) + "\n\n");
    exchange_.EndStream(/*must_close=*/true);
  } else {
    exchange_.Respond(AnswerFrom(error));
  }
  return Step::kEnd;
}

AnswerSender::Step AnswerSender::Pump(absl::Time now, int* status) {
  if (now >= dispatch_->deadline()) dispatch_->Expire(DeadlineExceeded());
  if (const auto& error = dispatch_->error()) return Fail(*error, status);
  std::string events = TakeEvents();
  const bool is_done = dispatch_->is_done();
  if (is_done) events_.AppendEnd(CountUsage(), &events);
  if (!exchange_.has_started() && (!events.empty() || now >= hold_until_)) {
    exchange_.StartStream();
    ping_at_ = now + keepalive_;
  }
  if (!events.empty()) {
    exchange_.Send(events);
    ping_at_ = now + keepalive_;
  } else if (exchange_.has_started() && now >= ping_at_) {
    exchange_.Send(kStreamComment);
    ping_at_ = now + keepalive_;
  }
  if (is_done) {
    exchange_.EndStream(/*must_close=*/false);
    *status = exchange_.status();
    return Step::kEnd;
  }
  return Step::kGoOn;
}

asio::awaitable<int> AnswerSender::SendStream(const Clock& clock, absl::Duration keepalive) {
  keepalive_ = keepalive;
  hold_until_ = clock.Now() + std::min(kHoldHeaders, keepalive);
  ping_at_ = absl::InfiniteFuture();
  int status = kClientLeft;
  while (Pump(clock.Now(), &status) == Step::kGoOn) {
    const absl::Time next = exchange_.has_started() ? ping_at_ : hold_until_;
    const absl::Time deadline = std::min(next, dispatch_->deadline());
    co_await exchange_.event().Wait(std::min(deadline, exchange_.stuck_at()));
    if (exchange_.client_left()) co_return kClientLeft;
    if (clock.Now() >= exchange_.stuck_at()) {
      exchange_.Drop();
      co_return kClientLeft;
    }
  }
  co_return status;
}

}  // namespace pdserve::router
