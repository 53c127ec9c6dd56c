#include "engine/vocabulary.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace pdserve::engine {
namespace {

using Json = nlohmann::json;

constexpr int64_t kControl = 3;  // token type of what is not text

// What ends a turn or a text in the model families known; counted only where the file marks the
// token as control.
constexpr std::string_view kEndTexts[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
    "<|EOT|>",
    "<EOT>",
    "<|end_of_turn|>",
    "<|eos|>",
    "[e~[",
    "<|END_OF_TURN_TOKEN|>",
    "<|endofprompt|>",
    "<｜end▁of▁sentence｜>",
};

template <typename... Parts>
absl::Status Fault(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::Status CheckTexts(std::string_view key, const std::vector<std::string_view>& texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!IsUtf8(texts[i])) return Fault(View(key), "[", i, "] is not valid UTF-8");
  }
  return absl::OkStatus();
}

// A text that may be absent: null in JSON.
absl::StatusOr<Json> TextOrNull(const Gguf& gguf, std::string_view key) {
  if (!gguf.Has(key)) return Json(nullptr);
  ASSIGN_OR_RETURN(const std::string_view text, gguf.String(key));
  if (!IsUtf8(text)) return Fault(View(key), " is not valid UTF-8");
  return Json(text);
}

absl::StatusOr<Json> BooleanOrNull(const Gguf& gguf, std::string_view key) {
  if (!gguf.Has(key)) return Json(nullptr);
  ASSIGN_OR_RETURN(const bool value, gguf.Boolean(key));
  return Json(value);
}

// A token id that may be absent: null in JSON.
absl::StatusOr<Json> IdOrNull(const Gguf& gguf, std::string_view key, int64_t vocab_size) {
  if (!gguf.Has(key)) return Json(nullptr);
  ASSIGN_OR_RETURN(const int64_t id, gguf.Integer(key));
  if (id >= 0 && id < vocab_size) return Json(id);
  return Fault("metadata '", View(key), "' is ", id, ", outside the vocabulary of ", vocab_size);
}

// Two symbols parted by one space, neither empty.
absl::Status CheckMerges(const std::vector<std::string_view>& merges) {
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merges[i].size()) {
      return Fault("tokenizer.ggml.merges[", i, "] is not two symbols parted by a space");
    }
  }
  return absl::OkStatus();
}

absl::Status AddMerges(const Gguf& gguf, Json& spec) {
  spec["merges"] = Json::array();
  const bool byte_pairs = spec["model"] == "gpt2";
  if (!byte_pairs && !gguf.Has("tokenizer.ggml.merges")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto merges, gguf.Strings("tokenizer.ggml.merges"));
  RETURN_IF_ERROR(CheckTexts("tokenizer.ggml.merges", merges));
  if (byte_pairs) RETURN_IF_ERROR(CheckMerges(merges));
  spec["merges"] = merges;
  return absl::OkStatus();
}

absl::Status AddSettings(const Gguf& gguf, int64_t vocab_size, Json& spec) {
  ASSIGN_OR_RETURN(spec["pre"], TextOrNull(gguf, "tokenizer.ggml.pre"));
  ASSIGN_OR_RETURN(spec["chat_template"], TextOrNull(gguf, "tokenizer.chat_template"));
  ASSIGN_OR_RETURN(spec["add_bos"], BooleanOrNull(gguf, "tokenizer.ggml.add_bos_token"));
  ASSIGN_OR_RETURN(spec["add_eos"], BooleanOrNull(gguf, "tokenizer.ggml.add_eos_token"));
  ASSIGN_OR_RETURN(spec["bos"], IdOrNull(gguf, "tokenizer.ggml.bos_token_id", vocab_size));
  ASSIGN_OR_RETURN(spec["eos"], IdOrNull(gguf, "tokenizer.ggml.eos_token_id", vocab_size));
  ASSIGN_OR_RETURN(spec["unk"], IdOrNull(gguf, "tokenizer.ggml.unknown_token_id", vocab_size));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenId>> FindEndTokens(const Gguf& gguf,
                                                   const std::vector<std::string_view>& tokens,
                                                   const std::vector<int64_t>& types) {
  std::vector<TokenId> ends;
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    ASSIGN_OR_RETURN(const Json id, IdOrNull(gguf, key, int64_t(tokens.size())));
    if (!id.is_null()) ends.push_back({id.get<uint32_t>()});
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (types[i] != kControl) continue;
    if (IsEndText(tokens[i])) ends.push_back({static_cast<uint32_t>(i)});
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

// Length of the code point at the front of `text`; 0: none that is well formed.
size_t CodePointBytes(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = at(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  const uint8_t second = at(1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool surrogate = first == 0xed && second > 0x9f;
  const bool beyond = first == 0xf4 && second > 0x8f;
  return overlong || surrogate || beyond ? 0 : length;
}

}  // namespace

bool IsEndText(std::string_view text) {
  return std::find(std::begin(kEndTexts), std::end(kEndTexts), text) != std::end(kEndTexts);
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = CodePointBytes(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

absl::StatusOr<Vocabulary> ReadVocabulary(const Gguf& gguf) {
  Json spec = {{"kind", "gguf"}};
  ASSIGN_OR_RETURN(const std::string_view model, gguf.String("tokenizer.ggml.model"));
  if (!IsUtf8(model)) return Fault("tokenizer.ggml.model is not valid UTF-8");
  spec["model"] = model;
  ASSIGN_OR_RETURN(const auto tokens, gguf.Strings("tokenizer.ggml.tokens"));
  ASSIGN_OR_RETURN(const auto types, gguf.Integers("tokenizer.ggml.token_type"));
  if (tokens.empty() || tokens.size() > size_t(std::numeric_limits<int32_t>::max())) {
    return Fault("tokenizer.ggml.tokens has ", tokens.size(), " entries");
  }
  if (types.size() != tokens.size()) {
    return Fault("tokenizer.ggml.token_type has ", types.size(), " entries, tokenizer.ggml.tokens ",
                 tokens.size());
  }
  RETURN_IF_ERROR(CheckTexts("tokenizer.ggml.tokens", tokens));
  RETURN_IF_ERROR(AddMerges(gguf, spec));
  RETURN_IF_ERROR(AddSettings(gguf, int64_t(tokens.size()), spec));
  Vocabulary vocabulary;
  vocabulary.size = static_cast<int32_t>(tokens.size());
  ASSIGN_OR_RETURN(vocabulary.end_tokens, FindEndTokens(gguf, tokens, types));
  spec["tokens"] = tokens;
  spec["token_types"] = types;
  vocabulary.text_spec = spec.dump();
  return vocabulary;
}

}  // namespace pdserve::engine
