#include "text/text.h"

#include <utility>

#include "absl/status/status.h"
#include "text/rust/pdserve_text.h"
#include "text/utf8_stream.h"

namespace pdserve::text {
namespace {

PdView View(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string Take(PdBytes bytes) {
  std::string taken(reinterpret_cast<const char*>(bytes.data), bytes.size);
  pd_bytes_free(bytes);
  return taken;
}

std::vector<TokenId> Take(PdTokens tokens) {
  std::vector<TokenId> taken(tokens.size);
  for (size_t i = 0; i < tokens.size; ++i) taken[i].value = tokens.data[i];
  pd_tokens_free(tokens);
  return taken;
}

absl::Status Failure(int32_t code, PdBytes error) {
  std::string words = Take(error);
  if (code == PD_INVALID) return absl::InvalidArgumentError(words);
  return absl::InternalError(words);
}

/// The loaded model, shared by a Text and its decoders; frees it with the last of them.
class Model {
 public:
  explicit Model(PdText* text) : text_(text), vocabulary_(pd_text_vocabulary(text)) {}
  ~Model() { pd_text_free(text_); }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const PdText* text() const { return text_; }
  size_t size() const { return vocabulary_.size; }
  bool IsControl(TokenId token) const {
    return token.value < size() && vocabulary_.kinds[token.value] == PD_KIND_CONTROL;
  }
  std::string_view Bytes(TokenId token) const {
    if (token.value >= size()) return {};
    const uint32_t begin = vocabulary_.offsets[token.value];
    const uint32_t end = vocabulary_.offsets[token.value + 1];
    return {reinterpret_cast<const char*>(vocabulary_.bytes) + begin, end - begin};
  }

 private:
  PdText* const text_;
  const PdVocabulary vocabulary_;
};

class TokenDecoder final : public Decoder {
 public:
  TokenDecoder(std::shared_ptr<const Model> model, bool skip_special)
      : model_(std::move(model)), skip_special_(skip_special) {}

  std::string Next(TokenId token) override {
    if (skip_special_ && model_->IsControl(token)) return {};
    return stream_.Next(model_->Bytes(token));
  }
  std::string Finish() override { return stream_.Finish(); }

 private:
  const std::shared_ptr<const Model> model_;
  const bool skip_special_;
  Utf8Stream stream_;
};

class ModelText final : public Text {
 public:
  explicit ModelText(PdText* text) : model_(std::make_shared<const Model>(text)) {}

  uint32_t vocab_size() const override { return static_cast<uint32_t>(model_->size()); }
  bool has_chat_template() const override { return pd_text_has_template(model_->text()); }

  absl::StatusOr<std::vector<TokenId>> Encode(std::string_view text, bool add_special,
                                              bool parse_special) const override {
    const uint32_t flags =
        (add_special ? PD_ADD_SPECIAL : 0) | (parse_special ? PD_PARSE_SPECIAL : 0);
    PdTokens tokens{};
    PdBytes error{};
    const int32_t code = pd_text_encode(model_->text(), View(text), flags, &tokens, &error);
    if (code != PD_OK) return Failure(code, error);
    return Take(tokens);
  }

  absl::StatusOr<std::string> RenderChat(std::string_view messages_json,
                                         bool add_generation_prompt) const override {
    PdBytes rendered{};
    PdBytes error{};
    const int32_t code = pd_text_render_chat(model_->text(), View(messages_json),
                                             add_generation_prompt, &rendered, &error);
    if (code != PD_OK) return Failure(code, error);
    return Take(rendered);
  }

  absl::StatusOr<std::vector<TokenId>> EncodeChat(std::string_view messages_json,
                                                  bool add_generation_prompt) const override {
    PdTokens tokens{};
    PdBytes error{};
    const int32_t code = pd_text_encode_chat(model_->text(), View(messages_json),
                                             add_generation_prompt, &tokens, &error);
    if (code != PD_OK) return Failure(code, error);
    return Take(tokens);
  }

  std::unique_ptr<Decoder> NewDecoder(bool skip_special) const override {
    return std::make_unique<TokenDecoder>(model_, skip_special);
  }
  std::string TokenBytes(TokenId token) const override { return std::string(model_->Bytes(token)); }

 private:
  const std::shared_ptr<const Model> model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Text>> Text::Load(std::string_view spec) {
  PdText* text = nullptr;
  PdBytes error{};
  const int32_t code = pd_text_load(View(spec), &text, &error);
  if (code != PD_OK) return Failure(code, error);
  return std::make_unique<ModelText>(text);
}

}  // namespace pdserve::text
