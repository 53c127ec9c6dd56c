// config.json of a Hugging Face folder as parameters, in both of its spellings: rope_theta with
// rope_scaling, or rope_parameters. Pure function.
#ifndef PDSERVE_ENGINE_CHECKPOINT_HF_CONFIG_H_
#define PDSERVE_ENGINE_CHECKPOINT_HF_CONFIG_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/parameters.h"

namespace pdserve::engine {

struct HfConfig {
  std::string architecture;  // in GGUF's spelling; may be one that nobody knows
  Parameters parameters;
};

/// InvalidArgument names the file and the field at fault; types and ranges of values are checked
/// where they are read.
absl::StatusOr<HfConfig> ReadHfConfig(const nlohmann::json& config);

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_CHECKPOINT_HF_CONFIG_H_
