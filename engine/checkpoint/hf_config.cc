#include "engine/checkpoint/hf_config.h"

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/checkpoint/tensor.h"

namespace pdserve::engine {
namespace {

using Json = nlohmann::json;

constexpr char kFile[] = "config.json";

template <typename... Parts>
absl::Status Fault(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(kFile, ": ", parts...));
}

struct Row {
  const char* key;
  const char* name;  // in the file
};

constexpr Row kRows[] = {
    {"block_count", "num_hidden_layers"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"context_length", "max_position_embeddings"},
    {"vocab_size", "vocab_size"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"activation", "hidden_act"},
    {"tie_embeddings", "tie_word_embeddings"},
};

// Within rope_parameters or rope_scaling.
constexpr Row kRotationRows[] = {
    {"rope.scaling.factor", "factor"},
    {"rope.scaling.low_freq_factor", "low_freq_factor"},
    {"rope.scaling.high_freq_factor", "high_freq_factor"},
    {"rope.scaling.original_context_length", "original_max_position_embeddings"},
};

// Types of models that are computed as another is.
constexpr std::array<std::pair<std::string_view, std::string_view>, 1> kSame = {{
    {"mistral", "llama"},
}};

// Null where it is absent.
Json Field(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? Json() : *found;
}

absl::StatusOr<std::string> ReadText(const Json& config, const char* name) {
  const Json value = Field(config, name);
  if (value.is_null()) return Fault("'", name, "' is missing");
  if (!value.is_string()) return Fault("'", name, "' is not a string");
  return value.get<std::string>();
}

absl::Status RefuseUnknown(const Json& config) {
  const Json packed = Field(config, "quantization_config");
  if (packed.is_null()) return absl::OkStatus();
  const Json method = packed.is_object() ? Field(packed, "quant_method") : Json();
  return Fault("quantization '", method.is_string() ? Printable(method.get<std::string>()) : "?",
               "' is not supported");
}

// The class says what the weights are for: one with another head would not speak.
absl::Status CheckPurpose(const Json& config) {
  const Json names = Field(config, "architectures");
  if (!names.is_array() || names.empty() || !names[0].is_string()) return absl::OkStatus();
  const auto name = names[0].get<std::string>();
  if (absl::EndsWith(name, "ForCausalLM") || absl::EndsWith(name, "ForConditionalGeneration")) {
    return absl::OkStatus();
  }
  return Fault("architecture '", Printable(name), "' is not a language model's");
}

void ReadRows(const Json& config, Parameters& parameters) {
  for (const Row& row : kRows) parameters.Set(row.key, row.name, Field(config, row.name));
}

absl::Status ReadRotationFields(const Json& config, Parameters& parameters) {
  std::string object_name = "rope_parameters";
  Json rotation = Field(config, "rope_parameters");
  if (rotation.is_null()) {
    object_name = "rope_scaling";
    rotation = Field(config, "rope_scaling");
  }
  if (rotation.is_null()) rotation = Json::object();
  if (!rotation.is_object()) return Fault("'", object_name, "' is not an object");
  const auto set = [&](const char* key, const char* name) {
    const Json value = Field(rotation, name);
    if (value.is_null()) return parameters.Set(key, name, Field(config, name));
    parameters.Set(key, absl::StrCat(object_name, ".", name), value);
  };
  for (const Row& row : kRotationRows) set(row.key, row.name);
  set("rope.freq_base", "rope_theta");
  set("rope.fraction", "partial_rotary_factor");
  const char* type_name = rotation.contains("rope_type") ? "rope_type" : "type";
  Json type = Field(rotation, type_name);
  if (type == "default") type = "none";
  parameters.Set("rope.scaling.type", absl::StrCat(object_name, ".", type_name), std::move(type));
  return absl::OkStatus();
}

// What is given as a part of a head, as a number of its values.
absl::Status ReadRotatedDims(Parameters& parameters) {
  if (!parameters.Has("rope.fraction")) return absl::OkStatus();
  ASSIGN_OR_RETURN(const double fraction, parameters.Real("rope.fraction"));
  ASSIGN_OR_RETURN(const int32_t width, parameters.Count("embedding_length", 1 << 20));
  ASSIGN_OR_RETURN(const int32_t heads, parameters.Count("attention.head_count", 1 << 16));
  ASSIGN_OR_RETURN(const int32_t head_dim,
                   parameters.Count("attention.key_length", 1 << 16, width / heads));
  if (!(fraction > 0 && fraction <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(parameters.NameOf("rope.fraction"), " is ", fraction));
  }
  parameters.Set("rope.dimension_count", "partial_rotary_factor",
                 static_cast<int64_t>(std::floor(head_dim * fraction)));
  return absl::OkStatus();
}

// Llama's own class has no window; the others' configs may carry one that is switched off.
void ReadWindow(const Json& config, const std::string& type, Parameters& parameters) {
  if (type == "llama" || Field(config, "use_sliding_window") == false) return;
  parameters.Set("attention.sliding_window", "sliding_window", Field(config, "sliding_window"));
}

}  // namespace

absl::StatusOr<HfConfig> ReadHfConfig(const Json& config) {
  HfConfig read;
  read.parameters = Parameters("", kFile);
  ASSIGN_OR_RETURN(const std::string type, ReadText(config, "model_type"));
  read.architecture = type;
  for (const auto& [name, same] : kSame) {
    if (type == name) read.architecture = same;
  }
  RETURN_IF_ERROR(RefuseUnknown(config));
  RETURN_IF_ERROR(CheckPurpose(config));
  ReadRows(config, read.parameters);
  RETURN_IF_ERROR(ReadRotationFields(config, read.parameters));
  RETURN_IF_ERROR(ReadRotatedDims(read.parameters));
  ReadWindow(config, type, read.parameters);
  return read;
}

}  // namespace pdserve::engine
