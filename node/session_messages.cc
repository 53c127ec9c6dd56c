#include "node/session_messages.h"

#include <algorithm>

namespace pdserve::node {
namespace {

engine::Generation FromMessage(const engine::AttemptKey& key, const v1::Generation& message) {
  engine::Generation generation;
  generation.key = key;
  generation.prompt.assign(message.prompt_token_ids().begin(), message.prompt_token_ids().end());
  generation.max_tokens = message.max_tokens();
  generation.ignore_eos = message.ignore_eos();
  generation.sampling.temperature = message.sampling().temperature();
  generation.sampling.top_p = message.sampling().top_p();
  generation.sampling.top_k = message.sampling().top_k();
  generation.sampling.seed = message.sampling().seed();
  generation.sampling.choice = message.sampling().choice();
  generation.cache_salt = message.cache_salt();
  return generation;
}

v1::FinishReason ToReason(engine::Outcome outcome) {
  switch (outcome) {
    case engine::Outcome::kStop:
      return v1::FINISH_STOP;
    case engine::Outcome::kLength:
      return v1::FINISH_LENGTH;
    case engine::Outcome::kCancelled:
      return v1::FINISH_CANCELLED;
    case engine::Outcome::kFailed:
      return v1::FINISH_FAILED;
    case engine::Outcome::kHandedOver:
      return v1::FINISH_HANDED_OVER;
  }
  return v1::FINISH_FAILED;
}

}  // namespace

prefill::Request FromMessage(SessionId session, const v1::PrefillRequest& message) {
  prefill::Request request;
  request.generation = FromMessage({session, AttemptId{message.attempt()}}, message.generation());
  request.generation.emitted.assign(message.emitted_token_ids().begin(),
                                    message.emitted_token_ids().end());
  request.generation.deadline = absl::Milliseconds(message.deadline_ms());
  request.ticket = message.ticket();
  if (message.mode() == v1::MODE_HAND_OVER) request.mode = prefill::Mode::kHandOver;
  if (message.mode() == v1::MODE_WHOLE) request.mode = prefill::Mode::kWhole;
  return request;
}

decode::Request FromMessage(SessionId session, const v1::DecodeRequest& message) {
  decode::Request request;
  request.generation = FromMessage({session, AttemptId{message.attempt()}}, message.generation());
  request.generation.emitted.assign(message.emitted_token_ids().begin(),
                                    message.emitted_token_ids().end());
  request.generation.deadline = absl::Milliseconds(message.deadline_ms());
  request.ticket = message.ticket();
  request.peer_address = message.prefill_transfer_address();
  request.peer_incarnation = Incarnation{message.prefill_incarnation()};
  return request;
}

v1::NodeMessage AcceptedMessage(AttemptId attempt) {
  v1::NodeMessage message;
  message.mutable_accepted()->set_attempt(attempt.value);
  return message;
}

v1::NodeMessage RefusedMessage(AttemptId attempt, const engine::Refusal& refusal) {
  v1::NodeMessage message;
  v1::Refused* refused = message.mutable_refused();
  refused->set_attempt(attempt.value);
  refused->set_reason(refusal.reason);
  refused->set_retryable(refusal.retryable);
  refused->set_retry_after_ms(absl::ToInt64Milliseconds(refusal.retry_after));
  return message;
}

v1::NodeMessage FinishedMessage(AttemptId attempt, const engine::Ending& ending) {
  v1::NodeMessage message;
  v1::Finished* finished = message.mutable_finished();
  finished->set_attempt(attempt.value);
  finished->set_reason(ToReason(ending.outcome));
  finished->set_error(ending.error);
  finished->set_output_tokens(ending.output_tokens);
  finished->set_cached_tokens(ending.cached_tokens);
  v1::PhaseTimes* times = finished->mutable_times();
  times->set_queue_us(absl::ToInt64Microseconds(ending.times.queue));
  times->set_prefill_us(absl::ToInt64Microseconds(ending.times.prefill));
  times->set_transfer_us(absl::ToInt64Microseconds(ending.times.transfer));
  times->set_decode_queue_us(absl::ToInt64Microseconds(ending.times.decode_queue));
  times->set_decode_us(absl::ToInt64Microseconds(ending.times.decode));
  times->set_transfer_bytes(ending.times.transfer_bytes);
  return message;
}

v1::NodeMessage DrainingMessage() {
  v1::NodeMessage message;
  message.mutable_draining();
  return message;
}

v1::NodeMessage PongMessage(uint64_t sequence) {
  v1::NodeMessage message;
  message.mutable_pong()->set_sequence(sequence);
  return message;
}

v1::NodeMessage LoadMessage(const LoadFigures& figures) {
  v1::NodeMessage message;
  v1::Load* load = message.mutable_load();
  load->set_capacity_blocks(figures.capacity_blocks);
  load->set_free_blocks(figures.free_blocks);
  load->set_cached_blocks(figures.cached_blocks);
  load->set_sequence_blocks(figures.sequence_blocks);
  load->set_transfer_blocks(figures.transfer_blocks);
  load->set_waiting(figures.waiting);
  load->set_prefilling(figures.prefilling);
  load->set_transferring(figures.transferring);
  load->set_decoding(figures.decoding);
  load->set_queued_tokens(figures.queued_tokens);
  load->set_preemptions(figures.preemptions);
  load->set_prefilled_tokens(figures.prefilled_tokens);
  load->set_generated_tokens(figures.generated_tokens);
  load->set_transfer_bytes(figures.transfer_bytes);
  return message;
}

}  // namespace pdserve::node
