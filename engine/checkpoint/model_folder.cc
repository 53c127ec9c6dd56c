// A folder in Hugging Face's form as a checkpoint: config.json, tokenizer.json, weights in one
// safetensors file or in shards with an index, and what may stand beside them.
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/hf_config.h"
#include "engine/checkpoint/hf_vocabulary.h"
#include "engine/checkpoint/json_text.h"
#include "engine/checkpoint/safetensors.h"

namespace pdserve::engine {
namespace {

using Json = nlohmann::json;
using Bytes = std::span<const std::byte>;

constexpr char kWeights[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr size_t kMaxShards = 4096;

template <typename... Parts>
absl::Status Fault(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status Within(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
}

/// Maps files of the folder and keeps them.
class Folder {
 public:
  Folder(std::string path, std::vector<std::unique_ptr<MappedFile>>& files)
      : path_(std::move(path)), files_(files) {}

  absl::StatusOr<Bytes> Map(const std::string& name) {
    auto file = MappedFile::Open(path_ + "/" + name);
    if (!file.ok()) return Within(name, file.status());
    files_.push_back(*std::move(file));
    return files_.back()->bytes();
  }
  absl::StatusOr<std::optional<Bytes>> MapIfThere(const std::string& name) {
    auto bytes = Map(name);
    if (absl::IsNotFound(bytes.status())) return std::nullopt;
    if (!bytes.ok()) return bytes.status();
    return std::optional<Bytes>(*bytes);
  }
  absl::StatusOr<Json> Read(const std::string& name) {
    ASSIGN_OR_RETURN(const Bytes bytes, Map(name));
    auto json = ParseJsonObject(AsText(bytes));
    if (!json.ok()) return Within(name, json.status());
    return json;
  }
  /// Null: there is none.
  absl::StatusOr<Json> ReadIfThere(const std::string& name) {
    auto json = Read(name);
    if (absl::IsNotFound(json.status())) return Json();
    return json;
  }

 private:
  const std::string path_;
  std::vector<std::unique_ptr<MappedFile>>& files_;
};

absl::StatusOr<std::vector<Tensor>> ReadTensors(Folder& folder, const std::string& name) {
  ASSIGN_OR_RETURN(const Bytes bytes, folder.Map(name));
  auto tensors = ParseSafetensors(bytes);
  if (!tensors.ok()) return Within(name, tensors.status());
  return tensors;
}

// A shard lies in the folder itself, wherever the index would like it to be.
bool IsShardName(const std::string& name) {
  return absl::EndsWith(name, ".safetensors") && name[0] != '.' && Printable(name) == name &&
         name.find('/') == std::string::npos && name.find('\\') == std::string::npos;
}

using Shards = std::map<std::string, std::vector<std::string>>;  // names of tensors by file

absl::StatusOr<Shards> ReadIndex(const Json& index) {
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) return Fault("'weight_map' is missing");
  Shards shards;
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !IsShardName(shard.get_ref<const std::string&>())) {
      return Fault("the file of tensor '", Printable(tensor), "' is ",
                   shard.is_string() ? Printable(shard.get<std::string>()) : "no text",
                   ", not a safetensors file's name in this folder");
    }
    shards[shard.get<std::string>()].push_back(tensor);
    if (shards.size() > kMaxShards) return Fault("names over ", kMaxShards, " files");
  }
  return shards;
}

absl::StatusOr<std::vector<Tensor>> ReadShards(Folder& folder) {
  ASSIGN_OR_RETURN(const Json index, folder.Read(kIndex));
  const auto shards = ReadIndex(index);
  if (!shards.ok()) return Within(kIndex, shards.status());
  std::vector<Tensor> all;
  for (const auto& [shard, names] : *shards) {
    ASSIGN_OR_RETURN(std::vector<Tensor> tensors, ReadTensors(folder, shard));
    ASSIGN_OR_RETURN(const TensorSet set,
                     TensorSet::Create(Convention::kHuggingFace, std::move(tensors)));
    for (const std::string& name : names) {
      const Tensor* tensor = set.Find(name);
      if (tensor == nullptr) {
        return Fault(shard, ": tensor '", Printable(name),
                     "' is missing, which the index promises");
      }
      all.push_back(*tensor);
    }
  }
  return all;
}

absl::StatusOr<TensorSet> ReadWeights(Folder& folder) {
  auto tensors = ReadTensors(folder, kWeights);
  if (absl::IsNotFound(tensors.status())) tensors = ReadShards(folder);
  if (absl::IsNotFound(tensors.status()) && absl::StartsWith(tensors.status().message(), kIndex)) {
    return Fault("holds neither ", kWeights, " nor ", kIndex);
  }
  if (!tensors.ok()) return tensors.status();
  // Old checkpoints carry what follows from the config.
  std::erase_if(*tensors, [](const Tensor& tensor) {
    return absl::EndsWith(tensor.name, ".rotary_emb.inv_freq");
  });
  return TensorSet::Create(Convention::kHuggingFace, *std::move(tensors));
}

absl::StatusOr<Vocabulary> ReadText(Folder& folder, const Json& config, int32_t vocab_size) {
  HfTextFiles files;
  files.config = config;
  ASSIGN_OR_RETURN(const Bytes tokenizer, folder.Map("tokenizer.json"));
  files.tokenizer = AsText(tokenizer);
  ASSIGN_OR_RETURN(files.tokenizer_config, folder.ReadIfThere("tokenizer_config.json"));
  ASSIGN_OR_RETURN(files.generation_config, folder.ReadIfThere("generation_config.json"));
  ASSIGN_OR_RETURN(const auto chat_template, folder.MapIfThere("chat_template.jinja"));
  if (chat_template) files.chat_template = AsText(*chat_template);
  return ReadHfVocabulary(files, vocab_size);
}

}  // namespace

absl::StatusOr<Checkpoint> OpenModelFolder(const std::string& path) {
  Checkpoint checkpoint;
  Folder folder(path, checkpoint.files);
  ASSIGN_OR_RETURN(const Json config, folder.Read("config.json"));
  ASSIGN_OR_RETURN(HfConfig read, ReadHfConfig(config));
  checkpoint.architecture = std::move(read.architecture);
  checkpoint.parameters = std::move(read.parameters);
  ASSIGN_OR_RETURN(const int32_t vocab_size, checkpoint.parameters.Count("vocab_size", 1 << 24));
  ASSIGN_OR_RETURN(checkpoint.vocabulary, ReadText(folder, config, vocab_size));
  ASSIGN_OR_RETURN(checkpoint.tensors, ReadWeights(folder));
  return checkpoint;
}

}  // namespace pdserve::engine
