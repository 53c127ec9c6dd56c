// How the endpoints write their answers: whole, and as server-sent events. Pure; belongs to one
// request. One implementation for each endpoint: api_chat.cc, api_completions.cc.
#ifndef PDSERVE_ROUTER_ANSWER_SHAPE_H_
#define PDSERVE_ROUTER_ANSWER_SHAPE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "nlohmann/json.hpp"
#include "router/ask.h"

namespace pdserve::router {

using OrderedJson = nlohmann::ordered_json;

/// Equal on every chunk of a stream.
struct AnswerHead {
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string system_fingerprint;
};

/// What of one choice goes to the client next; in a whole answer, all of it.
struct ChoicePiece {
  size_t index = 0;
  bool is_first = false;
  std::string text;
  std::optional<std::vector<TokenId>> token_ids;           // where the client asked for them
  std::string finish_reason;                               // empty: not at its end
  std::optional<std::string> stop_reason;                  // the stop string that matched
  const std::vector<TokenId>* prompt_token_ids = nullptr;  // to be shown with this piece
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
};

class AnswerShape {
 public:
  virtual ~AnswerShape() = default;
  virtual std::string_view id_prefix() const = 0;
  virtual std::string_view whole_object() const = 0;
  virtual std::string_view chunk_object() const = 0;
  /// An element of a whole answer's choices. `body` is the answer around it.
  virtual OrderedJson WholeChoice(const ChoicePiece& piece, OrderedJson& body) const = 0;
  /// The chunks' elements of choices for a piece, in order; empty for a piece that shows nothing.
  virtual std::vector<std::string> ChunkChoices(const ChoicePiece& piece) const = 0;
  /// Fields beside the first chunk's choices, from a comma on; may be empty.
  virtual std::string BesideChoices(const ChoicePiece& piece) const = 0;
};

/// Static; lives for ever.
const AnswerShape& ChatShape();
const AnswerShape& CompletionsShape();

std::string WholeAnswer(const AnswerShape& shape, const AnswerHead& head,
                        const std::vector<ChoicePiece>& pieces, const Usage& usage);

/// Writes a stream's events; each ends with an empty line.
class EventWriter {
 public:
  EventWriter(const AnswerShape& shape, const AnswerHead& head, bool include_usage);
  void Append(const ChoicePiece& piece, std::string* events) const;
  /// The usage chunk, if it was asked for, and [DONE].
  void AppendEnd(const Usage& usage, std::string* events) const;

 private:
  const AnswerShape& shape_;
  const bool include_usage_;
  std::string before_;  // data: {... "choices":[
};

/// What ends every element of a whole answer's choices: logprobs, how it ended, token ids.
void AppendTail(const ChoicePiece& piece, OrderedJson& choice);
/// The fields after finish_reason of a stream's chunk with token ids, and of a choice's last one;
/// from a comma on, may be empty.
std::string IdsTail(const ChoicePiece& piece);
std::string EndTail(const ChoicePiece& piece);

/// A JSON string with its quotes; wrong UTF-8 becomes U+FFFD.
std::string Quote(std::string_view text);
/// [1,2,3]
std::string IdList(const std::vector<TokenId>& ids);
OrderedJson IdArray(const std::vector<TokenId>& ids);

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_ANSWER_SHAPE_H_
