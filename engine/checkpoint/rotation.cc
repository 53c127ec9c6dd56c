#include "engine/checkpoint/rotation.h"

#include <cmath>
#include <numbers>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/checkpoint/tensor.h"

namespace pdserve::engine {
namespace {

// A positive number of a size that makes sense.
absl::StatusOr<double> ReadPositive(const Parameters& parameters, std::string_view key,
                                    std::optional<double> absent = {}) {
  ASSIGN_OR_RETURN(const double value, parameters.Real(key, absent));
  if (value > 0 && value < 1e15) return value;
  return absl::InvalidArgumentError(absl::StrCat(parameters.NameOf(key), " is ", value));
}

// Llama 3's: by how many turns a pair makes within the context that the model was first trained on.
absl::Status ScaleLlama3(const Parameters& parameters, std::vector<double>& rotation) {
  ASSIGN_OR_RETURN(const double factor, ReadPositive(parameters, "rope.scaling.factor"));
  ASSIGN_OR_RETURN(const double low, ReadPositive(parameters, "rope.scaling.low_freq_factor"));
  ASSIGN_OR_RETURN(const double high, ReadPositive(parameters, "rope.scaling.high_freq_factor"));
  ASSIGN_OR_RETURN(const double context,
                   ReadPositive(parameters, "rope.scaling.original_context_length"));
  if (!(low < high)) {
    return absl::InvalidArgumentError(absl::StrCat(
        parameters.NameOf("rope.scaling.low_freq_factor"), " is ", low, ", not below ", high));
  }
  for (double& radians : rotation) {
    const double turns = context * radians / (2 * std::numbers::pi);
    if (turns >= high) continue;
    const double kept = turns <= low ? 0 : (turns - low) / (high - low);
    radians *= kept + (1 - kept) / factor;
  }
  return absl::OkStatus();
}

absl::Status ScaleLinear(const Parameters& parameters, std::vector<double>& rotation) {
  ASSIGN_OR_RETURN(const double factor, ReadPositive(parameters, "rope.scaling.factor"));
  for (double& radians : rotation) radians /= factor;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<double>> ReadRotation(const Parameters& parameters, int32_t dims) {
  ASSIGN_OR_RETURN(const double base, ReadPositive(parameters, "rope.freq_base", 10000.0));
  std::vector<double> rotation(dims / 2);
  for (size_t i = 0; i < rotation.size(); ++i) {
    rotation[i] = std::pow(base, -2.0 * double(i) / dims);
  }
  ASSIGN_OR_RETURN(const std::string_view scaling, parameters.String("rope.scaling.type", "none"));
  if (scaling == "llama3") {
    RETURN_IF_ERROR(ScaleLlama3(parameters, rotation));
  } else if (scaling == "linear") {
    RETURN_IF_ERROR(ScaleLinear(parameters, rotation));
  } else if (scaling != "none") {
    return absl::InvalidArgumentError(
        absl::StrCat("rope scaling '", Printable(scaling), "' is not supported"));
  }
  return rotation;
}

}  // namespace pdserve::engine
