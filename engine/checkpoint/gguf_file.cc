// A GGUF file as a checkpoint.
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/gguf.h"

namespace pdserve::engine {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxLayers = size_t{1} << 16;  // of a value per layer

bool IsInteger(GgufType type) {
  return type != GgufType::kF32 && type != GgufType::kF64 && type != GgufType::kBool &&
         type != GgufType::kString;
}

// Arrays of anything but a few integers are known to be there, and no more.
absl::StatusOr<Json> ReadValue(const Gguf& gguf, std::string_view key, const GgufValue& value) {
  if (value.is_array) {
    if (!IsInteger(value.type) || value.count > kMaxLayers) return Json::array();
    ASSIGN_OR_RETURN(std::vector<int64_t> integers, gguf.Integers(key));
    return Json(std::move(integers));
  }
  if (IsInteger(value.type)) {
    ASSIGN_OR_RETURN(const int64_t integer, gguf.Integer(key));
    return Json(integer);
  }
  if (value.type == GgufType::kBool) {
    ASSIGN_OR_RETURN(const bool boolean, gguf.Boolean(key));
    return Json(boolean);
  }
  if (value.type == GgufType::kString) {
    ASSIGN_OR_RETURN(const std::string_view text, gguf.String(key));
    return Json(text);
  }
  ASSIGN_OR_RETURN(const double real, gguf.Real(key));
  return Json(real);
}

absl::StatusOr<Parameters> ReadParameters(const Gguf& gguf, const std::string& architecture) {
  const std::string prefix = architecture + ".";
  Parameters parameters(prefix);
  for (const auto& [key, value] : gguf.values()) {
    if (key.substr(0, prefix.size()) != prefix) continue;
    ASSIGN_OR_RETURN(Json read, ReadValue(gguf, key, value));
    parameters.Set(std::string(key.substr(prefix.size())), std::string(key), std::move(read));
  }
  return parameters;
}

}  // namespace

absl::StatusOr<Checkpoint> OpenGgufFile(const std::string& path) {
  Checkpoint checkpoint;
  ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(Gguf gguf, Gguf::Parse(file->bytes()));
  ASSIGN_OR_RETURN(checkpoint.architecture, gguf.String("general.architecture"));
  ASSIGN_OR_RETURN(checkpoint.name, gguf.String("general.name", ""));
  ASSIGN_OR_RETURN(checkpoint.parameters, ReadParameters(gguf, checkpoint.architecture));
  ASSIGN_OR_RETURN(checkpoint.vocabulary, ReadVocabulary(gguf));
  ASSIGN_OR_RETURN(checkpoint.tensors, TensorSet::Create(Convention::kGguf, gguf.TakeTensors()));
  checkpoint.files.push_back(std::move(file));
  return checkpoint;
}

}  // namespace pdserve::engine
