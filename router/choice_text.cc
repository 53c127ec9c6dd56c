#include "router/choice_text.h"

#include <utility>

namespace pdserve::router {

ChoiceText::ChoiceText(std::unique_ptr<text::Decoder> decoder,
                       const std::vector<std::string>& stops)
    : decoder_(std::move(decoder)), stops_(stops) {}

bool ChoiceText::Push(std::span<const TokenId> tokens) {
  for (const TokenId token : tokens) {
    if (matched()) return true;
    tokens_.push_back(token);
    ++num_tokens_;
    text_ += stops_.Push(decoder_->Next(token));
  }
  return matched().has_value();
}

void ChoiceText::Finish() {
  if (matched()) return;
  text_ += stops_.Push(decoder_->Finish());
  text_ += stops_.Finish();
}

std::string ChoiceText::TakeText() { return std::exchange(text_, ""); }

std::vector<TokenId> ChoiceText::TakeTokens() { return std::exchange(tokens_, {}); }

}  // namespace pdserve::router
