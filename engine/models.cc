#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/checkpoint/fingerprint.h"
#include "engine/model.h"
#include "engine/model_source.h"
#include "engine/vocabulary.h"

namespace pdserve::engine {

// One loader per word of the model variants, in a namespace of that name.
#define X(word)                                                    \
  namespace word {                                                 \
  absl::StatusOr<std::unique_ptr<Model>> Load(ModelSource source); \
  }
#include "engine/model_list.inc"
#undef X

namespace {

using Loader = absl::StatusOr<std::unique_ptr<Model>> (*)(ModelSource);

absl::StatusOr<Loader> FindLoader(std::string_view architecture) {
  std::string known;
#define X(word)                                  \
  if (architecture == #word) return &word::Load; \
  absl::StrAppend(&known, known.empty() ? "" : ", ", #word);
#include "engine/model_list.inc"
#undef X
  return absl::InvalidArgumentError(
      absl::StrCat("architecture '", Printable(architecture), "' is not supported (", known, ")"));
}

absl::StatusOr<bool> QuantiseActivations(const ModelOptions& options) {
  if (options.activations == "int8") return true;
  if (options.activations == "fp32") return false;
  return absl::InvalidArgumentError(
      absl::StrCat("activations '", options.activations, "' are not int8 or fp32"));
}

absl::StatusOr<KvDtype> FindKvDtype(const ModelOptions& options, bool quantise) {
  if (options.kv_dtype == "auto") return quantise ? KvDtype::kBf16 : KvDtype::kFp32;
  if (options.kv_dtype == "bf16") return KvDtype::kBf16;
  if (options.kv_dtype == "fp32") return KvDtype::kFp32;
  return absl::InvalidArgumentError(
      absl::StrCat("kv_dtype '", options.kv_dtype, "' is not auto, bf16 or fp32"));
}

ModelCard StartCard(const ModelOptions& options, const Checkpoint& checkpoint) {
  ModelCard card;
  card.architecture = checkpoint.architecture;
  const std::string& name = checkpoint.name;
  card.name = name.empty() || !IsUtf8(name) ? ModelNameFromPath(options.path) : name;
  card.vocab_size = checkpoint.vocabulary.size;
  card.end_tokens = checkpoint.vocabulary.end_tokens;
  card.text_spec = checkpoint.vocabulary.text_spec;
  return card;
}

absl::StatusOr<std::unique_ptr<Model>> LoadOpened(const ModelOptions& options,
                                                  const Checkpoint& checkpoint) {
  if (options.block_tokens < 1 || options.max_rows < 1 || options.threads < 0) {
    return absl::InvalidArgumentError("block_tokens, max_rows or threads is out of range");
  }
  ASSIGN_OR_RETURN(const Loader load, FindLoader(checkpoint.architecture));
  ASSIGN_OR_RETURN(const Ops* ops, FindOps(options.isa));
  ASSIGN_OR_RETURN(const bool quantise, QuantiseActivations(options));
  ASSIGN_OR_RETURN(const KvDtype kv_dtype, FindKvDtype(options, quantise));
  auto team = Team::Create(options.threads);
  ModelCard card = StartCard(options, checkpoint);
  return load({options, checkpoint, *ops, kv_dtype, quantise, std::move(team), std::move(card)});
}

}  // namespace

std::string ModelNameFromPath(const std::string& path) {
  std::error_code ignored;
  std::filesystem::path whole = std::filesystem::absolute(path, ignored).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // it ended in a slash
  return std::filesystem::is_directory(whole, ignored) ? whole.filename() : whole.stem();
}

void ModelSource::CompleteCard(const CacheLayout& layout, int32_t max_context_tokens) {
  card.cache_layout = layout;
  card.max_context_tokens = max_context_tokens;
  const std::string text =
      absl::StrCat("architecture ", card.architecture, "\nlayout ", layout.Describe(), "\nkernels ",
                   absl::string_view(ops.numerics.data(), ops.numerics.size()), "\nactivations ",
                   quantise ? "int8" : "fp32", "\n");
  std::vector<std::span<const std::byte>> files;
  files.reserve(checkpoint.files.size());
  for (const auto& file : checkpoint.files) files.push_back(file->bytes());
  card.fingerprint = ComputeFingerprint(files, text, *team);
}

absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelOptions& options) {
  auto model = [&]() -> absl::StatusOr<std::unique_ptr<Model>> {
    ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(options.path));
    ASSIGN_OR_RETURN(auto loaded, LoadOpened(options, checkpoint));
    for (const auto& file : checkpoint.files) RETURN_IF_ERROR(file->Unchanged());
    return loaded;
  }();
  if (model.ok()) return model;
  // One code for every fault of the file and the options, so that callers need not tell them apart.
  return absl::InvalidArgumentError(absl::StrCat(
      options.path, ": ",
      absl::string_view(model.status().message().data(), model.status().message().size())));
}

}  // namespace pdserve::engine
