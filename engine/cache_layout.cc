#include "engine/cache_layout.h"

#include "absl/strings/str_cat.h"

namespace pdserve::engine {

std::string CacheLayout::Describe() const {
  return absl::StrCat("paged-kv layers=", num_layers, " kv_heads=", num_kv_heads,
                      " head_dim=", head_dim, " block_tokens=", block_tokens,
                      " dtype=", dtype == KvDtype::kBf16 ? "bf16" : "fp32");
}

}  // namespace pdserve::engine
