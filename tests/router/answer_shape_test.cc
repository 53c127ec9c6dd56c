#include "router/answer_shape.h"

#include "gtest/gtest.h"

namespace pdserve::router {
namespace {

const AnswerHead kHead{"id-1", 7, "m", "fp"};

TEST(AnswerShapeTest, WholeChoicesOfBothEndpointsEndAlike) {
  ChoicePiece piece;
  piece.index = 2;
  piece.text = "hi";
  piece.token_ids = {TokenId{1}, TokenId{2}};
  piece.finish_reason = "stop";
  piece.stop_reason = "X";
  for (const AnswerShape* shape : {&ChatShape(), &CompletionsShape()}) {
    const std::string body = WholeAnswer(*shape, kHead, {piece}, Usage{});
    EXPECT_NE(body.find(R"("logprobs":null,"finish_reason":"stop","stop_reason":"X",)"
                        R"("token_ids":[1,2]})"),
              std::string::npos)
        << body;
    EXPECT_NE(body.find(R"("choices":[{"index":2,)"), std::string::npos) << body;
  }
}

TEST(AnswerShapeTest, AChoiceThatNobodyStoppedHasANullReasonAndNoIdsUnasked) {
  ChoicePiece piece;
  piece.finish_reason = "length";
  for (const AnswerShape* shape : {&ChatShape(), &CompletionsShape()}) {
    const std::string body = WholeAnswer(*shape, kHead, {piece}, Usage{});
    EXPECT_NE(body.find(R"("finish_reason":"length","stop_reason":null})"), std::string::npos);
  }
}

TEST(AnswerShapeTest, AStreamsLastChunksEndAlike) {
  ChoicePiece piece;
  piece.token_ids = {TokenId{3}};
  piece.finish_reason = "stop";
  for (const AnswerShape* shape : {&ChatShape(), &CompletionsShape()}) {
    const std::vector<std::string> chunks = shape->ChunkChoices(piece);
    ASSERT_EQ(chunks.size(), 2u);
    const std::string ids = R"("finish_reason":null,"token_ids":[3]})";
    const std::string end = R"("finish_reason":"stop","stop_reason":null})";
    EXPECT_EQ(chunks[0].substr(chunks[0].size() - ids.size()), ids);
    EXPECT_EQ(chunks[1].substr(chunks[1].size() - end.size()), end);
  }
}

TEST(AnswerShapeTest, APieceThatShowsNothingIsNoChunk) {
  EXPECT_TRUE(ChatShape().ChunkChoices(ChoicePiece{}).empty());
  EXPECT_TRUE(CompletionsShape().ChunkChoices(ChoicePiece{}).empty());
}

}  // namespace
}  // namespace pdserve::router
