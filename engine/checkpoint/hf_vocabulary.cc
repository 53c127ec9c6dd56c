#include "engine/checkpoint/hf_vocabulary.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/checkpoint/json_text.h"

namespace pdserve::engine {
namespace {

using Json = nlohmann::json;

template <typename... Parts>
absl::Status Fault(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Null where it is absent.
Json Field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? Json() : *found;
}

struct AddedToken {
  uint32_t id = 0;
  bool special = false;
};
using AddedTokens = std::map<std::string, AddedToken>;

absl::StatusOr<uint32_t> ReadId(const Json& value, std::string_view where, int32_t vocab_size) {
  if (value.is_number_unsigned() && value.get<uint64_t>() < uint64_t(vocab_size)) {
    return value.get<uint32_t>();
  }
  return Fault(absl::string_view(where.data(), where.size()),
               " is no token id below the vocabulary's size of ", vocab_size);
}

absl::StatusOr<AddedTokens> ReadAddedTokens(const Json& tokenizer, int32_t vocab_size) {
  AddedTokens tokens;
  const Json added = Field(tokenizer, "added_tokens");
  if (!added.is_array() && !added.is_null()) {
    return Fault("tokenizer.json: 'added_tokens' is not a list");
  }
  for (const Json& token : added) {
    if (!token.is_object() || !Field(token, "content").is_string()) {
      return Fault("tokenizer.json: an entry of 'added_tokens' has no content");
    }
    ASSIGN_OR_RETURN(const uint32_t id,
                     ReadId(Field(token, "id"), "tokenizer.json: an added token's id", vocab_size));
    tokens[token["content"].get<std::string>()] = {id, Field(token, "special") == true};
  }
  return tokens;
}

// One id, a list of them, or none.
absl::Status AddEnds(const Json& config, const char* file, int32_t vocab_size,
                     std::vector<TokenId>& ends) {
  const Json value = Field(config, "eos_token_id");
  if (value.is_null()) return absl::OkStatus();
  const std::string where = absl::StrCat(file, ": 'eos_token_id'");
  for (const Json& element : value.is_array() ? value : Json::array({value})) {
    ASSIGN_OR_RETURN(const uint32_t id, ReadId(element, where, vocab_size));
    ends.push_back({id});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenId>> FindEndTokens(const HfTextFiles& files,
                                                   const AddedTokens& added, const Json& eos,
                                                   int32_t vocab_size) {
  std::vector<TokenId> ends;
  RETURN_IF_ERROR(AddEnds(files.config, "config.json", vocab_size, ends));
  RETURN_IF_ERROR(AddEnds(files.generation_config, "generation_config.json", vocab_size, ends));
  for (const auto& [text, token] : added) {
    if ((token.special && IsEndText(text)) || eos == text) ends.push_back({token.id});
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

// The text of a token that tokenizer_config.json names, as a text or as an object with it; else
// the one of the id that config.json gives.
Json SpecialToken(const HfTextFiles& files, const AddedTokens& added, const std::string& name) {
  if (files.tokenizer_config.is_object()) {
    Json token = Field(files.tokenizer_config, name.c_str());
    if (token.is_object()) token = Field(token, "content");
    return token.is_string() ? token : Json();
  }
  const Json id = Field(files.config, (name + "_id").c_str());
  for (const auto& [text, token] : added) {
    if (id == token.id) return text;
  }
  return {};
}

// Newer folders have a file of its own for it; older ones a text, or a list of named ones.
absl::StatusOr<Json> FindTemplate(const HfTextFiles& files) {
  if (files.chat_template) {
    if (!IsUtf8(*files.chat_template)) return Fault("chat_template.jinja is not valid UTF-8");
    return Json(*files.chat_template);
  }
  Json found = Field(files.tokenizer_config, "chat_template");
  if (!found.is_array()) return found.is_string() ? found : Json();
  for (const Json& named : found) {
    if (!named.is_object() || Field(named, "name") != "default") continue;
    Json text = Field(named, "template");
    if (text.is_string()) return text;
  }
  return Fault("tokenizer_config.json: 'chat_template' has no default");
}

Json BooleanOrNull(const Json& config, const char* name) {
  const Json value = Field(config, name);
  return value.is_boolean() ? value : Json();
}

}  // namespace

absl::StatusOr<Vocabulary> ReadHfVocabulary(const HfTextFiles& files, int32_t vocab_size) {
  // The model's part, nearly all of the file, is the text layer's to read.
  const auto tokenizer = ParseJsonObject(files.tokenizer, "model");
  if (!tokenizer.ok()) {
    return Fault("tokenizer.json ", absl::string_view(tokenizer.status().message()));
  }
  ASSIGN_OR_RETURN(const AddedTokens added, ReadAddedTokens(*tokenizer, vocab_size));
  Json spec = {{"kind", "hf"}, {"vocab_size", vocab_size}};
  for (const char* name : {"bos", "eos", "unk"}) {
    spec[name] = SpecialToken(files, added, absl::StrCat(name, "_token"));
  }
  spec["add_bos"] = BooleanOrNull(files.tokenizer_config, "add_bos_token");
  spec["add_eos"] = BooleanOrNull(files.tokenizer_config, "add_eos_token");
  ASSIGN_OR_RETURN(spec["chat_template"], FindTemplate(files));
  Vocabulary vocabulary;
  vocabulary.size = vocab_size;
  ASSIGN_OR_RETURN(vocabulary.end_tokens, FindEndTokens(files, added, spec["eos"], vocab_size));
  spec["tokenizer"] = files.tokenizer;
  vocabulary.text_spec = spec.dump();
  return vocabulary;
}

}  // namespace pdserve::engine
