// What one choice shows: its tokens turned into text, held back where a stop string may begin, cut
// where one does. Belongs to the request's strand.
// Token ranges: [0, size) all tokens that count; a stop string's match ends the count with the
// token that completes it, whatever else the node had sent by then.
#ifndef PDSERVE_ROUTER_CHOICE_TEXT_H_
#define PDSERVE_ROUTER_CHOICE_TEXT_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/ids.h"
#include "router/stop_strings.h"
#include "text/text.h"

namespace pdserve::router {

class ChoiceText {
 public:
  ChoiceText(std::unique_ptr<text::Decoder> decoder, const std::vector<std::string>& stops);

  /// The next tokens of the output; those after a match are dropped. True: a stop string matched,
  /// now or before.
  bool Push(std::span<const TokenId> tokens);
  /// No more tokens: shows what was held back. Once.
  void Finish();

  /// Text that was not taken yet; valid UTF-8.
  std::string TakeText();
  /// Tokens that were not taken yet; they come even where their text is held back.
  std::vector<TokenId> TakeTokens();
  size_t num_tokens() const { return num_tokens_; }
  const std::optional<std::string>& matched() const { return stops_.matched(); }

 private:
  std::unique_ptr<text::Decoder> decoder_;
  StopStrings stops_;
  std::string text_;
  std::vector<TokenId> tokens_;
  size_t num_tokens_ = 0;
};

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_CHOICE_TEXT_H_
