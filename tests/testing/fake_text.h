// A text::Text whose tokens are bytes: id b is byte b, kEos shows as nothing, and text prompts
// begin with kBos. A chat is "role:content\n" for each message; a message that holds REJECT is the
// template's complaint. Thread-safe as Text is.
#ifndef PDSERVE_TESTS_TESTING_FAKE_TEXT_H_
#define PDSERVE_TESTS_TESTING_FAKE_TEXT_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "text/text.h"

namespace pdserve::testing {

inline constexpr TokenId kEos{256};
inline constexpr TokenId kBos{257};
inline constexpr uint32_t kFakeVocabulary = 260;

class FakeDecoder final : public text::Decoder {
 public:
  std::string Next(TokenId token) override {
    if (token.value > 255) return "";
    held_.push_back(static_cast<char>(token.value));
    const auto lead = static_cast<unsigned char>(held_.front());
    const size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    return held_.size() < length ? "" : std::exchange(held_, "");
  }
  std::string Finish() override { return std::exchange(held_, "").empty() ? "" : "\uFFFD"; }

 private:
  std::string held_;
};

class FakeText final : public text::Text {
 public:
  static absl::StatusOr<std::unique_ptr<text::Text>> Load(std::string_view spec) {
    if (spec == "broken") return absl::InvalidArgumentError("broken spec");
    return std::make_unique<FakeText>(spec != "no template");
  }

  explicit FakeText(bool has_template) : has_template_(has_template) {}
  uint32_t vocab_size() const override { return kFakeVocabulary; }
  bool has_chat_template() const override { return has_template_; }

  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text, bool add_special,
                                              bool /*parse_special*/) const override {
    std::vector<TokenId> tokens;
    if (add_special) tokens.push_back(kBos);
    for (const char byte : text) tokens.push_back(TokenId{static_cast<uint8_t>(byte)});
    return tokens;
  }

  absl::StatusOr<std::string> RenderChat(std::string_view messages_json,
                                         bool add_generation_prompt) const override {
    std::string text;
    for (const auto& message : nlohmann::json::parse(messages_json)) {
      text +=
          message["role"].get<std::string>() + ":" + message["content"].get<std::string>() + "\n";
    }
    if (text.find("REJECT") != std::string::npos) {
      return absl::InvalidArgumentError("the template says no");
    }
    return text + (add_generation_prompt ? "assistant:" : "");
  }

  absl::StatusOr<std::vector<TokenId>> EncodeChat(std::string_view messages_json,
                                                  bool add_generation_prompt) const override {
    auto text = RenderChat(messages_json, add_generation_prompt);
    if (!text.ok()) return text.status();
    return Encode(*text, /*add_special=*/false, /*parse_special=*/true);
  }

  std::unique_ptr<text::Decoder> NewDecoder(bool /*skip_special*/) const override {
    return std::make_unique<FakeDecoder>();
  }
  std::string TokenBytes(TokenId token) const override {
    return token.value < 256 ? std::string(1, static_cast<char>(token.value)) : "";
  }

 private:
  const bool has_template_;
};

}  // namespace pdserve::testing

#endif  // PDSERVE_TESTS_TESTING_FAKE_TEXT_H_
