// Malformed requests through the whole router: each gets a 4xx that names the field, no node sees
// anything, and a stream beside them goes on.
#include "router/fields.h"

#include "gtest/gtest.h"
#include "tests/router/router_rig.h"

namespace pdserve::testing {
namespace {

struct Bad {
  const char* body;
  const char* param;  // "null": none
};

constexpr char kCompletions[] = "/v1/completions";
constexpr char kChat[] = "/v1/chat/completions";

const Bad kBadBodies[] = {
    {"", "null"},
    {" ", "null"},
    {"{", "null"},
    {"}", "null"},
    {"[]", "null"},
    {"null", "null"},
    {"7", "null"},
    {"\"text\"", "null"},
    {"{}{}", "null"},
    {"{\"prompt\":\"a\"", "null"},
    {"{'prompt':'a'}", "null"},
    {"{\"prompt\":\"a\",}", "null"},
    {"{\"prompt\":\"\\ud800\"}", "null"},
    {"{\"prompt\":\"\xff\"}", "null"},
    {"{\"prompt\":\"a\",\"temperature\":NaN}", "null"},
    {"{\"prompt\":\"a\",\"temperature\":Infinity}", "null"},
    {"{\"prompt\":\"a\",\"temperature\":1e999}", "null"},
    {"{\"prompt\":\"a\",\"temperature\":01}", "null"},
    {"\xef\xbb\xbf{", "null"},
};

const Bad kBadCompletions[] = {
    {R"({})", "prompt"},
    {R"({"prompt":null})", "prompt"},
    {R"({"prompt":""})", "prompt"},
    {R"({"prompt":[]})", "prompt"},
    {R"({"prompt":{}})", "prompt"},
    {R"({"prompt":7})", "prompt"},
    {R"({"prompt":true})", "prompt"},
    {R"({"prompt":[""]})", "prompt[0]"},
    {R"({"prompt":["a",""]})", "prompt[1]"},
    {R"({"prompt":["a",7]})", "prompt[1]"},
    {R"({"prompt":["a",null]})", "prompt[1]"},
    {R"({"prompt":[[]]})", "prompt[0]"},
    {R"({"prompt":[[1],[]]})", "prompt[1]"},
    {R"({"prompt":[[1],["a"]]})", "prompt[1][0]"},
    {R"({"prompt":[[[1]]]})", "prompt[0][0]"},
    {R"({"prompt":[1,"a"]})", "prompt[1]"},
    {R"({"prompt":[1,null]})", "prompt[1]"},
    {R"({"prompt":[1,1.5]})", "prompt[1]"},
    {R"({"prompt":[-1]})", "prompt[0]"},
    {R"({"prompt":[260]})", "prompt"},
    {R"({"prompt":[4294967295]})", "prompt"},
    {R"({"prompt":[4294967296]})", "prompt[0]"},
    {R"({"prompt":[18446744073709551615]})", "prompt[0]"},
    {R"({"prompt":[1e30]})", "prompt[0]"},
    {R"({"prompt":[[1],[260]]})", "prompt[1]"},
    {R"({"prompt":"a","max_tokens":0})", "max_tokens"},
    {R"({"prompt":"a","max_tokens":-1})", "max_tokens"},
    {R"({"prompt":"a","max_tokens":1.5})", "max_tokens"},
    {R"({"prompt":"a","max_tokens":"7"})", "max_tokens"},
    {R"({"prompt":"a","max_tokens":true})", "max_tokens"},
    {R"({"prompt":"a","max_tokens":[7]})", "max_tokens"},
    {R"({"prompt":"a","max_tokens":99999999999})", "max_tokens"},
    {R"({"prompt":"a","max_tokens":4096})", "prompt"},
    {R"({"prompt":"a","max_completion_tokens":4})", "max_completion_tokens"},
    {R"({"prompt":"a","temperature":-0.1})", "temperature"},
    {R"({"prompt":"a","temperature":2.1})", "temperature"},
    {R"({"prompt":"a","temperature":"1"})", "temperature"},
    {R"({"prompt":"a","temperature":[]})", "temperature"},
    {R"({"prompt":"a","temperature":false})", "temperature"},
    {R"({"prompt":"a","top_p":0})", "top_p"},
    {R"({"prompt":"a","top_p":-1})", "top_p"},
    {R"({"prompt":"a","top_p":1.0001})", "top_p"},
    {R"({"prompt":"a","top_p":"0.5"})", "top_p"},
    {R"({"prompt":"a","top_k":-2})", "top_k"},
    {R"({"prompt":"a","top_k":1.5})", "top_k"},
    {R"({"prompt":"a","top_k":"5"})", "top_k"},
    {R"({"prompt":"a","top_k":4294967296})", "top_k"},
    {R"({"prompt":"a","seed":1.5})", "seed"},
    {R"({"prompt":"a","seed":"1"})", "seed"},
    {R"({"prompt":"a","seed":18446744073709551616})", "seed"},
    {R"({"prompt":"a","seed":[]})", "seed"},
    {R"({"prompt":"a","stop":""})", "stop"},
    {R"({"prompt":"a","stop":7})", "stop"},
    {R"({"prompt":"a","stop":{}})", "stop"},
    {R"({"prompt":"a","stop":["a",""]})", "stop[1]"},
    {R"({"prompt":"a","stop":["a",7]})", "stop[1]"},
    {R"({"prompt":"a","stop":["a",null]})", "stop[1]"},
    {R"({"prompt":"a","stop":["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"]})",
     "stop"},
    {R"({"prompt":"a","n":0})", "n"},
    {R"({"prompt":"a","n":-1})", "n"},
    {R"({"prompt":"a","n":17})", "n"},
    {R"({"prompt":"a","n":1.5})", "n"},
    {R"({"prompt":"a","n":"2"})", "n"},
    {R"({"prompt":"a","stream":1})", "stream"},
    {R"({"prompt":"a","stream":"true"})", "stream"},
    {R"({"prompt":"a","stream_options":{}})", "stream_options"},
    {R"({"prompt":"a","stream":false,"stream_options":{"include_usage":true}})", "stream_options"},
    {R"({"prompt":"a","stream":true,"stream_options":7})", "stream_options"},
    {R"({"prompt":"a","stream":true,"stream_options":{"include_usage":1}})",
     "stream_options.include_usage"},
    {R"({"prompt":"a","stream":true,"stream_options":{"other":1}})", "stream_options.other"},
    {R"({"prompt":"a","ignore_eos":1})", "ignore_eos"},
    {R"({"prompt":"a","return_token_ids":"yes"})", "return_token_ids"},
    {R"({"prompt":"a","model":7})", "model"},
    {R"({"prompt":"a","model":["m"]})", "model"},
    {R"({"prompt":"a","model":"unknown"})", "model"},
    {R"({"prompt":"a","logprobs":1})", "logprobs"},
    {R"({"prompt":"a","logprobs":0})", "logprobs"},
    {R"({"prompt":"a","echo":true})", "echo"},
    {R"({"prompt":"a","suffix":"b"})", "suffix"},
    {R"({"prompt":"a","best_of":2})", "best_of"},
    {R"({"prompt":"a","logit_bias":{"5":1}})", "logit_bias"},
    {R"({"prompt":"a","presence_penalty":1})", "presence_penalty"},
    {R"({"prompt":"a","frequency_penalty":-0.5})", "frequency_penalty"},
    {R"({"prompt":"a","repetition_penalty":1.1})", "repetition_penalty"},
    {R"({"prompt":"a","min_p":0.1})", "min_p"},
    {R"({"prompt":"a","min_tokens":3})", "min_tokens"},
    {R"({"prompt":"a","stop_token_ids":[1]})", "stop_token_ids"},
    {R"({"prompt":"a","guided_json":{}})", "guided_json"},
    {R"({"prompt":"a","kv_transfer_params":{}})", "kv_transfer_params"},
    {R"({"prompt":"a","cache_salt":"s"})", "cache_salt"},
    {R"({"prompt":"a","messages":[]})", "messages"},
    {R"({"prompt":"a","Temperature":1})", "Temperature"},
    {R"({"prompt":"a","":1})", "null"},
};

const Bad kBadChats[] = {
    {R"({})", "messages"},
    {R"({"messages":null})", "messages"},
    {R"({"messages":[]})", "messages"},
    {R"({"messages":"hi"})", "messages"},
    {R"({"messages":{}})", "messages"},
    {R"({"messages":[7]})", "messages[0]"},
    {R"({"messages":["hi"]})", "messages[0]"},
    {R"({"messages":[{}]})", "messages[0].role"},
    {R"({"messages":[{"role":"user"}]})", "messages[0].content"},
    {R"({"messages":[{"role":"user","content":null}]})", "messages[0].content"},
    {R"({"messages":[{"role":"user","content":7}]})", "messages[0].content"},
    {R"({"messages":[{"role":"user","content":{}}]})", "messages[0].content"},
    {R"({"messages":[{"role":"user","content":[]}]})", "messages[0].content"},
    {R"({"messages":[{"role":"user","content":["a"]}]})", "messages[0].content[0]"},
    {R"({"messages":[{"role":"user","content":[{"text":"a"}]}]})", "messages[0].content[0].type"},
    {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
     "messages[0].content[0].text"},
    {R"({"messages":[{"role":"user","content":[{"type":"text","text":7}]}]})",
     "messages[0].content[0].text"},
    {R"({"messages":[{"role":"user","content":[{"type":"text","text":"a","x":1}]}]})",
     "messages[0].content[0].x"},
    {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})",
     "messages[0].content[0].type"},
    {R"({"messages":[{"role":"user","content":[{"type":7}]}]})", "messages[0].content[0].type"},
    {R"({"messages":[{"role":"robot","content":"a"}]})", "messages[0].role"},
    {R"({"messages":[{"role":7,"content":"a"}]})", "messages[0].role"},
    {R"({"messages":[{"role":"","content":"a"}]})", "messages[0].role"},
    {R"({"messages":[{"role":"user","content":"a"},{"content":"b"}]})", "messages[1].role"},
    {R"({"messages":[{"role":"user","content":"a","name":7}]})", "messages[0].name"},
    {R"({"messages":[{"role":"assistant","content":"a","tool_calls":[{}]}]})",
     "messages[0].tool_calls"},
    {R"({"messages":[{"role":"user","content":"REJECT"}]})", "messages"},
    {R"({"messages":[{"role":"user","content":"a"}],"max_tokens":1,"max_completion_tokens":2})",
     "max_completion_tokens"},
    {R"({"messages":[{"role":"user","content":"a"}],"max_completion_tokens":0})",
     "max_completion_tokens"},
    {R"({"messages":[{"role":"user","content":"a"}],"max_tokens":5000})", "messages"},
    {R"({"messages":[{"role":"user","content":"a"}],"tools":[]})", "tools"},
    {R"({"messages":[{"role":"user","content":"a"}],"tool_choice":"auto"})", "tool_choice"},
    {R"({"messages":[{"role":"user","content":"a"}],"functions":[]})", "functions"},
    {R"({"messages":[{"role":"user","content":"a"}],"logprobs":true})", "logprobs"},
    {R"({"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_object"}})",
     "response_format"},
    {R"({"messages":[{"role":"user","content":"a"}],"modalities":["audio"]})", "modalities"},
    {R"({"messages":[{"role":"user","content":"a"}],"reasoning_effort":"low"})",
     "reasoning_effort"},
    {R"({"messages":[{"role":"user","content":"a"}],"prompt":"a"})", "prompt"},
};

class FieldsTest : public ::testing::Test {
 protected:
  RouterRig rig_;

  void Check(HttpClient& client, const char* path, const Bad& bad) {
    client.Post(path, bad.body);
    const HttpAnswer answer = client.Read();
    EXPECT_GE(answer.status, 400) << bad.body;
    EXPECT_LT(answer.status, 500) << bad.body;
    EXPECT_EQ(answer.headers.at("content-type"), "application/json");
    const nlohmann::json error = answer.json()["error"];
    EXPECT_TRUE(error.is_object() && error["message"].is_string() &&
                error["type"] == "invalid_request_error" && error["code"].is_string())
        << bad.body << answer.body;
    EXPECT_EQ(answer.param(), bad.param) << bad.body << answer.body;
  }
};

TEST_F(FieldsTest, MalformedRequestsAreTheClientsFaultAndReachNoNode) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient stream(rig_.address());
  stream.Post(kCompletions, CompletionBody(2, R"("stream":true)"));
  const uint64_t attempt = rig_.prefill().NextPrefill().attempt();
  rig_.prefill().SendTokens(attempt, 0, {'a'});
  stream.ReadUntil("\"text\":\"a\"");

  HttpClient client(rig_.address());
  for (const Bad& bad : kBadBodies) {
    Check(client, kCompletions, bad);
    Check(client, kChat, bad);
  }
  for (const Bad& bad : kBadCompletions) Check(client, kCompletions, bad);
  for (const Bad& bad : kBadChats) Check(client, kChat, bad);
  const std::string deep = R"({"prompt":)" + std::string(100'000, '[');
  Check(client, kCompletions, {deep.c_str(), "null"});
  const std::string many = R"({"prompt":[)" + std::string(5000, '1') + "]}";
  Check(client, kCompletions, {many.c_str(), "null"});
  EXPECT_EQ(rig_.prefill().num_prefills(), 1u);
  EXPECT_LE(rig_.decode().num_decodes(), 1u);

  rig_.decode().SendTokens(attempt, 1, {'b'});
  rig_.decode().SendFinished(attempt, v1::FINISH_LENGTH, 2);
  EXPECT_NE(stream.ReadUntil("[DONE]").find("\"text\":\"b\""), std::string::npos);
}

TEST_F(FieldsTest, HugeRequestsAreRefusedQuietly) {
  rig_.AddPair(/*is_automatic=*/false);
  rig_.Start();
  HttpClient client(rig_.address());
  std::string ids = "1";
  for (int i = 0; i < 1'000'000; ++i) ids += ",1";
  Check(client, kCompletions, {(R"({"prompt":[)" + ids + "]}").c_str(), "prompt"});
  Check(client, kCompletions,
        {(R"({"prompt":")" + std::string(2'000'000, 'x') + "\"}").c_str(), "prompt"});
  std::string prompts = "\"a\"";
  for (int i = 0; i < 200; ++i) prompts += ",\"a\"";
  Check(client, kCompletions, {(R"({"prompt":[)" + prompts + "]}").c_str(), "prompt"});
  Check(client, kCompletions,
        {(R"({"prompt":"a","stop":")" + std::string(5000, 's') + "\"}").c_str(), "stop"});
  std::string fields;
  for (int i = 0; i < 50'000; ++i) fields += ",\"f" + std::to_string(i) + "\":null";
  Check(client, kCompletions, {(R"({"prompt":7)" + fields + "}").c_str(), "prompt"});
  EXPECT_EQ(rig_.prefill().num_prefills(), 0u);
}

}  // namespace
}  // namespace pdserve::testing
