#include "router/dispatch.h"

#include <thread>

#include "gtest/gtest.h"
#include "tests/router/router_rig.h"

namespace pdserve::testing {
namespace {

using nlohmann::json;

enum class Phase { kQueued, kPrefilling, kHandingOver, kDecoding };
enum class Leaving { kClose, kReset };

std::string Stream(bool is_stream) { return is_stream ? R"("stream":true)" : ""; }

class DispatchTest : public ::testing::Test {
 protected:
  RouterRig rig_;

  // Brings the request, just sent, to `phase`; returns its attempt.
  uint64_t BringTo(Phase phase, bool is_stream, HttpClient& client) {
    const uint64_t attempt = rig_.prefill().NextPrefill().attempt();
    EXPECT_EQ(rig_.decode().NextDecode().attempt(), attempt);
    if (phase >= Phase::kPrefilling) {
      v1::NodeMessage accepted;
      accepted.mutable_accepted()->set_attempt(attempt);
      rig_.prefill().Send(accepted);
      rig_.decode().Send(accepted);
    }
    if (phase >= Phase::kHandingOver) {
      rig_.prefill().SendTokens(attempt, 0, {'a'});
      if (is_stream) client.ReadUntil("\"text\":\"a\"");
    }
    if (phase >= Phase::kDecoding) {
      rig_.decode().SendTokens(attempt, 1, {'b'});
      if (is_stream) client.ReadUntil("\"text\":\"b\"");
    }
    return attempt;
  }

  bool IsQuiet() {
    return Eventually([&] { return rig_.Metric("pdserve_running_requests") == 0; });
  }
};

TEST_F(DispatchTest, ClientThatLeavesInAnyPhaseAndWayCancelsBothNodes) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  double left = 0;
  for (const Phase phase :
       {Phase::kQueued, Phase::kPrefilling, Phase::kHandingOver, Phase::kDecoding}) {
    for (const Leaving leaving : {Leaving::kClose, Leaving::kReset}) {
      for (const bool is_stream : {false, true}) {
        HttpClient client(rig_.address());
        client.Post("/v1/completions", CompletionBody(9, Stream(is_stream)));
        const uint64_t attempt = BringTo(phase, is_stream, client);
        if (leaving == Leaving::kClose) client.Close();
        if (leaving == Leaving::kReset) client.Reset();
        EXPECT_EQ(rig_.prefill().NextCancel(), attempt);
        EXPECT_EQ(rig_.decode().NextCancel(), attempt);
        ++left;
      }
    }
  }
  EXPECT_TRUE(IsQuiet());
  EXPECT_TRUE(Eventually([&] {
    return rig_.Metric(R"(pdserve_requests_total{code="499",endpoint="completions"})") == left;
  }));
  EXPECT_EQ(rig_.Metric(R"(pdserve_attempts_total{outcome="cancelled"})"), left);
}

TEST_F(DispatchTest, ClientThatOnlySendsNoMoreIsServedToTheEnd) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  for (const Phase phase : {Phase::kQueued, Phase::kHandingOver, Phase::kDecoding}) {
    for (const bool is_stream : {false, true}) {
      HttpClient client(rig_.address());
      client.Post("/v1/completions", CompletionBody(3, Stream(is_stream)));
      const uint64_t attempt = BringTo(phase, is_stream, client);
      client.ShutdownWrite();
      // It has been noticed before the answer goes on.
      const bool has_begun = is_stream && phase >= Phase::kHandingOver;
      client.ReadUntil(has_begun ? ": ping\n" : "100 Continue\r\n\r\n");
      rig_.prefill().SendTokens(attempt, 0, {'a'});
      rig_.decode().SendTokens(attempt, 0, {'a', 'b', 'c'});
      rig_.decode().SendFinished(attempt, v1::FINISH_LENGTH, 3);
      const std::string rest = client.ReadUntil(is_stream ? "[DONE]" : "\"usage\"");
      EXPECT_NE(rest.find("length"), std::string::npos) << rest;
      EXPECT_TRUE(is_stream || rest.find("\"abc\"") != std::string::npos) << rest;
      rig_.prefill().SendFinished(attempt, v1::FINISH_HANDED_OVER, 1);
    }
  }
  EXPECT_TRUE(IsQuiet());
  EXPECT_EQ(rig_.prefill().num_cancels() + rig_.decode().num_cancels(), 0u);
}

TEST_F(DispatchTest, LostNodeWithoutAnotherEndsInAnErrorInEveryPhase) {
  for (const Phase phase :
       {Phase::kQueued, Phase::kPrefilling, Phase::kHandingOver, Phase::kDecoding}) {
    for (const bool is_stream : {false, true}) {
      RouterRig rig;
      rig.AddPair(/*is_automatic=*/false);
      rig.Start();
      HttpClient client(rig.address());
      client.Post("/v1/completions", CompletionBody(9, Stream(is_stream)));
      const uint64_t attempt = rig.prefill().NextPrefill().attempt();
      rig.decode().NextDecode();
      const bool has_token = phase >= Phase::kHandingOver;
      if (has_token) rig.prefill().SendTokens(attempt, 0, {'a'});
      if (has_token && is_stream) client.ReadUntil("\"text\":\"a\"");
      if (phase == Phase::kDecoding) rig.decode().SendTokens(attempt, 1, {'b'});
      if (phase == Phase::kDecoding && is_stream) client.ReadUntil("\"text\":\"b\"");
      rig.decode().Stop();
      EXPECT_EQ(rig.prefill().NextCancel(), attempt);
      if (has_token && is_stream) {
        const std::string rest = client.ReadUntil("0\r\n\r\n");
        EXPECT_NE(rest.find(R"(data: {"error":{)"), std::string::npos) << rest;
        EXPECT_EQ(rest.find("[DONE]"), std::string::npos);
        EXPECT_TRUE(client.IsClosedByPeer());
      } else {
        const HttpAnswer answer = client.Read();
        EXPECT_EQ(answer.status, 503) << answer.body;
        EXPECT_EQ(answer.code(), "server_is_overloaded");
        EXPECT_TRUE(answer.headers.contains("retry-after"));
      }
      EXPECT_TRUE(Eventually([&] { return rig.Metric("pdserve_running_requests") == 0; }));
    }
  }
}

TEST_F(DispatchTest, FailedDecodeLegIsReplacedAndTheStreamGoesOnWithoutASeam) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient client(rig_.address());
  client.Post("/v1/completions", CompletionBody(4, R"("stream":true,"return_token_ids":true)"));
  const v1::PrefillRequest first = rig_.prefill().NextPrefill();
  rig_.prefill().SendTokens(first.attempt(), 0, {'a'});
  rig_.prefill().SendFinished(first.attempt(), v1::FINISH_HANDED_OVER, 1);
  client.ReadUntil("\"text\":\"a\"");
  rig_.decode().NextDecode();
  rig_.decode().SendTokens(first.attempt(), 1, {'b'});
  client.ReadUntil("\"text\":\"b\"");
  rig_.decode().SendFinished(first.attempt(), v1::FINISH_FAILED, 2, "lost its blocks");
  const v1::PrefillRequest second = rig_.prefill().NextPrefill();
  const v1::DecodeRequest decode = rig_.decode().NextDecode();
  EXPECT_NE(second.attempt(), first.attempt());
  EXPECT_NE(second.ticket(), first.ticket());
  EXPECT_EQ(
      std::vector<uint32_t>(second.emitted_token_ids().begin(), second.emitted_token_ids().end()),
      (std::vector<uint32_t>{'a', 'b'}));
  EXPECT_EQ(decode.emitted_token_ids_size(), 2);
  rig_.decode().SendTokens(first.attempt(), 2, {'?'});  // late, of the old attempt
  rig_.prefill().SendTokens(second.attempt(), 2, {'c'});
  rig_.decode().SendTokens(second.attempt(), 2, {'c', 'd'});
  rig_.decode().SendFinished(second.attempt(), v1::FINISH_LENGTH, 4);
  const std::string rest = client.ReadUntil("[DONE]");
  EXPECT_EQ(rest.find('?'), std::string::npos);
  EXPECT_NE(rest.find("length"), std::string::npos);
  EXPECT_EQ(rig_.Metric(R"(pdserve_attempts_total{outcome="retried"})"), 1);
}

TEST_F(DispatchTest, AttemptsMoveToAnotherNodeWhenTheirsDies) {
  rig_.AddPair(/*is_automatic=*/true);
  rig_.nodes[0]->SetAutomatic(false);
  MockNodeOptions spare = rig_.PrefillOptions();
  rig_.Add(spare);
  rig_.options.policy = "round_robin";
  rig_.Start();
  ASSERT_TRUE(Eventually([&] { return rig_.Metric("pdserve_node_up") == 3; }));
  HttpClient client(rig_.address());
  client.Post("/v1/completions", CompletionBody(4));
  rig_.prefill().NextPrefill();
  rig_.prefill().Stop();
  const HttpAnswer answer = client.Read();
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["choices"][0]["text"], "abcd");
}

TEST_F(DispatchTest, AttemptsRefusedByFullNodesEndIn503AfterTheLastTry) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.options.max_tries = 2;
  rig_.Start();
  HttpClient client(rig_.address());
  client.Post("/v1/completions", CompletionBody(4));
  for (int i = 0; i < 2; ++i) {
    const uint64_t attempt = rig_.decode().NextDecode().attempt();
    rig_.decode().SendRefused(attempt, "full", /*is_retryable=*/true);
    EXPECT_EQ(rig_.prefill().NextCancel(), attempt);
  }
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 503) << answer.body;
  EXPECT_EQ(answer.code(), "server_is_overloaded");
  EXPECT_EQ(answer.headers.at("retry-after"), "1");
}

TEST_F(DispatchTest, AnAttemptThatAFullNodeRefusesGoesToAnother) {
  rig_.AddPair();
  rig_.decode().SetAutomatic(false);
  rig_.Add(rig_.DecodeOptions());
  rig_.options.policy = "round_robin";
  rig_.Start();
  ASSERT_TRUE(Eventually([&] { return rig_.Metric("pdserve_node_up") == 3; }));
  HttpClient client(rig_.address());
  client.Post("/v1/completions", CompletionBody(4));
  rig_.decode().SendRefused(rig_.decode().NextDecode().attempt(), "full", /*is_retryable=*/true);
  const HttpAnswer answer = client.Read();
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["choices"][0]["text"], "abcd");
}

TEST_F(DispatchTest, ARefusalForGoodIsTheClientsFault) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient client(rig_.address());
  client.Post("/v1/completions", CompletionBody(4));
  const uint64_t attempt = rig_.decode().NextDecode().attempt();
  rig_.decode().SendRefused(attempt, "the pool is too small", /*is_retryable=*/false);
  const HttpAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 400) << answer.body;
  EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
  EXPECT_NE(answer.body.find("the pool is too small"), std::string::npos);
  EXPECT_EQ(rig_.prefill().NextCancel(), attempt);
}

TEST_F(DispatchTest, ANodeThatDiesAfterTheEndTokenLeavesAFinishedAnswer) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient client(rig_.address());
  client.Post("/v1/completions", CompletionBody(9, R"("stream":true)"));
  const uint64_t attempt = rig_.prefill().NextPrefill().attempt();
  rig_.decode().NextDecode();
  rig_.prefill().SendTokens(attempt, 0, {'a'});
  client.ReadUntil("\"text\":\"a\"");
  rig_.decode().SendTokens(attempt, 1, {'b', kEos.value});
  client.ReadUntil("\"text\":\"b\"");
  rig_.decode().Stop();
  const std::string rest = client.ReadUntil("0\r\n\r\n");
  EXPECT_NE(rest.find(R"("finish_reason":"stop")"), std::string::npos) << rest;
  EXPECT_NE(rest.find("[DONE]"), std::string::npos) << rest;
}

TEST_F(DispatchTest, SilentNodeCountsAsLost) {
  rig_.options.peer_timeout = absl::Milliseconds(150);
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient client(rig_.address());
  client.Post("/v1/completions", CompletionBody(4));
  rig_.prefill().NextPrefill();
  rig_.prefill().SetSilent(true);
  EXPECT_EQ(client.Read().status, 503);
  EXPECT_FALSE(rig_.IsReady());
  rig_.prefill().SetSilent(false);
  EXPECT_TRUE(Eventually([&] { return rig_.IsReady(); }));
}

TEST_F(DispatchTest, DeadlineEndsItWith504AndCancelsBothNodes) {
  rig_.options.request_timeout = absl::Milliseconds(100);
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  const HttpAnswer answer = rig_.Ask("/v1/completions", CompletionBody(4));
  EXPECT_EQ(answer.status, 504);
  EXPECT_EQ(answer.code(), "deadline_exceeded");
  EXPECT_EQ(answer.headers.at("x-should-retry"), "false");
  rig_.prefill().NextCancel();
  rig_.decode().NextCancel();
}

TEST_F(DispatchTest, OneFailedChoiceFailsTheRequestAndCancelsTheOthers) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.options.max_tries = 1;
  rig_.Start();
  HttpClient client(rig_.address());
  client.Post("/v1/completions", CompletionBody(4, R"("n":3)"));
  for (int i = 0; i < 3; ++i) rig_.prefill().NextPrefill();
  const uint64_t attempt = rig_.decode().NextDecode().attempt();
  rig_.decode().SendFinished(attempt, v1::FINISH_FAILED, 0, "broken");
  EXPECT_EQ(client.Read().status, 502);
  EXPECT_TRUE(Eventually([&] { return rig_.prefill().num_cancels() == 3; }));
  EXPECT_TRUE(Eventually([&] { return rig_.decode().num_cancels() == 2; }));
}

TEST_F(DispatchTest, CancelsThatAreNotAcknowledgedAreCounted) {
  MockNodeOptions both;
  both.is_automatic = false;
  both.acknowledges_cancels = false;
  rig_.Add(both);
  rig_.Start();
  HttpClient client(rig_.address());
  client.Post("/v1/completions", CompletionBody(4));
  rig_.nodes[0]->NextPrefill();
  client.Close();
  rig_.nodes[0]->NextCancel();
  EXPECT_TRUE(Eventually([&] { return rig_.Metric("pdserve_late_cancels_total") == 1; }));
}

TEST_F(DispatchTest, SlowReaderIsDroppedAndItsAttemptsCancelled) {
  MockNodeOptions both;
  both.is_automatic = false;
  both.max_context_tokens = 1'000'000;
  rig_.Add(both);
  rig_.Start();
  HttpClient client(rig_.address(), /*receive_buffer_bytes=*/4096);
  client.Post("/v1/completions",
              CompletionBody(900'000, R"("stream":true,"return_token_ids":true)"));
  const uint64_t attempt = rig_.nodes[0]->NextPrefill().attempt();
  const std::vector<uint32_t> tokens(10'000, 0x1f);  // \u001f, six bytes in JSON
  for (uint32_t i = 0; i < 60; ++i) rig_.nodes[0]->SendTokens(attempt, i * 10'000, tokens);
  EXPECT_EQ(rig_.nodes[0]->NextCancel(), attempt);
  EXPECT_TRUE(IsQuiet());
  EXPECT_TRUE(Eventually([&] {
    return rig_.Metric(R"(pdserve_requests_total{code="499",endpoint="completions"})") == 1;
  }));
}

TEST_F(DispatchTest, MoreRequestsThanTheLimitAreRefusedAtOnce) {
  rig_.options.max_requests = 1;
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient first(rig_.address());
  first.Post("/v1/completions", CompletionBody(4));
  rig_.prefill().NextPrefill();
  const HttpAnswer second = rig_.Ask("/v1/completions", CompletionBody(4));
  EXPECT_EQ(second.status, 429);
  EXPECT_EQ(second.code(), "slow_down");
  EXPECT_EQ(second.headers.at("retry-after"), "1");
  EXPECT_EQ(rig_.prefill().num_prefills(), 1u);
}

TEST_F(DispatchTest, ChoicesCountAgainstTheLimitOfRequests) {
  rig_.options.max_requests = 4;
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient first(rig_.address());
  first.Post("/v1/completions", CompletionBody(4, R"("n":3)"));
  for (int i = 0; i < 3; ++i) rig_.prefill().NextPrefill();
  const HttpAnswer second = rig_.Ask("/v1/completions", CompletionBody(4, R"("n":2)"));
  EXPECT_EQ(second.status, 429);
  EXPECT_EQ(second.headers.at("retry-after"), "1");
  EXPECT_EQ(rig_.prefill().num_prefills(), 3u);
  // A request counts until its answer is out, so a moment longer than its client waits for it.
  ASSERT_TRUE(Eventually([&] { return rig_.Metric("pdserve_running_requests") == 1; }));
  HttpClient third(rig_.address());
  third.Post("/v1/completions", CompletionBody(4));
  rig_.prefill().NextPrefill();
}

TEST_F(DispatchTest, DrainRefusesNewRequestsAndLetsRunningOnesEnd) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient running(rig_.address());
  running.Post("/v1/completions", CompletionBody(1));
  HttpClient kept(rig_.address());
  kept.Get("/livez");
  EXPECT_EQ(kept.Read().status, 200);
  const uint64_t attempt = rig_.prefill().NextPrefill().attempt();
  bool is_clean = false;
  std::thread drain([&] { is_clean = rig_.router->Drain(absl::Seconds(20)); });
  ASSERT_TRUE(Eventually([&] { return Get(rig_.address(), "/health").status == 503; }));
  EXPECT_EQ(Get(rig_.address(), "/livez").status, 200);
  kept.Post("/v1/completions", CompletionBody(1));
  const HttpAnswer refused = kept.Read();
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_TRUE(refused.headers.contains("retry-after"));
  EXPECT_TRUE(kept.IsClosedByPeer());
  rig_.prefill().SendTokens(attempt, 0, {'a'});
  rig_.prefill().SendFinished(attempt, v1::FINISH_LENGTH, 1);
  EXPECT_EQ(running.Read().status, 200);
  drain.join();
  EXPECT_TRUE(is_clean);
  EXPECT_EQ(Get(rig_.address(), "/livez").status, 0);
}

TEST_F(DispatchTest, ADrainThatTimesOutEndsWhatRunsInAnError) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient whole(rig_.address());
  whole.Post("/v1/completions", CompletionBody(4));
  rig_.prefill().NextPrefill();
  HttpClient waiting(rig_.address());
  waiting.Post("/v1/completions", CompletionBody(4, R"("stream":true)"));
  rig_.prefill().NextPrefill();
  HttpClient streaming(rig_.address());
  streaming.Post("/v1/completions", CompletionBody(4, R"("stream":true)"));
  rig_.prefill().SendTokens(rig_.prefill().NextPrefill().attempt(), 0, {'a'});
  streaming.ReadUntil("\"text\":\"a\"");

  EXPECT_FALSE(rig_.router->Drain(absl::Milliseconds(1)));
  for (HttpClient* client : {&whole, &waiting}) {
    const HttpAnswer answer = client->Read();
    EXPECT_EQ(answer.status, 503) << answer.body;
    EXPECT_EQ(answer.json()["error"]["message"], "the server is shutting down");
    EXPECT_EQ(answer.headers.at("retry-after"), "5");
    EXPECT_EQ(answer.headers.at("connection"), "close");
    EXPECT_TRUE(client->IsClosedByPeer());
  }
  const std::string rest = streaming.ReadUntil("0\r\n\r\n");
  EXPECT_NE(rest.find(R"(data: {"error":{)"), std::string::npos) << rest;
  EXPECT_EQ(rest.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(streaming.IsClosedByPeer());
  EXPECT_TRUE(Eventually([&] { return rig_.prefill().num_cancels() == 3; }));
  EXPECT_EQ(rig_.Metric(R"(pdserve_attempts_total{outcome="expired"})"), 3);
}

TEST_F(DispatchTest, RouterThatStopsCancelsWhatRuns) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient client(rig_.address());
  client.Post("/v1/completions", CompletionBody(4));
  rig_.prefill().NextPrefill();
  rig_.StopRouter();
  EXPECT_EQ(client.Read().status, 0);
}

}  // namespace
}  // namespace pdserve::testing
