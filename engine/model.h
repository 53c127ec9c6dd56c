// An architecture: weights plus the forward pass, written over engine/ops.h. Immutable after load
// but for scratch memory; one Model serves any number of pools. Forward runs on one step loop's
// thread at a time: a Model shared by two loops takes its device's turn inside Forward.
#ifndef PDSERVE_ENGINE_MODEL_H_
#define PDSERVE_ENGINE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "engine/batch.h"
#include "engine/cache_layout.h"

namespace pdserve::engine {

/// What other parts need to know of a loaded model.
struct ModelCard {
  std::string name;  // from the file's metadata, else its file name
  std::string architecture;
  int32_t vocab_size = 0;
  int32_t max_context_tokens = 0;
  std::vector<TokenId> end_tokens;  // end of text / end of turn; sorted
  CacheLayout cache_layout;
  Fingerprint fingerprint;
  std::string text_spec;  // JSON for text::Text::Load
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelCard& card() const = 0;

  /// Computes `batch`, writes the cache of its rows into `pool`, and the wanted logits into
  /// `logits`, shape [batch.logit_rows.size()][vocab_size]. pool: the base address of
  /// capacity * cache_layout.block_bytes() bytes. What a row gets does not depend on the other
  /// rows, on chunking or on the thread count. Cannot fail: the step loop hands in valid batches.
  virtual void Forward(const Batch& batch, std::byte* pool, float* logits) = 0;
};

struct ModelOptions {
  std::string path;  // a GGUF file, or a folder with config.json
  std::string isa = "auto";
  std::string activations = "int8";  // or fp32
  std::string kv_dtype = "auto";     // bf16, fp32
  int32_t block_tokens = 32;
  int32_t max_context_tokens = 0;  // 0: the model's own
  int32_t threads = 0;             // 0: one per core
  int32_t max_rows = 256;          // rows of one batch at most
};

/// A file's name without its last extension, a folder's whole name.
std::string ModelNameFromPath(const std::string& path);

/// Loads a GGUF file or a folder in Hugging Face's form, by its own architecture name;
/// InvalidArgument names the file and the fault.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelOptions& options);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_MODEL_H_
