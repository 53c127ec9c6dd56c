// Typed reading of a client's JSON object: every field that is read is noted, the first fault is
// kept, and what nobody read is refused by name at the end. Belongs to one thread; the object
// outlives it. Nothing a client sends throws or aborts.
#ifndef PDSERVE_ROUTER_FIELDS_H_
#define PDSERVE_ROUTER_FIELDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_set.h"
#include "nlohmann/json.hpp"
#include "router/errors.h"

namespace pdserve::router {

using Json = nlohmann::json;

/// The body as a JSON object; nesting above 64 is refused before anything is built.
Result<Json> ParseObject(std::string_view body);

class Fields {
 public:
  /// `path` is put before each name in errors, like "stream_options.".
  explicit Fields(const Json& object, std::string path = "");

  /// Null or absent: nullptr.
  const Json* Find(std::string_view name);

  /// Absent and null read as nullopt. So does a fault, which then is in error().
  std::optional<bool> Bool(std::string_view name);
  std::optional<std::string> String(std::string_view name);
  /// In [low, high]; 3.0 counts as 3.
  std::optional<int64_t> Integer(std::string_view name, int64_t low, int64_t high);
  /// In [low, high].
  std::optional<double> Number(std::string_view name, double low, double high);
  /// -2^63 .. 2^64 - 1, as 64 bits.
  std::optional<uint64_t> Seed(std::string_view name);

  /// Refuses every field that was not read, save those that ask for nothing: hints without an
  /// effect on the answer, and other fields at the value that leaves the answer as it is.
  void RefuseRest();

  void Fail(ApiError error);
  const std::optional<ApiError>& error() const { return error_; }
  std::string Path(std::string_view name) const;

 private:
  const Json& object_;
  const std::string path_;
  absl::flat_hash_set<std::string> read_;
  std::optional<ApiError> error_;
};

/// A whole number in JSON (1, 1.0) within int64; nullopt for anything else.
std::optional<int64_t> WholeNumber(const Json& value);

}  // namespace pdserve::router

#endif  // PDSERVE_ROUTER_FIELDS_H_
