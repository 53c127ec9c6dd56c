#include "node/session_messages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "engine/generation.h"

namespace pdserve::node {
namespace {

v1::Generation SomeGeneration() {
  v1::Generation generation;
  for (uint32_t id : {3, 4, 5}) generation.add_prompt_token_ids(id);
  generation.set_max_tokens(9);
  generation.set_ignore_eos(true);
  generation.mutable_sampling()->set_temperature(0.5f);
  generation.mutable_sampling()->set_top_p(0.9f);
  generation.mutable_sampling()->set_top_k(40);
  generation.mutable_sampling()->set_seed(77);
  generation.mutable_sampling()->set_choice(2);
  return generation;
}

void ExpectSame(const engine::Generation& generation) {
  EXPECT_EQ(generation.key.session, SessionId{6});
  EXPECT_EQ(generation.key.attempt, AttemptId{8});
  EXPECT_EQ(generation.prompt, (std::vector<uint32_t>{3, 4, 5}));
  EXPECT_EQ(generation.emitted, (std::vector<uint32_t>{6, 7}));
  EXPECT_EQ(generation.max_tokens, 9u);
  EXPECT_TRUE(generation.ignore_eos);
  EXPECT_EQ(generation.sampling.temperature, 0.5f);
  EXPECT_EQ(generation.sampling.top_p, 0.9f);
  EXPECT_EQ(generation.sampling.top_k, 40);
  EXPECT_EQ(generation.sampling.seed, 77u);
  EXPECT_EQ(generation.sampling.choice, 2u);
  EXPECT_EQ(generation.deadline, absl::Milliseconds(1500));
}

TEST(SessionMessagesTest, APrefillRequestArrivesWithAllItsFields) {
  v1::PrefillRequest message;
  message.set_attempt(8);
  message.set_ticket("sixteen bytes...");
  *message.mutable_generation() = SomeGeneration();
  message.add_emitted_token_ids(6);
  message.add_emitted_token_ids(7);
  message.set_deadline_ms(1500);
  message.set_mode(v1::MODE_HAND_OVER);
  const prefill::Request request = FromMessage(SessionId{6}, message);
  ExpectSame(request.generation);
  EXPECT_EQ(request.ticket, "sixteen bytes...");
  EXPECT_EQ(request.mode, prefill::Mode::kHandOver);
  message.set_mode(v1::MODE_WHOLE);
  EXPECT_EQ(FromMessage(SessionId{6}, message).mode, prefill::Mode::kWhole);
}

TEST(SessionMessagesTest, ADecodeRequestArrivesWithAllItsFields) {
  v1::DecodeRequest message;
  message.set_attempt(8);
  message.set_ticket("sixteen bytes...");
  *message.mutable_generation() = SomeGeneration();
  message.add_emitted_token_ids(6);
  message.add_emitted_token_ids(7);
  message.set_deadline_ms(1500);
  message.set_prefill_transfer_address("127.0.0.1:9");
  message.set_prefill_incarnation(123);
  const decode::Request request = FromMessage(SessionId{6}, message);
  ExpectSame(request.generation);
  EXPECT_EQ(request.ticket, "sixteen bytes...");
  EXPECT_EQ(request.peer_address, "127.0.0.1:9");
  EXPECT_EQ(request.peer_incarnation, Incarnation{123});
}

TEST(SessionMessagesTest, AModeOfALaterProtocolIsUnknown) {
  v1::PrefillRequest message;
  EXPECT_EQ(FromMessage(SessionId{1}, message).mode, prefill::Mode::kUnknown);
  message.set_mode(static_cast<v1::Mode>(99));
  EXPECT_EQ(FromMessage(SessionId{1}, message).mode, prefill::Mode::kUnknown);
}

TEST(SessionMessagesTest, AnyValueBecomesARequestThatTheLimitsRefuseOrCut) {
  const engine::GenerationLimits limits{10, 16, 16};
  const absl::Time now = absl::FromUnixSeconds(1000);
  v1::PrefillRequest empty;
  EXPECT_TRUE(absl::IsInvalidArgument(
      engine::MakeSequence(FromMessage(SessionId{1}, empty).generation, limits, now).status()));
  const int64_t deadlines[] = {std::numeric_limits<int64_t>::min(), -1, 0,
                               std::numeric_limits<int64_t>::max()};
  for (const int64_t deadline_ms : deadlines) {
    v1::PrefillRequest message;
    *message.mutable_generation() = SomeGeneration();
    message.mutable_generation()->set_max_tokens(std::numeric_limits<uint32_t>::max());
    message.set_attempt(std::numeric_limits<uint64_t>::max());
    message.set_deadline_ms(deadline_ms);
    const auto sequence =
        engine::MakeSequence(FromMessage(SessionId{1}, message).generation, limits, now);
    EXPECT_EQ(sequence.ok(), deadline_ms > 0);
    if (sequence.ok()) {
      EXPECT_EQ(sequence->deadline, now + engine::kLongestAttempt);
    }
    message.mutable_generation()->mutable_sampling()->set_temperature(std::nanf(""));
    EXPECT_FALSE(
        engine::MakeSequence(FromMessage(SessionId{1}, message).generation, limits, now).ok());
  }
}

TEST(SessionMessagesTest, ARefusalCarriesItsReasonAndWhenToTryAgain) {
  const v1::NodeMessage message =
      RefusedMessage(AttemptId{8}, {"full", true, absl::Milliseconds(250)});
  EXPECT_EQ(message.refused().attempt(), 8u);
  EXPECT_EQ(message.refused().reason(), "full");
  EXPECT_TRUE(message.refused().retryable());
  EXPECT_EQ(message.refused().retry_after_ms(), 250);
}

TEST(SessionMessagesTest, AnEndingCarriesItsReasonCountsAndTimes) {
  engine::Ending ending;
  ending.outcome = engine::Outcome::kFailed;
  ending.error = "why";
  ending.output_tokens = 12;
  ending.times = {absl::Microseconds(1), absl::Microseconds(2), absl::Microseconds(3),
                  absl::Microseconds(4), absl::Microseconds(5), 6};
  const v1::Finished finished = FinishedMessage(AttemptId{8}, ending).finished();
  EXPECT_EQ(finished.attempt(), 8u);
  EXPECT_EQ(finished.reason(), v1::FINISH_FAILED);
  EXPECT_EQ(finished.error(), "why");
  EXPECT_EQ(finished.output_tokens(), 12u);
  EXPECT_EQ(finished.times().queue_us(), 1);
  EXPECT_EQ(finished.times().prefill_us(), 2);
  EXPECT_EQ(finished.times().transfer_us(), 3);
  EXPECT_EQ(finished.times().decode_queue_us(), 4);
  EXPECT_EQ(finished.times().decode_us(), 5);
  EXPECT_EQ(finished.times().transfer_bytes(), 6u);
}

TEST(SessionMessagesTest, APongRepeatsThePingsNumber) {
  EXPECT_EQ(PongMessage(77).pong().sequence(), 77u);
  EXPECT_TRUE(DrainingMessage().has_draining());
}

TEST(SessionMessagesTest, EachOutcomeHasItsOwnReason) {
  const std::pair<engine::Outcome, v1::FinishReason> pairs[] = {
      {engine::Outcome::kStop, v1::FINISH_STOP},
      {engine::Outcome::kLength, v1::FINISH_LENGTH},
      {engine::Outcome::kCancelled, v1::FINISH_CANCELLED},
      {engine::Outcome::kFailed, v1::FINISH_FAILED},
      {engine::Outcome::kHandedOver, v1::FINISH_HANDED_OVER},
  };
  for (const auto& [outcome, reason] : pairs) {
    engine::Ending ending;
    ending.outcome = outcome;
    EXPECT_EQ(FinishedMessage(AttemptId{1}, ending).finished().reason(), reason);
  }
}

TEST(SessionMessagesTest, ALoadCarriesEachFigureInItsOwnField) {
  const v1::Load load = LoadMessage({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}).load();
  EXPECT_EQ(load.capacity_blocks(), 1u);
  EXPECT_EQ(load.free_blocks(), 2u);
  EXPECT_EQ(load.cached_blocks(), 3u);
  EXPECT_EQ(load.sequence_blocks(), 4u);
  EXPECT_EQ(load.transfer_blocks(), 5u);
  EXPECT_EQ(load.waiting(), 6u);
  EXPECT_EQ(load.prefilling(), 7u);
  EXPECT_EQ(load.transferring(), 8u);
  EXPECT_EQ(load.decoding(), 9u);
  EXPECT_EQ(load.queued_tokens(), 10u);
  EXPECT_EQ(load.preemptions(), 11u);
  EXPECT_EQ(load.prefilled_tokens(), 12u);
  EXPECT_EQ(load.generated_tokens(), 13u);
  EXPECT_EQ(load.transfer_bytes(), 14u);
}

}  // namespace
}  // namespace pdserve::node
