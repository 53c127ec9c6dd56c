// What LoadModel prepares for an architecture's loader. An architecture is one file,
// model_<name>.cc, whose name is the one that model files use; it defines
//   namespace <name> { absl::StatusOr<std::unique_ptr<Model>> Load(ModelSource source); }
#ifndef PDSERVE_ENGINE_MODEL_SOURCE_H_
#define PDSERVE_ENGINE_MODEL_SOURCE_H_

#include <memory>

#include "engine/checkpoint/checkpoint.h"
#include "engine/device.h"
#include "engine/model.h"
#include "engine/ops.h"

namespace pdserve::engine {

struct ModelSource {
  const ModelOptions& options;
  const Checkpoint& checkpoint;
  const Ops& ops;
  KvDtype kv_dtype = KvDtype::kBf16;
  bool quantise = true;  // activations to 8 bits
  std::unique_ptr<Team> team;
  ModelCard card;  // all but max_context_tokens, cache_layout and fingerprint

  /// Fills in what the architecture decides, and the fingerprint over everything.
  void CompleteCard(const CacheLayout& layout, int32_t max_context_tokens);
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_MODEL_SOURCE_H_
