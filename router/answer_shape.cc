#include "router/answer_shape.h"

#include "spdlog/fmt/fmt.h"

namespace pdserve::router {
namespace {

OrderedJson UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace

std::string Quote(std::string_view text) { return Dump(OrderedJson(text)); }

std::string IdList(const std::vector<TokenId>& ids) {
  std::string list = "[";
  for (const TokenId id : ids) {
    if (list.size() > 1) list += ',';
    list += std::to_string(id.value);
  }
  return list + "]";
}

OrderedJson IdArray(const std::vector<TokenId>& ids) {
  OrderedJson array = OrderedJson::array();
  for (const TokenId id : ids) array.push_back(id.value);
  return array;
}

void AppendTail(const ChoicePiece& piece, OrderedJson& choice) {
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = piece.finish_reason;
  choice["stop_reason"] = nullptr;
  if (piece.stop_reason) choice["stop_reason"] = *piece.stop_reason;
  if (piece.token_ids) choice["token_ids"] = IdArray(*piece.token_ids);
}

std::string IdsTail(const ChoicePiece& piece) {
  if (!piece.token_ids || piece.token_ids->empty()) return "";
  return R"(,"token_ids":)" + IdList(*piece.token_ids);
}

std::string EndTail(const ChoicePiece& piece) {
  return R"(,"stop_reason":)" + (piece.stop_reason ? Quote(*piece.stop_reason) : "null");
}

std::string WholeAnswer(const AnswerShape& shape, const AnswerHead& head,
                        const std::vector<ChoicePiece>& pieces, const Usage& usage) {
  OrderedJson body = {{"id", head.id},
                      {"object", shape.whole_object()},
                      {"created", head.created},
                      {"model", head.model},
                      {"system_fingerprint", head.system_fingerprint},
                      {"choices", OrderedJson::array()},
                      {"usage", UsageJson(usage)}};
  for (const ChoicePiece& piece : pieces) {
    OrderedJson choice = shape.WholeChoice(piece, body);
    body["choices"].push_back(std::move(choice));
  }
  return Dump(body);
}

EventWriter::EventWriter(const AnswerShape& shape, const AnswerHead& head, bool include_usage)
    : shape_(shape), include_usage_(include_usage) {
  before_ = fmt::format(
      R"(data: {{"id":{},"object":{},"created":{},"model":{},"system_fingerprint":{},"choices":[)",
      Quote(head.id), Quote(shape.chunk_object()), head.created, Quote(head.model),
      Quote(head.system_fingerprint));
}

void EventWriter::Append(const ChoicePiece& piece, std::string* events) const {
  std::string beside = shape_.BesideChoices(piece);
  for (const std::string& choice : shape_.ChunkChoices(piece)) {
    *events += before_ + choice + "]";
    *events += beside;
    beside.clear();
    if (include_usage_) *events += R"(,"usage":null)";
    *events += "}\n\n";
  }
}

void EventWriter::AppendEnd(const Usage& usage, std::string* events) const {
  if (include_usage_) {
    *events += before_ + R"(],"usage":)" + Dump(UsageJson(usage)) + "}\n\n";
  }
  *events += "data: [DONE]\n\n";
}

}  // namespace pdserve::router
