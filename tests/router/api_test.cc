#include "router/api.h"

#include <set>

#include "gtest/gtest.h"
#include "tests/router/router_rig.h"

namespace pdserve::testing {
namespace {

using nlohmann::json;

std::string TextOf(const HttpAnswer& answer) {
  std::string text;
  for (const std::string& event : Events(answer.body)) {
    if (event == "[DONE]") continue;
    const json chunk = json::parse(event);
    for (const json& choice : chunk["choices"]) {
      text += choice.contains("text") ? choice["text"].get<std::string>()
                                      : choice["delta"].value("content", "");
    }
  }
  return text;
}

class ApiTest : public ::testing::Test {
 protected:
  RouterRig rig_;
};

TEST_F(ApiTest, WholeChatAnswerHasTheOpenAiShape) {
  rig_.AddPair();
  rig_.Start();
  const HttpAnswer answer = rig_.Ask("/v1/chat/completions", ChatBody(5));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json body = answer.json();
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "mock-model");
  EXPECT_EQ(body["system_fingerprint"], "fp_010101010101");
  EXPECT_EQ(body["id"].get<std::string>().substr(0, 9), "chatcmpl-");
  ASSERT_EQ(body["choices"].size(), 1u);
  EXPECT_EQ(body["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "abcde");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 18);  // "user:hi\nassistant:"
  EXPECT_EQ(body["usage"]["completion_tokens"], 5);
  EXPECT_EQ(body["usage"]["total_tokens"], 23);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  EXPECT_FALSE(body["choices"][0].contains("token_ids"));
  EXPECT_TRUE(Eventually([&] { return rig_.prefill().num_prefills() == 1; }));
  EXPECT_EQ(rig_.decode().num_decodes(), 1u);
}

TEST_F(ApiTest, WholeCompletionGivesTokenIdsAndPromptIdsWhenAskedFor) {
  rig_.AddPair();
  rig_.Start();
  const HttpAnswer answer =
      rig_.Ask("/v1/completions", CompletionBody(3, R"("return_token_ids":true)"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json choice = answer.json()["choices"][0];
  EXPECT_EQ(answer.json()["object"], "text_completion");
  EXPECT_EQ(choice["text"], "abc");
  EXPECT_EQ(choice["token_ids"], json({97, 98, 99}));
  EXPECT_EQ(choice["prompt_token_ids"], json({257, 104, 105}));
}

TEST_F(ApiTest, PromptsOfTokenIdsGetNoBosAndEachPromptItsChoices) {
  rig_.AddPair();
  rig_.Start();
  const HttpAnswer answer = rig_.Ask(
      "/v1/completions", R"({"prompt":[[1,2],[3]],"max_tokens":2,"n":2,"return_token_ids":true})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const json body = answer.json();
  ASSERT_EQ(body["choices"].size(), 4u);
  EXPECT_EQ(body["choices"][0]["prompt_token_ids"], json({1, 2}));
  EXPECT_FALSE(body["choices"][1].contains("prompt_token_ids"));
  EXPECT_EQ(body["choices"][2]["prompt_token_ids"], json({3}));
  EXPECT_EQ(body["choices"][3]["index"], 3);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 8);
}

TEST_F(ApiTest, StreamedChatFollowsTheGrammar) {
  rig_.AddPair();
  rig_.Start();
  const HttpAnswer answer = rig_.Ask(
      "/v1/chat/completions",
      ChatBody(4,
               R"("stream":true,"stream_options":{"include_usage":true},"return_token_ids":true)"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.headers.at("content-type"), "text/event-stream");
  EXPECT_EQ(answer.headers.at("cache-control"), "no-cache");
  EXPECT_EQ(answer.headers.at("x-accel-buffering"), "no");
  EXPECT_EQ(answer.body.find("event:"), std::string::npos);
  const std::vector<std::string> events = Events(answer.body);
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  const json first = json::parse(events.front());
  EXPECT_EQ(first["choices"][0]["delta"], json({{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(first["prompt_token_ids"].size(), 18u);
  EXPECT_TRUE(first["usage"].is_null());
  const json last = json::parse(events[events.size() - 3]);
  EXPECT_EQ(last["choices"][0]["delta"], json::object());
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  const json usage = json::parse(events[events.size() - 2]);
  EXPECT_EQ(usage["choices"], json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 4);
  json ids = json::array();
  for (size_t i = 0; i + 3 < events.size(); ++i) {
    const json chunk = json::parse(events[i]);
    EXPECT_EQ(chunk["id"], first["id"]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_EQ(chunk["created"], first["created"]);
    EXPECT_TRUE(chunk["choices"][0]["finish_reason"].is_null());
    EXPECT_EQ(i > 0, !chunk["choices"][0]["delta"].contains("role"));
    for (const json& id : chunk["choices"][0].value("token_ids", json::array())) ids.push_back(id);
  }
  EXPECT_EQ(ids, json({97, 98, 99, 100}));
  EXPECT_EQ(TextOf(answer), "abcd");
}

TEST_F(ApiTest, StreamWithoutIncludeUsageHasNoUsage) {
  rig_.AddPair();
  rig_.Start();
  const HttpAnswer answer = rig_.Ask("/v1/completions", CompletionBody(3, R"("stream":true)"));
  ASSERT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body.find("usage"), std::string::npos);
  EXPECT_EQ(TextOf(answer), "abc");
  for (const std::string& event : Events(answer.body)) {
    if (event == "[DONE]") continue;
    EXPECT_EQ(json::parse(event)["object"], "text_completion");
    EXPECT_FALSE(json::parse(event)["choices"].empty());
  }
}

TEST_F(ApiTest, EosEndsWithStopAndIsCountedButNotShown) {
  MockNodeOptions prefill = rig_.PrefillOptions();
  prefill.output = [](const v1::Generation&) { return std::vector<uint32_t>{'o', 'k', 256}; };
  MockNodeOptions decode = rig_.DecodeOptions();
  decode.output = prefill.output;
  rig_.Add(prefill);
  rig_.Add(decode);
  rig_.Start();
  const json body =
      rig_.Ask("/v1/completions", CompletionBody(9, R"("return_token_ids":true)")).json();
  EXPECT_EQ(body["choices"][0]["text"], "ok");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(body["choices"][0]["stop_reason"].is_null());
  EXPECT_EQ(body["choices"][0]["token_ids"], json({'o', 'k', 256}));
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
}

TEST_F(ApiTest, FirstTokenThatEndsAllNeedsNoDecodeNode) {
  rig_.AddPair();
  rig_.Start();
  const json body = rig_.Ask("/v1/completions", CompletionBody(1)).json();
  EXPECT_EQ(body["choices"][0]["text"], "a");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  rig_.decode().NextCancel();
}

TEST_F(ApiTest, StopStringOverTokensAndChunksIsCutAndCancelsTheAttempt) {
  rig_.AddPair();
  rig_.Start();
  for (const char* stream : {"false", "true"}) {
    const HttpAnswer answer = rig_.Ask(
        "/v1/completions",
        CompletionBody(1000, std::string(R"("stop":["efg","xyz"],"return_token_ids":true,)") +
                                 R"("stream_options":)" +
                                 (*stream == 't' ? R"({"include_usage":true})" : "null") +
                                 R"(,"stream":)" + stream));
    ASSERT_EQ(answer.status, 200) << answer.body;
    if (*stream == 't') {
      EXPECT_EQ(TextOf(answer), "abcd");
      const std::vector<std::string> events = Events(answer.body);
      const json last = json::parse(events[events.size() - 3]);
      EXPECT_EQ(last["choices"][0]["finish_reason"], "stop");
      EXPECT_EQ(last["choices"][0]["stop_reason"], "efg");
      EXPECT_EQ(json::parse(events[events.size() - 2])["usage"]["completion_tokens"], 7);
    } else {
      const json choice = answer.json()["choices"][0];
      EXPECT_EQ(choice["text"], "abcd");
      EXPECT_EQ(choice["finish_reason"], "stop");
      EXPECT_EQ(choice["stop_reason"], "efg");
      EXPECT_EQ(choice["token_ids"].size(), 7u);
      EXPECT_EQ(answer.json()["usage"]["completion_tokens"], 7);
    }
  }
}

TEST_F(ApiTest, TextHeldBackForAStopStringIsShownAtTheEnd) {
  rig_.AddPair();
  rig_.Start();
  const json body = rig_.Ask("/v1/completions", CompletionBody(4, R"("stop":"cdX")")).json();
  EXPECT_EQ(body["choices"][0]["text"], "abcd");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
}

TEST_F(ApiTest, ChoicesOfAStreamInterleaveByIndexWithOneFinishEach) {
  rig_.AddPair();
  rig_.Start();
  const HttpAnswer answer =
      rig_.Ask("/v1/chat/completions",
               ChatBody(3, R"("stream":true,"n":3,"stream_options":{"include_usage":true})"));
  ASSERT_EQ(answer.status, 200);
  std::map<int, std::string> texts;
  std::multiset<int> finishes;
  for (const std::string& event : Events(answer.body)) {
    if (event == "[DONE]") continue;
    const json chunk = json::parse(event);
    if (chunk["choices"].empty()) {
      EXPECT_EQ(chunk["usage"]["prompt_tokens"], 18);
      EXPECT_EQ(chunk["usage"]["completion_tokens"], 9);
      continue;
    }
    const json choice = chunk["choices"][0];
    texts[choice["index"]] += choice["delta"].value("content", "");
    if (!choice["finish_reason"].is_null()) finishes.insert(choice["index"].get<int>());
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "abc"}, {1, "abc"}, {2, "abc"}}));
  EXPECT_EQ(finishes, (std::multiset<int>{0, 1, 2}));
}

TEST_F(ApiTest, SeedAndSamplingReachTheNode) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient client(rig_.address());
  client.Post("/v1/completions",
              CompletionBody(7, R"("seed":-1,"temperature":0.5,"top_p":0.25,"top_k":-1,"n":2,)"
                                R"("ignore_eos":true)"));
  const v1::PrefillRequest first = rig_.prefill().NextPrefill();
  const v1::PrefillRequest second = rig_.prefill().NextPrefill();
  const v1::DecodeRequest decode = rig_.decode().NextDecode();
  EXPECT_EQ(first.mode(), v1::MODE_HAND_OVER);
  EXPECT_EQ(first.ticket().size(), 16u);
  EXPECT_NE(first.ticket(), second.ticket());
  EXPECT_NE(first.attempt(), second.attempt());
  EXPECT_EQ(first.generation().sampling().seed(), ~uint64_t{0});
  EXPECT_EQ(first.generation().sampling().choice(), 0u);
  EXPECT_EQ(second.generation().sampling().choice(), 1u);
  EXPECT_FLOAT_EQ(first.generation().sampling().temperature(), 0.5f);
  EXPECT_FLOAT_EQ(first.generation().sampling().top_p(), 0.25f);
  EXPECT_EQ(first.generation().sampling().top_k(), 0);
  EXPECT_TRUE(first.generation().ignore_eos());
  EXPECT_EQ(first.generation().max_tokens(), 7u);
  EXPECT_GT(first.deadline_ms(), 0);
  EXPECT_EQ(decode.attempt(), first.attempt());
  EXPECT_EQ(decode.ticket(), first.ticket());
  EXPECT_EQ(decode.prefill_transfer_address(), "transfer-of-p0");
  EXPECT_EQ(decode.prefill_incarnation(), 1u);
  EXPECT_EQ(decode.generation().SerializeAsString(), first.generation().SerializeAsString());
}

TEST_F(ApiTest, AbsentSeedIsFreshForEachRequestAndChatFillsTheContext) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient one(rig_.address());
  HttpClient two(rig_.address());
  one.Post("/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})");
  const v1::PrefillRequest first = rig_.prefill().NextPrefill();
  two.Post("/v1/completions", R"({"prompt":"hi"})");
  const v1::PrefillRequest second = rig_.prefill().NextPrefill();
  EXPECT_NE(first.generation().sampling().seed(), second.generation().sampling().seed());
  EXPECT_EQ(first.generation().max_tokens(), 4096u - 18u);
  EXPECT_EQ(second.generation().max_tokens(), 16u);
}

TEST_F(ApiTest, TokensMergeByIndexWhateverTheOrderAndDuplicates) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient client(rig_.address());
  client.Post("/v1/completions", CompletionBody(5, R"("return_token_ids":true)"));
  const uint64_t attempt = rig_.prefill().NextPrefill().attempt();
  rig_.decode().NextDecode();
  rig_.decode().SendTokens(attempt, 3, {'d'});
  rig_.decode().SendTokens(attempt, 1, {'b'});
  rig_.decode().SendTokens(attempt, 1, {'b', 'c', 'd'});
  rig_.decode().SendTokens(attempt, 4, {'e', 'f', 'g'});
  rig_.decode().SendFinished(attempt, v1::FINISH_LENGTH, 5);
  rig_.prefill().SendTokens(attempt, 0, {'a'});
  rig_.prefill().SendFinished(attempt, v1::FINISH_HANDED_OVER, 1);
  const HttpAnswer answer = client.Read();
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["choices"][0]["token_ids"], json({97, 98, 99, 100, 101}));
  EXPECT_EQ(answer.json()["choices"][0]["text"], "abcde");
}

TEST_F(ApiTest, MultibyteTextIsNeverSplitAndABrokenTailIsReplacedOnce) {
  MockNodeOptions both;
  both.output = [](const v1::Generation&) {
    return std::vector<uint32_t>{0xc3, 0xa4, 0xe2, 0x82};  // a-umlaut, two thirds of a euro sign
  };
  rig_.Add(both);
  rig_.Start();
  const HttpAnswer answer =
      rig_.Ask("/v1/completions", CompletionBody(4, R"("stream":true,"return_token_ids":true)"));
  EXPECT_EQ(TextOf(answer), "\u00e4\uFFFD");
  EXPECT_EQ(rig_.nodes[0]->num_decodes(), 0u);
}

TEST_F(ApiTest, ShortPromptsRunWholeWhereTheOptionSaysSo) {
  MockNodeOptions both;
  both.id = "b";
  rig_.options.whole_prompt_tokens = 4;
  rig_.AddPair();
  rig_.Add(both);
  rig_.Start();
  ASSERT_TRUE(Eventually([&] { return rig_.Metric("pdserve_node_up") == 3; }));
  EXPECT_EQ(rig_.Ask("/v1/completions", CompletionBody(3)).json()["choices"][0]["text"], "abc");
  EXPECT_EQ(rig_.Metric(R"(pdserve_disagg_decisions_total{decision="whole",reason="short_prompt")"),
            1);
  EXPECT_EQ(rig_.nodes[2]->num_prefills(), 1u);
}

TEST_F(ApiTest, CommentsComeWhileAStreamIsSilent) {
  rig_.options.keepalive_interval = absl::Milliseconds(10);
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient client(rig_.address());
  client.Post("/v1/completions", CompletionBody(2, R"("stream":true)"));
  const uint64_t attempt = rig_.prefill().NextPrefill().attempt();
  const std::string head = client.ReadUntil(": ping\n");
  EXPECT_NE(head.find("200 OK"), std::string::npos);
  EXPECT_EQ(head.find(": ping\n\n"), std::string::npos);
  rig_.prefill().SendTokens(attempt, 0, {'a'});
  client.ReadUntil("\"text\":\"a\"");
  client.ReadUntil(": ping\n");
}

TEST_F(ApiTest, RunningGaugeAndRequestCountersAddUp) {
  rig_.AddPair();
  rig_.Start();
  for (int i = 0; i < 3; ++i) rig_.Ask("/v1/completions", CompletionBody(2));
  rig_.Ask("/v1/completions", "{");
  EXPECT_TRUE(Eventually([&] {
    return rig_.Metric(R"(pdserve_requests_total{code="200",endpoint="completions"})") == 3 &&
           rig_.Metric(R"(pdserve_requests_total{code="400",endpoint="completions"})") == 1 &&
           rig_.Metric("pdserve_running_requests") == 0;
  }));
  EXPECT_EQ(rig_.Metric("pdserve_prompt_tokens_total"), 9);
  EXPECT_EQ(rig_.Metric("pdserve_generation_tokens_total"), 6);
  EXPECT_EQ(rig_.Metric(R"(pdserve_attempts_total{outcome="finished"})"), 3);
  EXPECT_EQ(rig_.Metric("pdserve_request_ttft_seconds_count"), 3);
}

}  // namespace
}  // namespace pdserve::testing
