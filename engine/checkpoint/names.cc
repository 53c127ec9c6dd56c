#include "engine/checkpoint/names.h"

#include <algorithm>

namespace pdserve::engine {
namespace {

constexpr std::string_view kLayer = "blk.";

constexpr NameRow kModelRows[] = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
};

constexpr NameRow kLayerRows[] = {
    {"attn_norm", "input_layernorm"},    {"ffn_norm", "post_attention_layernorm"},
    {"attn_q", "self_attn.q_proj"},      {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},      {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

const NameRow* FindRow(std::span<const NameRow> rows, std::string_view stem) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const NameRow& row) { return row.gguf == stem; });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace

std::string HfName(std::string_view name, std::span<const NameRow> own) {
  std::string hf;
  std::span<const NameRow> shared = kModelRows;
  if (name.substr(0, kLayer.size()) == kLayer) {
    const size_t dot = std::min(name.find('.', kLayer.size()), name.size());
    hf.append("model.layers.").append(name.substr(kLayer.size(), dot - kLayer.size())).append(".");
    name.remove_prefix(std::min(dot + 1, name.size()));
    shared = kLayerRows;
  }
  const size_t suffix = std::min(name.rfind('.'), name.size());
  const std::string_view stem = name.substr(0, suffix);
  const NameRow* row = FindRow(own, stem);
  if (row == nullptr) row = FindRow(shared, stem);
  hf.append(row != nullptr ? row->hf : stem).append(name.substr(suffix));
  return hf;
}

}  // namespace pdserve::engine
