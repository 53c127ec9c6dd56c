#include "engine/checkpoint/parameters.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace pdserve::engine {
namespace {

template <typename... Parts>
absl::Status Fault(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// False: not a whole number, or above the largest int64.
bool AsInteger(const nlohmann::json& value, int64_t& integer) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > uint64_t(std::numeric_limits<int64_t>::max())) {
    return false;
  }
  integer = value.get<int64_t>();
  return true;
}

}  // namespace

void Parameters::Set(std::string key, std::string name, Json value) {
  entries_.insert_or_assign(std::move(key), Entry{std::move(name), std::move(value)});
}

std::string Parameters::NameOf(std::string_view key) const {
  const auto found = entries_.find(key);
  const std::string name = found != entries_.end()
                               ? found->second.name
                               : absl::StrCat(prefix_, absl::string_view(key.data(), key.size()));
  return absl::StrCat(file_, file_.empty() ? "'" : ": '", name, "'");
}

const Parameters::Json* Parameters::Find(std::string_view key) const {
  const auto found = entries_.find(key);
  if (found == entries_.end() || found->second.value.is_null()) return nullptr;
  return &found->second.value;
}

absl::StatusOr<const Parameters::Json*> Parameters::Need(std::string_view key) const {
  if (const Json* value = Find(key)) return value;
  return absl::NotFoundError(absl::StrCat(NameOf(key), " is missing"));
}

absl::StatusOr<int64_t> Parameters::Integer(std::string_view key,
                                            std::optional<int64_t> absent) const {
  if (absent && !Has(key)) return *absent;
  ASSIGN_OR_RETURN(const Json* value, Need(key));
  int64_t integer = 0;
  if (AsInteger(*value, integer)) return integer;
  return Fault(NameOf(key), " is not an integer, or too large");
}

absl::StatusOr<double> Parameters::Real(std::string_view key, std::optional<double> absent) const {
  if (absent && !Has(key)) return *absent;
  ASSIGN_OR_RETURN(const Json* value, Need(key));
  if (value->is_number()) return value->get<double>();
  return Fault(NameOf(key), " is not a number");
}

absl::StatusOr<bool> Parameters::Boolean(std::string_view key, std::optional<bool> absent) const {
  if (absent && !Has(key)) return *absent;
  ASSIGN_OR_RETURN(const Json* value, Need(key));
  if (value->is_boolean()) return value->get<bool>();
  return Fault(NameOf(key), " is not a boolean");
}

absl::StatusOr<std::string_view> Parameters::String(std::string_view key,
                                                    std::optional<std::string_view> absent) const {
  if (absent && !Has(key)) return *absent;
  ASSIGN_OR_RETURN(const Json* value, Need(key));
  if (value->is_string()) return value->get_ref<const std::string&>();
  return Fault(NameOf(key), " is not a string");
}

absl::StatusOr<std::vector<int64_t>> Parameters::Integers(std::string_view key,
                                                          size_t count) const {
  ASSIGN_OR_RETURN(const Json* value, Need(key));
  int64_t integer = 0;
  if (AsInteger(*value, integer)) return std::vector<int64_t>(count, integer);
  if (!value->is_array() || value->size() != count) {
    return Fault(NameOf(key), " is not a list of ", count, " numbers");
  }
  std::vector<int64_t> integers;
  integers.reserve(count);
  for (const Json& element : *value) {
    if (!AsInteger(element, integer)) {
      return Fault(NameOf(key), " holds something else than integers");
    }
    integers.push_back(integer);
  }
  return integers;
}

absl::StatusOr<int32_t> Parameters::Count(std::string_view key, int64_t most,
                                          std::optional<int64_t> absent) const {
  ASSIGN_OR_RETURN(const int64_t value, Integer(key, absent));
  if (value >= 1 && value <= most && value <= std::numeric_limits<int32_t>::max()) {
    return static_cast<int32_t>(value);
  }
  return Fault(NameOf(key), " is ", value, ", not in 1 to ", most);
}

}  // namespace pdserve::engine
