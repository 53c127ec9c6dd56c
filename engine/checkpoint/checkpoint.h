// A model as its files describe it: one GGUF file, or a folder in Hugging Face's form. Everything
// behind this header is checked against the bytes that are there, and independent of the format:
// an architecture reads parameters and tensors under GGUF's names. Immutable; lives while a model
// is loaded.
#ifndef PDSERVE_ENGINE_CHECKPOINT_CHECKPOINT_H_
#define PDSERVE_ENGINE_CHECKPOINT_CHECKPOINT_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/names.h"
#include "engine/checkpoint/parameters.h"
#include "engine/checkpoint/tensor.h"
#include "engine/mapped_file.h"
#include "engine/vocabulary.h"

namespace pdserve::engine {

/// Whose names and whose order of rows tensors have. Hugging Face's projections to rotated heads
/// pair the first half of a head with the second; what GGUF files do depends on the architecture.
enum class Convention { kGguf, kHuggingFace };

/// Tensors by their names in the files.
class TensorSet {
 public:
  TensorSet() = default;
  /// InvalidArgument: a name appears twice.
  static absl::StatusOr<TensorSet> Create(Convention convention, std::vector<Tensor> tensors);

  Convention convention() const { return convention_; }
  std::span<const Tensor> tensors() const { return tensors_; }
  /// What the files call the tensor `name`. `own`: the architecture's own rows (HfName).
  std::string NameInFile(std::string_view name, std::span<const NameRow> own) const;
  const Tensor* Find(std::string_view name_in_file) const;  // null: none

 private:
  Convention convention_ = Convention::kGguf;
  std::vector<Tensor> tensors_;
  absl::flat_hash_map<std::string_view, size_t> idx_;  // keys: the tensors' own names
};

struct Checkpoint {
  std::string architecture;  // in GGUF's spelling
  std::string name;          // empty: the files name none
  Parameters parameters;
  Vocabulary vocabulary;
  TensorSet tensors;
  std::vector<std::unique_ptr<MappedFile>> files;  // all that decides over results
};

/// Opens a GGUF file or a model folder. InvalidArgument or NotFound says what is wrong, naming the
/// file in a folder.
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path);
absl::StatusOr<Checkpoint> OpenGgufFile(const std::string& path);
absl::StatusOr<Checkpoint> OpenModelFolder(const std::string& path);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_CHECKPOINT_CHECKPOINT_H_
