// The JSON files beside a model's weights, read with limits on size and depth, so that what a
// hostile one costs stays in proportion to it. Pure function.
#ifndef PDSERVE_ENGINE_CHECKPOINT_JSON_TEXT_H_
#define PDSERVE_ENGINE_CHECKPOINT_JSON_TEXT_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"

namespace pdserve::engine {

inline std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// A JSON object. `but`: a field at its top whose value is checked and left out; empty: none.
/// InvalidArgument: not JSON, not an object, or too deep.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, std::string_view but = {});

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_CHECKPOINT_JSON_TEXT_H_
