// POST /v1/chat/completions: how its answers look.
#include "router/answer_shape.h"
#include "spdlog/fmt/fmt.h"

namespace pdserve::router {
namespace {

std::string Chunk(const ChoicePiece& piece, std::string_view delta, std::string_view end,
                  std::string_view more) {
  return fmt::format(R"({{"index":{},"delta":{},"logprobs":null,"finish_reason":{}{}}})",
                     piece.index, delta, end, more);
}

class Chat final : public AnswerShape {
 public:
  std::string_view id_prefix() const override { return "chatcmpl-"; }
  std::string_view whole_object() const override { return "chat.completion"; }
  std::string_view chunk_object() const override { return "chat.completion.chunk"; }

  OrderedJson WholeChoice(const ChoicePiece& piece, OrderedJson& body) const override {
    OrderedJson choice = {
        {"index", piece.index},
        {"message", {{"role", "assistant"}, {"content", piece.text}, {"refusal", nullptr}}}};
    AppendTail(piece, choice);
    if (piece.prompt_token_ids != nullptr) {
      body["prompt_token_ids"] = IdArray(*piece.prompt_token_ids);
    }
    return choice;
  }

  std::vector<std::string> ChunkChoices(const ChoicePiece& piece) const override {
    std::vector<std::string> chunks;
    if (piece.is_first) {
      chunks.push_back(Chunk(piece, R"({"role":"assistant","content":""})", "null", ""));
    }
    const std::string ids = IdsTail(piece);
    if (!piece.text.empty() || !ids.empty()) {
      chunks.push_back(
          Chunk(piece, fmt::format(R"({{"content":{}}})", Quote(piece.text)), "null", ids));
    }
    if (!piece.finish_reason.empty()) {
      chunks.push_back(Chunk(piece, "{}", Quote(piece.finish_reason), EndTail(piece)));
    }
    return chunks;
  }

  std::string BesideChoices(const ChoicePiece& piece) const override {
    if (piece.prompt_token_ids == nullptr) return "";
    return R"(,"prompt_token_ids":)" + IdList(*piece.prompt_token_ids);
  }
};

}  // namespace

const AnswerShape& ChatShape() {
  static const Chat shape;
  return shape;
}

}  // namespace pdserve::router
