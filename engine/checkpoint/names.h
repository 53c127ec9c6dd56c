// Tensor names of Hugging Face checkpoints for those that architectures ask by, which are GGUF's.
// Pure functions.
#ifndef PDSERVE_ENGINE_CHECKPOINT_NAMES_H_
#define PDSERVE_ENGINE_CHECKPOINT_NAMES_H_

#include <span>
#include <string>
#include <string_view>

namespace pdserve::engine {

/// A stem of a name: without "blk.N." or "model.layers.N.", and without ".weight" or ".bias".
struct NameRow {
  std::string_view gguf;
  std::string_view hf;
};

/// "blk.3.attn_q.weight" to "model.layers.3.self_attn.q_proj.weight". `own`: rows of one
/// architecture, which count before those that all share. A stem in neither stays as it is.
std::string HfName(std::string_view name, std::span<const NameRow> own = {});

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_CHECKPOINT_NAMES_H_
