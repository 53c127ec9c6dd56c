// The tokenizer's side of a Hugging Face folder: handed on to the text layer as it is, with what
// other files say of special tokens and the chat template. Pure function.
#ifndef PDSERVE_ENGINE_CHECKPOINT_HF_VOCABULARY_H_
#define PDSERVE_ENGINE_CHECKPOINT_HF_VOCABULARY_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/vocabulary.h"

namespace pdserve::engine {

struct HfTextFiles {
  nlohmann::json config;                          // config.json
  nlohmann::json tokenizer_config;                // null: none
  nlohmann::json generation_config;               // null: none
  std::string_view tokenizer;                     // tokenizer.json, whole
  std::optional<std::string_view> chat_template;  // chat_template.jinja
};

/// `vocab_size`: rows of the embedding; the tokenizer may know fewer tokens. InvalidArgument names
/// the file and the field at fault. What only the text layer understands is left to it.
absl::StatusOr<Vocabulary> ReadHfVocabulary(const HfTextFiles& files, int32_t vocab_size);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_CHECKPOINT_HF_VOCABULARY_H_
