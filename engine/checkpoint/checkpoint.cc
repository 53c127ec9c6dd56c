#include "engine/checkpoint/checkpoint.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace pdserve::engine {

std::string Printable(std::string_view name) {
  constexpr size_t kMostBytes = 96;
  std::string text;
  for (const char c : name.substr(0, kMostBytes)) text += c >= 0x20 && c < 0x7f ? c : '?';
  return name.size() > kMostBytes ? text + "..." : text;
}

absl::StatusOr<TensorSet> TensorSet::Create(Convention convention, std::vector<Tensor> tensors) {
  TensorSet set;
  set.convention_ = convention;
  set.tensors_ = std::move(tensors);
  for (size_t i = 0; i < set.tensors_.size(); ++i) {
    if (set.idx_.emplace(set.tensors_[i].name, i).second) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", Printable(set.tensors_[i].name), "' appears twice"));
  }
  return set;
}

std::string TensorSet::NameInFile(std::string_view name, std::span<const NameRow> own) const {
  return convention_ == Convention::kGguf ? std::string(name) : HfName(name, own);
}

const Tensor* TensorSet::Find(std::string_view name_in_file) const {
  const auto found = idx_.find(name_in_file);
  return found == idx_.end() ? nullptr : &tensors_[found->second];
}

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored) ? OpenModelFolder(path) : OpenGgufFile(path);
}

}  // namespace pdserve::engine
