// The tokenizer's side of a GGUF file: checked as a whole, and handed on as the text layer's spec.
// Pure functions, loading thread.
#ifndef PDSERVE_ENGINE_VOCABULARY_H_
#define PDSERVE_ENGINE_VOCABULARY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "engine/gguf.h"

namespace pdserve::engine {

struct Vocabulary {
  int32_t size = 0;
  std::vector<TokenId> end_tokens;  // sorted; end of text, of turn, of message
  std::string text_spec;            // JSON (text/text.h)
};

/// InvalidArgument or NotFound names the metadata at fault: missing or short arrays, text that is
/// not UTF-8, ids outside the vocabulary.
absl::StatusOr<Vocabulary> ReadVocabulary(const Gguf& gguf);

/// Whether a control token of this text ends a turn or a text in a model family that is known.
bool IsEndText(std::string_view text);
bool IsUtf8(std::string_view text);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_VOCABULARY_H_
