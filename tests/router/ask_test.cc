#include "router/ask.h"

#include "gtest/gtest.h"
#include "tests/testing/fake_text.h"

namespace pdserve::router {
namespace {

Ask Parse(Endpoint endpoint, const std::string& body) {
  Result<Ask> ask = ParseAsk(endpoint, body, 16);
  if (auto* error = std::get_if<ApiError>(&ask)) ADD_FAILURE() << error->message;
  return std::get<Ask>(ask);
}

ApiError Refusal(Endpoint endpoint, const std::string& body) {
  Result<Ask> ask = ParseAsk(endpoint, body, 16);
  if (std::holds_alternative<Ask>(ask)) {
    ADD_FAILURE() << "taken: " << body;
    return {};
  }
  return std::get<ApiError>(ask);
}

ServedModel Model() {
  ServedModel model;
  model.name = "m";
  model.text = std::make_shared<testing::FakeText>(true);
  model.vocab_size = testing::kFakeVocabulary;
  return model;
}

constexpr char kMessages[] = R"("messages":[{"role":"user","content":"hi"}])";

std::string Chat(const std::string& more) { return std::string("{") + kMessages + more + "}"; }

TEST(AskTest, DefaultsAreOpenAis) {
  const Ask ask = Parse(Endpoint::kChat, Chat(""));
  EXPECT_EQ(ask.temperature, 1);
  EXPECT_EQ(ask.top_p, 1);
  EXPECT_EQ(ask.top_k, 0);
  EXPECT_EQ(ask.n, 1);
  EXPECT_FALSE(ask.max_tokens);
  EXPECT_FALSE(ask.seed);
  EXPECT_FALSE(ask.stream);
}

TEST(AskTest, NullIsAbsentAndWholeFloatsAreIntegers) {
  const Ask ask =
      Parse(Endpoint::kChat, Chat(R"(,"temperature":null,"max_tokens":3.0,"n":2.0,"stop":null,)"
                                  R"("tools":null,"seed":1e3,"unheard_of":null)"));
  EXPECT_EQ(ask.max_tokens, 3);
  EXPECT_EQ(ask.n, 2);
  EXPECT_EQ(ask.seed, 1000u);
}

TEST(AskTest, OneRequestCannotTakeANodesAttempts) {
  std::string prompts = "\"x\"";
  for (int i = 1; i < 9; ++i) prompts += ",\"x\"";
  const ApiError error = Refusal(Endpoint::kCompletions, "{\"prompt\":[" + prompts + "],\"n\":16}");
  EXPECT_EQ(error.status, 400);
  EXPECT_EQ(error.param, "n");
}

TEST(AskTest, ATopPThatIsZeroAsAFloatIsRefused) {
  EXPECT_EQ(Refusal(Endpoint::kChat, Chat(R"(,"top_p":1e-46)")).param, "top_p");
}

TEST(AskTest, BothTokenLimitsMayBeGivenIfTheyAgree) {
  EXPECT_EQ(Parse(Endpoint::kChat, Chat(R"(,"max_tokens":4,"max_completion_tokens":4)")).max_tokens,
            4);
  EXPECT_EQ(Parse(Endpoint::kChat, Chat(R"(,"max_completion_tokens":5)")).max_tokens, 5);
  EXPECT_EQ(Refusal(Endpoint::kChat, Chat(R"(,"max_tokens":4,"max_completion_tokens":5)")).param,
            "max_completion_tokens");
  EXPECT_EQ(Refusal(Endpoint::kCompletions, R"({"prompt":"a","max_completion_tokens":5})").code,
            "unsupported_parameter");
}

TEST(AskTest, SeedsHave64Bits) {
  EXPECT_EQ(Parse(Endpoint::kChat, Chat(R"(,"seed":18446744073709551615)")).seed, ~uint64_t{0});
  EXPECT_EQ(Parse(Endpoint::kChat, Chat(R"(,"seed":-2)")).seed, ~uint64_t{1});
  EXPECT_EQ(Refusal(Endpoint::kChat, Chat(R"(,"seed":1e20)")).param, "seed");
}

TEST(AskTest, PartsOfTextAreJoinedAndDeveloperIsSystem) {
  const Ask ask = Parse(Endpoint::kChat,
                        R"({"messages":[{"role":"developer","content":"be"},{"role":"user",)"
                        R"("content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]})");
  EXPECT_EQ(ask.messages_json,
            R"([{"content":"be","role":"system"},{"content":"ab","role":"user"}])");
}

TEST(AskTest, ErrorsNameThePlaceInTheMessages) {
  EXPECT_EQ(Refusal(Endpoint::kChat,
                    R"({"messages":[{"role":"user","content":"a"},{"role":"user","content":"a"},)"
                    R"({"role":"user","content":[{"type":"image_url","image_url":{}}]}]})")
                .param,
            "messages[2].content[0].type");
  EXPECT_EQ(Refusal(Endpoint::kChat, R"({"messages":[{"role":"robot","content":"a"}]})").param,
            "messages[0].role");
}

TEST(AskTest, UnimplementedFieldsAreRefusedByNameUnlessTheyAskForNothing) {
  for (const char* field : {"logprobs", "tools", "response_format", "logit_bias", "min_p",
                            "frequency_penalty", "kv_transfer_params", "unheard_of"}) {
    const ApiError error =
        Refusal(Endpoint::kChat, Chat(std::string(",\"") + field + "\":{\"a\":1}"));
    EXPECT_EQ(error.param, field);
    EXPECT_EQ(error.code, "unsupported_parameter");
  }
  Parse(Endpoint::kChat,
        Chat(R"(,"user":"u","metadata":{"a":"b"},"frequency_penalty":0.0,"logprobs":false,)"
             R"("response_format":{"type":"text"},"logit_bias":{})"));
  EXPECT_EQ(Refusal(Endpoint::kChat, Chat(R"(,"frequency_penalty":0.1)")).param,
            "frequency_penalty");
}

TEST(AskTest, DeepNestingIsRefusedBeforeItIsBuilt) {
  EXPECT_EQ(Refusal(Endpoint::kChat, std::string(1 << 20, '[')).code, "invalid_json");
  EXPECT_EQ(
      Refusal(Endpoint::kChat, Chat(",\"user\":" + std::string(100, '[') + std::string(100, ']')))
          .code,
      "invalid_json");
  Parse(Endpoint::kChat, Chat(",\"user\":\"" + std::string(100, '[') + "\\\"[\""));
}

TEST(PrepareTest, TextGetsBosAndIdsAreTakenAsTheyAre) {
  const Ask ask = Parse(Endpoint::kCompletions, R"({"prompt":"a"})");
  const auto text = std::get<std::vector<PreparedPrompt>>(Prepare(ask, Model(), 100));
  EXPECT_EQ(text[0].token_ids, (std::vector<TokenId>{testing::kBos, TokenId{'a'}}));
  EXPECT_EQ(text[0].max_tokens, 16);
  const Ask ids = Parse(Endpoint::kCompletions, R"({"prompt":[[5,6.0],[7]]})");
  const auto lists = std::get<std::vector<PreparedPrompt>>(Prepare(ids, Model(), 100));
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_EQ(lists[0].token_ids, (std::vector<TokenId>{TokenId{5}, TokenId{6}}));
}

TEST(PrepareTest, AnAbsentLimitFillsTheContextOfAChat) {
  const Ask ask = Parse(Endpoint::kChat, Chat(""));
  const auto prepared = std::get<std::vector<PreparedPrompt>>(Prepare(ask, Model(), 100));
  EXPECT_EQ(prepared[0].max_tokens, 82);
}

TEST(PrepareTest, TheDefaultOfCompletionsShrinksToWhatIsLeft) {
  const Ask ask = Parse(Endpoint::kCompletions, R"({"prompt":[1,2,3,4]})");
  EXPECT_EQ(std::get<std::vector<PreparedPrompt>>(Prepare(ask, Model(), 10))[0].max_tokens, 6);
}

TEST(PrepareTest, TooLongForTheContextSaysBothNumbers) {
  const auto refusal = [](const std::string& body, int64_t context) {
    const Ask ask = Parse(Endpoint::kCompletions, body);
    return std::get<ApiError>(Prepare(ask, Model(), context));
  };
  const ApiError with_limit = refusal(R"({"prompt":[1,2,3],"max_tokens":8})", 10);
  EXPECT_EQ(with_limit.code, "context_length_exceeded");
  EXPECT_NE(with_limit.message.find("maximum context length is 10 tokens"), std::string::npos);
  EXPECT_NE(with_limit.message.find("11"), std::string::npos);
  EXPECT_EQ(refusal(R"({"prompt":[1,2,3]})", 3).code, "context_length_exceeded");
  EXPECT_EQ(refusal(R"({"prompt":[1,2,3],"max_tokens":2147483647})", 10).code,
            "context_length_exceeded");
}

TEST(PrepareTest, IdsOutsideTheVocabularyAndOtherModelsAreRefused) {
  const Ask ids = Parse(Endpoint::kCompletions, R"({"prompt":[1,260]})");
  EXPECT_EQ(std::get<ApiError>(Prepare(ids, Model(), 100)).param, "prompt");
  const Ask other = Parse(Endpoint::kCompletions, R"({"model":"other","prompt":[1]})");
  EXPECT_EQ(std::get<ApiError>(Prepare(other, Model(), 100)).status, 404);
  EXPECT_EQ(std::get<ApiError>(Prepare(other, Model(), 100)).code, "model_not_found");
  const Ask empty = Parse(Endpoint::kCompletions, R"({"model":"","prompt":[1]})");
  EXPECT_TRUE(std::holds_alternative<std::vector<PreparedPrompt>>(Prepare(empty, Model(), 100)));
}

TEST(PrepareTest, TheTemplatesComplaintIsTheClientsFault) {
  const Ask ask = Parse(Endpoint::kChat, R"({"messages":[{"role":"user","content":"REJECT"}]})");
  const ApiError error = std::get<ApiError>(Prepare(ask, Model(), 100));
  EXPECT_EQ(error.status, 400);
  EXPECT_NE(error.message.find("the template says no"), std::string::npos);
}

}  // namespace
}  // namespace pdserve::router
