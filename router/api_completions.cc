// POST /v1/completions: how its answers look.
#include "router/answer_shape.h"
#include "spdlog/fmt/fmt.h"

namespace pdserve::router {
namespace {

std::string Chunk(const ChoicePiece& piece, std::string_view text, std::string_view end,
                  std::string_view more) {
  return fmt::format(R"({{"index":{},"text":{},"logprobs":null,"finish_reason":{}{}}})",
                     piece.index, Quote(text), end, more);
}

class Completions final : public AnswerShape {
 public:
  std::string_view id_prefix() const override { return "cmpl-"; }
  std::string_view whole_object() const override { return "text_completion"; }
  std::string_view chunk_object() const override { return "text_completion"; }

  OrderedJson WholeChoice(const ChoicePiece& piece, OrderedJson& /*body*/) const override {
    OrderedJson choice = {{"index", piece.index}, {"text", piece.text}};
    AppendTail(piece, choice);
    if (piece.prompt_token_ids != nullptr) {
      choice["prompt_token_ids"] = IdArray(*piece.prompt_token_ids);
    }
    return choice;
  }

  std::vector<std::string> ChunkChoices(const ChoicePiece& piece) const override {
    std::vector<std::string> chunks;
    std::string more = IdsTail(piece);
    if (!piece.text.empty() || !more.empty() || piece.prompt_token_ids != nullptr) {
      if (piece.prompt_token_ids != nullptr) {
        more += R"(,"prompt_token_ids":)" + IdList(*piece.prompt_token_ids);
      }
      chunks.push_back(Chunk(piece, piece.text, "null", more));
    }
    if (!piece.finish_reason.empty()) {
      chunks.push_back(Chunk(piece, "", Quote(piece.finish_reason), EndTail(piece)));
    }
    return chunks;
  }

  std::string BesideChoices(const ChoicePiece& /*piece*/) const override { return ""; }
};

}  // namespace

const AnswerShape& CompletionsShape() {
  static const Completions shape;
  return shape;
}

}  // namespace pdserve::router
