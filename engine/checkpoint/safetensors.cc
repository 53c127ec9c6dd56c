#include "engine/checkpoint/safetensors.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace pdserve::engine {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // by the format
constexpr size_t kMaxDims = 16;
constexpr std::string_view kMetadata = "__metadata__";

template <typename... Parts>
absl::Status Fault(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Of GGUF's types these three are read; the others' numbers stand for nothing.
enum : uint32_t { kF32 = 0, kF16 = 1, kBF16 = 30, kNone = ~0U };
constexpr TensorType kUnread[] = {
    {kNone, "F64", 1, 8, {}},     {kNone, "I64", 1, 8, {}},     {kNone, "I32", 1, 4, {}},
    {kNone, "I16", 1, 2, {}},     {kNone, "I8", 1, 1, {}},      {kNone, "U64", 1, 8, {}},
    {kNone, "U32", 1, 4, {}},     {kNone, "U16", 1, 2, {}},     {kNone, "U8", 1, 1, {}},
    {kNone, "BOOL", 1, 1, {}},    {kNone, "C64", 1, 8, {}},     {kNone, "F8_E4M3", 1, 1, {}},
    {kNone, "F8_E5M2", 1, 1, {}}, {kNone, "F8_E8M0", 1, 1, {}}, {kNone, "F4", 2, 1, {}},
    {kNone, "F6_E2M3", 4, 3, {}}, {kNone, "F6_E3M2", 4, 3, {}},
};

const TensorType* FindType(std::string_view dtype) {
  if (dtype == "F32") return FindTensorType(kF32);
  if (dtype == "F16") return FindTensorType(kF16);
  if (dtype == "BF16") return FindTensorType(kBF16);
  const auto* found = std::find_if(std::begin(kUnread), std::end(kUnread),
                                   [&](const TensorType& type) { return type.name == dtype; });
  return found == std::end(kUnread) ? nullptr : found;
}

// Receives the header's JSON value by value; false stops the parser, and fault() says why.
class HeaderReader {
 public:
  explicit HeaderReader(std::span<const std::byte> data) : data_(data) {}

  absl::Status fault() const { return fault_; }
  absl::StatusOr<std::vector<Tensor>> Finish();

  // What nlohmann's parser calls; its names.
  using Json = nlohmann::json;
  bool null() { return Unexpected(); }
  bool boolean(bool) { return Unexpected(); }
  bool number_integer(Json::number_integer_t) { return Number(false, 0); }
  bool number_unsigned(Json::number_unsigned_t value) { return Number(true, value); }
  bool number_float(Json::number_float_t, const std::string&) { return Number(false, 0); }
  bool string(std::string& text);
  bool binary(Json::binary_t&) { return Unexpected(); }
  bool start_object(size_t);
  bool key(std::string& text);
  bool end_object();
  bool start_array(size_t);
  bool end_array();
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    return Fail(Fault("the header is not JSON at byte ", position));
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kEntry, kArray };
  enum class Field { kNone, kType, kShape, kOffsets };

  bool Fail(absl::Status fault) {
    fault_ = std::move(fault);
    return false;
  }
  bool Unexpected();
  bool Number(bool whole, uint64_t value);
  bool EndEntry();
  absl::Status Shape(Tensor& tensor, uint64_t& size_bytes) const;
  std::string Quoted() const { return absl::StrCat("tensor '", Printable(name_), "'"); }

  // Where a tensor lies in the data.
  struct Extent {
    uint64_t begin;
    size_t tensor_idx;
  };

  const std::span<const std::byte> data_;
  absl::Status fault_;
  Place place_ = Place::kOutside;
  std::string name_;  // of the entry that is being read
  Field field_ = Field::kNone;
  const TensorType* type_ = nullptr;
  bool has_shape_ = false;
  std::vector<uint64_t> shape_;
  std::vector<uint64_t> offsets_;
  std::vector<Tensor> tensors_;
  std::vector<Extent> extents_;
  absl::flat_hash_set<std::string> names_;
};

bool HeaderReader::Unexpected() {
  switch (place_) {
    case Place::kOutside:
    case Place::kTop:
      return Fail(Fault("the header is not an object of objects"));
    case Place::kMetadata:
      return Fail(Fault("the header's ", absl::string_view(kMetadata.data(), kMetadata.size()),
                        " holds something else than texts"));
    default:
      return Fail(Fault("the header's entry of ", Quoted(), " is malformed"));
  }
}

bool HeaderReader::start_object(size_t) {
  if (place_ == Place::kOutside) {
    place_ = Place::kTop;
    return true;
  }
  if (place_ != Place::kTop) return Unexpected();
  place_ = name_ == kMetadata ? Place::kMetadata : Place::kEntry;
  field_ = Field::kNone;
  type_ = nullptr;
  has_shape_ = false;
  shape_.clear();
  offsets_.clear();
  return true;
}

bool HeaderReader::key(std::string& text) {
  if (place_ == Place::kTop) {
    name_ = std::move(text);
    if (names_.insert(name_).second) return true;
    return Fail(Fault(Quoted(), " appears twice"));
  }
  if (place_ == Place::kMetadata) return true;
  const bool again = (text == "dtype" && type_ != nullptr) || (text == "shape" && has_shape_) ||
                     (text == "data_offsets" && !offsets_.empty());
  field_ = text == "dtype"          ? Field::kType
           : text == "shape"        ? Field::kShape
           : text == "data_offsets" ? Field::kOffsets
                                    : Field::kNone;
  return again || field_ == Field::kNone ? Unexpected() : true;
}

bool HeaderReader::string(std::string& text) {
  if (place_ == Place::kMetadata) return true;
  if (place_ != Place::kEntry || field_ != Field::kType) return Unexpected();
  type_ = FindType(text);
  if (type_ != nullptr) return true;
  return Fail(Fault(Quoted(), " has the unknown dtype '", Printable(text), "'"));
}

bool HeaderReader::start_array(size_t) {
  if (place_ != Place::kEntry || (field_ != Field::kShape && field_ != Field::kOffsets)) {
    return Unexpected();
  }
  place_ = Place::kArray;
  return true;
}

bool HeaderReader::Number(bool whole, uint64_t value) {
  if (place_ != Place::kArray) return Unexpected();
  const bool is_shape = field_ == Field::kShape;
  if (!whole) {
    return Fail(Fault(is_shape ? "the shape" : "data_offsets", " of ", Quoted(),
                      " holds a number that is negative, not whole or too large"));
  }
  std::vector<uint64_t>& numbers = is_shape ? shape_ : offsets_;
  if (numbers.size() >= (is_shape ? kMaxDims : 2)) return Unexpected();
  numbers.push_back(value);
  return true;
}

bool HeaderReader::end_array() {
  place_ = Place::kEntry;
  if (field_ == Field::kShape) has_shape_ = true;
  return field_ != Field::kOffsets || offsets_.size() == 2 || Unexpected();
}

bool HeaderReader::end_object() {
  if (place_ == Place::kTop) {
    place_ = Place::kOutside;
    return true;
  }
  const bool is_entry = place_ == Place::kEntry;
  place_ = Place::kTop;
  return !is_entry || EndEntry();
}

absl::Status HeaderReader::Shape(Tensor& tensor, uint64_t& size_bytes) const {
  tensor.num_dims = std::max<uint32_t>(1, static_cast<uint32_t>(shape_.size()));
  uint64_t values = 1;
  for (size_t i = 0; i < shape_.size(); ++i) {
    const uint64_t dim = shape_[shape_.size() - 1 - i];
    if (dim == 0) return Fault("a dimension of ", Quoted(), " is 0");
    // Two values or more to a byte are the densest type there is.
    if (dim > data_.size() * 2 / values) return Fault(Quoted(), " is larger than the file");
    values *= dim;
    tensor.dims[std::min(i, tensor.dims.size() - 1)] *= dim;
  }
  if (values % type_->block_values != 0) {
    return Fault(Quoted(), " has ", values, " values, which are no whole bytes");
  }
  size_bytes = values / type_->block_values * type_->block_bytes;
  return absl::OkStatus();
}

bool HeaderReader::EndEntry() {
  if (type_ == nullptr) return Fail(Fault(Quoted(), " has no dtype"));
  if (!has_shape_) return Fail(Fault(Quoted(), " has no shape"));
  if (offsets_.empty()) return Fail(Fault(Quoted(), " has no data_offsets"));
  Tensor tensor;
  tensor.name = name_;
  tensor.type = type_;
  uint64_t size_bytes = 0;
  if (absl::Status fault = Shape(tensor, size_bytes); !fault.ok()) return Fail(std::move(fault));
  const uint64_t begin = offsets_[0];
  const uint64_t end = offsets_[1];
  if (begin > end) return Fail(Fault(Quoted(), " ends at byte ", end, ", before its begin"));
  if (end > data_.size()) {
    return Fail(Fault("the data of ", Quoted(), " reach past the end of the file (to byte ", end,
                      " of ", data_.size(), ")"));
  }
  if (end - begin != size_bytes) {
    return Fail(
        Fault(Quoted(), " has ", end - begin, " bytes; its shape and dtype make ", size_bytes));
  }
  tensor.bytes = data_.subspan(begin, size_bytes);
  extents_.push_back({begin, tensors_.size()});
  tensors_.push_back(std::move(tensor));
  return true;
}

absl::StatusOr<std::vector<Tensor>> HeaderReader::Finish() {
  std::sort(extents_.begin(), extents_.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  uint64_t end = 0;  // of the tensor before
  for (const Extent& extent : extents_) {
    const Tensor& tensor = tensors_[extent.tensor_idx];
    if (extent.begin < end) {
      return Fault("the data of tensor '", Printable(tensor.name), "' overlap another tensor's");
    }
    end = extent.begin + tensor.bytes.size();
  }
  return std::move(tensors_);
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> ParseSafetensors(std::span<const std::byte> bytes) {
  uint64_t length = 0;
  if (bytes.size() < sizeof(length)) return Fault("the file is too short for a header");
  std::memcpy(&length, bytes.data(), sizeof(length));
  const auto rest = bytes.subspan(sizeof(length));
  if (length > rest.size()) {
    return Fault("the header of ", length, " bytes reaches past the end of the file");
  }
  if (length > kMaxHeaderBytes) return Fault("a header of ", length, " bytes is over the limit");
  const auto* text = reinterpret_cast<const char*>(rest.data());
  HeaderReader reader(rest.subspan(length));
  if (!nlohmann::json::sax_parse(text, text + length, &reader)) return reader.fault();
  return reader.Finish();
}

}  // namespace pdserve::engine
