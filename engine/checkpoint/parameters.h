// What an architecture reads of a model file beside its weights: numbers and names under one set of
// keys, those of GGUF without the architecture ("attention.head_count"), from whichever format.
// Immutable once filled; any thread.
#ifndef PDSERVE_ENGINE_CHECKPOINT_PARAMETERS_H_
#define PDSERVE_ENGINE_CHECKPOINT_PARAMETERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace pdserve::engine {

class Parameters {
 public:
  using Json = nlohmann::json;

  /// `prefix`: what the file puts before keys that Set has not named. `file`: what errors call the
  /// file; empty where there is but one.
  explicit Parameters(std::string prefix = {}, std::string file = {})
      : prefix_(std::move(prefix)), file_(std::move(file)) {}

  /// `name`: what the file calls it. A null value says that the file has none.
  void Set(std::string key, std::string name, Json value);

  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  /// What the file calls it, for errors: in quotes, after the file's name.
  std::string NameOf(std::string_view key) const;

  /// Values by key. NotFound names what is missing, unless `absent` is given instead;
  /// InvalidArgument names what has another type or does not fit.
  absl::StatusOr<int64_t> Integer(std::string_view key, std::optional<int64_t> absent = {}) const;
  absl::StatusOr<double> Real(std::string_view key, std::optional<double> absent = {}) const;
  absl::StatusOr<bool> Boolean(std::string_view key, std::optional<bool> absent = {}) const;
  /// The text lives as long as the parameters.
  absl::StatusOr<std::string_view> String(std::string_view key,
                                          std::optional<std::string_view> absent = {}) const;
  /// A list, or one number for all of `count` layers.
  absl::StatusOr<std::vector<int64_t>> Integers(std::string_view key, size_t count) const;

  /// A whole number in [1, most], or an error that names it.
  absl::StatusOr<int32_t> Count(std::string_view key, int64_t most,
                                std::optional<int64_t> absent = {}) const;

 private:
  struct Entry {
    std::string name;
    Json value;
  };
  const Json* Find(std::string_view key) const;
  absl::StatusOr<const Json*> Need(std::string_view key) const;

  std::string prefix_;
  std::string file_;
  std::map<std::string, Entry, std::less<>> entries_;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_CHECKPOINT_PARAMETERS_H_
