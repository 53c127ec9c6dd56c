// GGUF (version 2 and 3, little-endian) as a pure function of bytes: metadata and tensors as views
// into them. Every count, length, offset and product is checked against the bytes that are there
// before anything is allocated, so memory stays in proportion to the file. What Parse lets
// through: keys and tensor names are unique, each tensor's bytes lie whole inside the file,
// aligned, not shared with another, and its rows are whole blocks. Immutable; any thread. The bytes
// must outlive it.
//
//   "GGUF" | u32 version | u64 tensors | u64 pairs
//   pairs:   string key | u32 type | value            string: u64 length | bytes
//   tensors: string name | u32 dims | u64 dim.. | u32 type | u64 offset    array: u32 type | u64 n
//   | .. padding to general.alignment | tensor data, offsets counted from here
#ifndef PDSERVE_ENGINE_GGUF_H_
#define PDSERVE_ENGINE_GGUF_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/tensor.h"

namespace pdserve::engine {

enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

struct GgufValue {
  GgufType type = GgufType::kU8;  // of an array: of its elements
  bool is_array = false;
  uint64_t count = 1;                // elements
  std::span<const std::byte> bytes;  // the elements, packed; strings with their lengths
};

class Gguf {
 public:
  /// InvalidArgument says what is wrong and where.
  static absl::StatusOr<Gguf> Parse(std::span<const std::byte> bytes);

  std::span<const Tensor> tensors() const { return tensors_; }
  const Tensor* FindTensor(std::string_view name) const;  // null: none
  std::vector<Tensor> TakeTensors() { return std::move(tensors_); }
  const absl::flat_hash_map<std::string_view, GgufValue>& values() const { return values_; }
  bool Has(std::string_view key) const { return values_.contains(key); }

  /// Values by key. NotFound names a missing key, unless `absent` is given instead;
  /// InvalidArgument names a key whose value has another type (any width of integer or float is
  /// taken) or does not fit.
  absl::StatusOr<int64_t> Integer(std::string_view key, std::optional<int64_t> absent = {}) const;
  absl::StatusOr<double> Real(std::string_view key, std::optional<double> absent = {}) const;
  absl::StatusOr<bool> Boolean(std::string_view key, std::optional<bool> absent = {}) const;
  absl::StatusOr<std::string_view> String(std::string_view key,
                                          std::optional<std::string_view> absent = {}) const;
  /// Arrays; the views point into the parsed bytes.
  absl::StatusOr<std::vector<std::string_view>> Strings(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> Integers(std::string_view key) const;

 private:
  friend class GgufReader;
  absl::StatusOr<const GgufValue*> Find(std::string_view key, bool is_array) const;

  absl::flat_hash_map<std::string_view, GgufValue> values_;
  absl::flat_hash_map<std::string_view, size_t> tensor_idx_;
  std::vector<Tensor> tensors_;  // in file order
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_GGUF_H_
