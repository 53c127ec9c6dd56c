// Text on one side, token ids on the other: tokenizer, chat template, incremental decoding.
// Backed by one Rust static library; C++ sees no Rust. A Text is immutable and safe from any
// thread; a Decoder belongs to one thread at a time.
#ifndef PDSERVE_TEXT_TEXT_H_
#define PDSERVE_TEXT_TEXT_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"

namespace pdserve::text {

/// Turns a stream of tokens into pieces of valid UTF-8; holds back an unfinished code point.
class Decoder {
 public:
  virtual ~Decoder() = default;
  /// The text that can be shown after `token`: whole code points only, maybe none.
  virtual std::string Next(TokenId token) = 0;
  /// Ends the stream: U+FFFD for an unfinished code point, else nothing.
  virtual std::string Finish() = 0;
};

class Text {
 public:
  /// spec: JSON with
  ///   kind "gguf": model (tokenizer.ggml.model), pre, tokens [string], token_types [int],
  ///     merges [string], add_bos, add_eos, bos, eos, unk, chat_template (null where absent).
  ///   kind "hf": tokenizer (tokenizer.json, its text), vocab_size (tokens beyond the file's are
  ///     empty), bos, eos, unk (the tokens' texts), add_bos, add_eos (what the file's
  ///     post-processor adds where null), chat_template (null where absent).
  /// InvalidArgument names what is missing, malformed or unknown (an unknown pre-tokenizer name is
  /// refused, never guessed).
  static absl::StatusOr<std::unique_ptr<Text>> Load(std::string_view spec);
  virtual ~Text() = default;

  virtual uint32_t vocab_size() const = 0;
  virtual bool has_chat_template() const = 0;

  /// add_special: put BOS/EOS where the model wants them. parse_special: control tokens written in
  /// the text become control tokens; else they are ordinary characters. InvalidArgument: not UTF-8,
  /// or longer than 64 MiB.
  virtual absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text, bool add_special,
                                                      bool parse_special) const = 0;

  /// Renders the chat template: messages is a JSON array of {role, content, ...}. InvalidArgument:
  /// there is no template, the messages are malformed, the template complains (with its words) or
  /// costs more time or memory than it may.
  virtual absl::StatusOr<std::string> RenderChat(std::string_view messages_json,
                                                 bool add_generation_prompt) const = 0;

  /// RenderChat and tokenise in one: control tokens of the template are parsed, those written in a
  /// message's content stay ordinary characters.
  virtual absl::StatusOr<std::vector<TokenId>> EncodeChat(std::string_view messages_json,
                                                          bool add_generation_prompt) const = 0;

  /// skip_special: control tokens show as nothing.
  virtual std::unique_ptr<Decoder> NewDecoder(bool skip_special) const = 0;
  /// The bytes of one token, as they are; empty for an id outside the vocabulary.
  virtual std::string TokenBytes(TokenId token) const = 0;
};

}  // namespace pdserve::text

#endif  // PDSERVE_TEXT_TEXT_H_
