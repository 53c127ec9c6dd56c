#include "engine/gguf.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace pdserve::engine {
namespace {

constexpr uint64_t kMaxNameBytes = 64;    // of a tensor, by the format
constexpr uint64_t kMaxKeyBytes = 65535;  // of a metadata key, by the format
constexpr uint64_t kMinPairBytes = 8 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;
constexpr std::string_view kAlignmentKey = "general.alignment";

template <typename... Parts>
absl::Status Fault(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// A name from the file, as it may stand in an error message: short and printable.
std::string Quoted(std::string_view name) {
  std::string text = "'";
  for (const char c : name.substr(0, kMaxNameBytes)) text += c >= 0x20 && c < 0x7f ? c : '?';
  return text + (name.size() > kMaxNameBytes ? "...'" : "'");
}

// Bytes of one element; 0 for strings, arrays and what does not exist.
uint32_t ElementBytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    default:
      return 0;
  }
}

template <typename T>
T LoadAt(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

// Reads forward over the bytes; never past their end.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  size_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  template <typename T>
  bool Read(T& value) {
    if (left() < sizeof(T)) return false;
    value = LoadAt<T>(bytes_.data() + position_);
    position_ += sizeof(T);
    return true;
  }
  bool ReadString(std::string_view& text) {
    uint64_t length = 0;
    if (!Read(length) || length > left()) return false;
    text = {reinterpret_cast<const char*>(bytes_.data()) + position_, size_t(length)};
    position_ += length;
    return true;
  }
  bool Skip(uint64_t count) {
    if (count > left()) return false;
    position_ += count;
    return true;
  }

 private:
  const std::span<const std::byte> bytes_;
  size_t position_ = 0;
};

std::vector<std::string_view> SplitStrings(const GgufValue& value) {
  std::vector<std::string_view> strings;
  strings.reserve(value.count);  // each takes 8 bytes of the file or more
  Cursor cursor(value.bytes);
  for (std::string_view text; strings.size() < value.count && cursor.ReadString(text);) {
    strings.push_back(text);
  }
  return strings;
}

// False: not an integer, or above the largest int64.
bool IntegerAt(GgufType type, const std::byte* at, int64_t& value) {
  switch (type) {
    case GgufType::kU8:
      value = LoadAt<uint8_t>(at);
      return true;
    case GgufType::kI8:
      value = LoadAt<int8_t>(at);  // NOLINT(bugprone-signed-char-misuse): a number, not text
      return true;
    case GgufType::kU16:
      value = LoadAt<uint16_t>(at);
      return true;
    case GgufType::kI16:
      value = LoadAt<int16_t>(at);
      return true;
    case GgufType::kU32:
      value = LoadAt<uint32_t>(at);
      return true;
    case GgufType::kI32:
      value = LoadAt<int32_t>(at);
      return true;
    case GgufType::kU64:
    case GgufType::kI64:
      value = LoadAt<int64_t>(at);
      return type == GgufType::kI64 || value >= 0;
    default:
      return false;
  }
}

}  // namespace

/// Fills a Gguf from bytes, front to back.
class GgufReader {
 public:
  explicit GgufReader(std::span<const std::byte> bytes) : bytes_(bytes), cursor_(bytes) {}

  absl::StatusOr<Gguf> Read() {
    RETURN_IF_ERROR(ReadHeader());
    for (uint64_t i = 0; i < num_pairs_; ++i) RETURN_IF_ERROR(ReadPair());
    for (uint64_t i = 0; i < num_tensors_; ++i) RETURN_IF_ERROR(ReadTensor());
    RETURN_IF_ERROR(PlaceTensors());
    return std::move(gguf_);
  }

 private:
  absl::Status ReadHeader();
  absl::Status ReadPair();
  absl::Status ReadValue(std::string_view key, GgufValue& value);
  absl::Status SkipElements(std::string_view key, const GgufValue& value);
  absl::Status ReadTensor();
  absl::Status ReadShape(Tensor& tensor, uint64_t& size_bytes);
  absl::Status PlaceTensors();
  absl::StatusOr<uint64_t> Alignment() const;

  // Where a tensor lies, counted from the start of the data.
  struct Extent {
    uint64_t offset;
    uint64_t size_bytes;
    size_t tensor_idx;
  };

  const std::span<const std::byte> bytes_;
  Cursor cursor_;
  uint64_t num_tensors_ = 0;
  uint64_t num_pairs_ = 0;
  std::vector<Extent> extents_;
  Gguf gguf_;
};

absl::Status GgufReader::ReadHeader() {
  uint32_t magic = 0;
  uint32_t version = 0;
  if (!cursor_.Read(magic)) return Fault("the file is too short for GGUF's magic");
  if (std::memcmp(&magic, "GGUF", 4) != 0) return Fault("not a GGUF file: the magic is wrong");
  if (!cursor_.Read(version)) return Fault("the file ends inside the header");
  if (version != 0 && (version & 0xffff) == 0) return Fault("big-endian GGUF is not supported");
  if (version != 2 && version != 3) {
    return Fault("GGUF version ", version, " is not supported (2 and 3 are)");
  }
  if (!cursor_.Read(num_tensors_) || !cursor_.Read(num_pairs_)) {
    return Fault("the file ends inside the header");
  }
  if (num_pairs_ > cursor_.left() / kMinPairBytes) {
    return Fault("the header counts ", num_pairs_, " metadata pairs, more than the file can hold");
  }
  if (num_tensors_ > cursor_.left() / kMinTensorBytes) {
    return Fault("the header counts ", num_tensors_, " tensors, more than the file can hold");
  }
  return absl::OkStatus();
}

absl::Status GgufReader::ReadPair() {
  std::string_view key;
  if (!cursor_.ReadString(key)) {
    return Fault("the key of a metadata pair at byte ", cursor_.position(),
                 " reaches past the end of the file");
  }
  if (key.empty() || key.size() > kMaxKeyBytes) {
    return Fault("a metadata key has ", key.size(), " bytes (1 to ", kMaxKeyBytes, " are allowed)");
  }
  GgufValue value;
  RETURN_IF_ERROR(ReadValue(key, value));
  if (!gguf_.values_.emplace(key, value).second) {
    return Fault("metadata key ", Quoted(key), " appears twice");
  }
  return absl::OkStatus();
}

absl::Status GgufReader::ReadValue(std::string_view key, GgufValue& value) {
  uint32_t type = 0;
  if (!cursor_.Read(type)) return Fault("the file ends inside metadata ", Quoted(key));
  if (type == uint32_t(GgufType::kArray)) {
    value.is_array = true;
    if (!cursor_.Read(type) || !cursor_.Read(value.count)) {
      return Fault("the file ends inside metadata ", Quoted(key));
    }
    if (type == uint32_t(GgufType::kArray)) {
      return Fault("metadata ", Quoted(key), " is an array of arrays, which is not supported");
    }
  }
  if (type > uint32_t(GgufType::kF64)) {
    return Fault("metadata ", Quoted(key), " has the unknown value type ", type);
  }
  value.type = GgufType{type};
  const size_t start = cursor_.position();
  RETURN_IF_ERROR(SkipElements(key, value));
  value.bytes = bytes_.subspan(start, cursor_.position() - start);
  return absl::OkStatus();
}

absl::Status GgufReader::SkipElements(std::string_view key, const GgufValue& value) {
  const bool is_string = value.type == GgufType::kString;
  const uint64_t least_bytes = is_string ? sizeof(uint64_t) : ElementBytes(value.type);
  if (value.count > cursor_.left() / least_bytes) {
    return Fault("metadata ", Quoted(key), " of ", value.count,
                 " elements reaches past the end of the file");
  }
  if (!is_string) {
    cursor_.Skip(value.count * least_bytes);
    return absl::OkStatus();
  }
  for (uint64_t i = 0; i < value.count; ++i) {
    std::string_view text;
    if (!cursor_.ReadString(text)) {
      return Fault("a string of metadata ", Quoted(key), " reaches past the end of the file");
    }
  }
  return absl::OkStatus();
}

absl::Status GgufReader::ReadTensor() {
  std::string_view name;
  if (!cursor_.ReadString(name)) {
    return Fault("the name of tensor ", gguf_.tensors_.size(), " reaches past the end of the file");
  }
  if (name.empty() || name.size() > kMaxNameBytes) {
    return Fault("the name of tensor ", gguf_.tensors_.size(), " has ", name.size(),
                 " bytes (1 to ", kMaxNameBytes, " are allowed)");
  }
  Tensor tensor;
  tensor.name = name;
  Extent extent{0, 0, gguf_.tensors_.size()};
  RETURN_IF_ERROR(ReadShape(tensor, extent.size_bytes));
  if (!cursor_.Read(extent.offset)) {
    return Fault("the file ends inside the description of tensor ", Quoted(tensor.name));
  }
  if (!gguf_.tensor_idx_.emplace(name, extent.tensor_idx).second) {
    return Fault("tensor ", Quoted(name), " appears twice");
  }
  gguf_.tensors_.push_back(std::move(tensor));
  extents_.push_back(extent);
  return absl::OkStatus();
}

absl::Status GgufReader::ReadShape(Tensor& tensor, uint64_t& size_bytes) {
  const std::string name = Quoted(tensor.name);
  if (!cursor_.Read(tensor.num_dims)) return Fault("the file ends inside tensor ", name);
  if (tensor.num_dims < 1 || tensor.num_dims > tensor.dims.size()) {
    return Fault("tensor ", name, " has ", tensor.num_dims, " dimensions (1 to 4 are allowed)");
  }
  for (uint32_t i = 0; i < tensor.num_dims; ++i) {
    if (!cursor_.Read(tensor.dims[i])) return Fault("the file ends inside tensor ", name);
    if (tensor.dims[i] == 0) return Fault("dimension ", i, " of tensor ", name, " is 0");
  }
  uint32_t type = 0;
  if (!cursor_.Read(type)) return Fault("the file ends inside tensor ", name);
  tensor.type = FindTensorType(type);
  if (tensor.type == nullptr) {
    return Fault("tensor ", name, " has the unknown or removed type ", type);
  }
  if (tensor.cols() % tensor.type->block_values != 0) {
    return Fault("rows of tensor ", name, " have ", tensor.cols(), " values, not a multiple of ",
                 View(tensor.type->name), "'s block of ", tensor.type->block_values);
  }
  size_bytes = tensor.type->block_bytes;
  const std::array<uint64_t, 4> factors = {tensor.cols() / tensor.type->block_values,
                                           tensor.dims[1], tensor.dims[2], tensor.dims[3]};
  for (const uint64_t factor : factors) {
    if (factor > bytes_.size() / size_bytes) {
      return Fault("tensor ", name, " is larger than the file");
    }
    size_bytes *= factor;
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> GgufReader::Alignment() const {
  ASSIGN_OR_RETURN(const int64_t alignment, gguf_.Integer(kAlignmentKey, 32));
  if (alignment <= 0 || (alignment & (alignment - 1)) != 0 || alignment > (1 << 30)) {
    return Fault(View(kAlignmentKey), " is ", alignment, ", not a power of two up to 2^30");
  }
  return static_cast<uint64_t>(alignment);
}

absl::Status GgufReader::PlaceTensors() {
  ASSIGN_OR_RETURN(const uint64_t alignment, Alignment());
  const uint64_t start = (cursor_.position() + alignment - 1) / alignment * alignment;
  const uint64_t data_bytes = start < bytes_.size() ? bytes_.size() - start : 0;
  std::sort(extents_.begin(), extents_.end(),
            [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  uint64_t end = 0;  // of the tensor before
  for (const Extent& extent : extents_) {
    Tensor& tensor = gguf_.tensors_[extent.tensor_idx];
    if (extent.offset % alignment != 0) {
      return Fault("the offset of tensor ", Quoted(tensor.name), " is not a multiple of ",
                   alignment);
    }
    if (extent.offset > data_bytes || extent.size_bytes > data_bytes - extent.offset) {
      return Fault("the data of tensor ", Quoted(tensor.name),
                   " reach past the end of the file (offset ", extent.offset, ", ",
                   extent.size_bytes, " bytes)");
    }
    if (extent.offset < end) {
      return Fault("the data of tensor ", Quoted(tensor.name), " overlap another tensor's");
    }
    end = extent.offset + extent.size_bytes;
    tensor.bytes = bytes_.subspan(start + extent.offset, extent.size_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<Gguf> Gguf::Parse(std::span<const std::byte> bytes) {
  return GgufReader(bytes).Read();
}

const Tensor* Gguf::FindTensor(std::string_view name) const {
  const auto found = tensor_idx_.find(name);
  return found == tensor_idx_.end() ? nullptr : &tensors_[found->second];
}

absl::StatusOr<const GgufValue*> Gguf::Find(std::string_view key, bool is_array) const {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    return absl::NotFoundError(absl::StrCat("metadata '", View(key), "' is missing"));
  }
  if (found->second.is_array != is_array) {
    return Fault("metadata '", View(key), "' must ", is_array ? "" : "not ", "be an array");
  }
  return &found->second;
}

absl::StatusOr<int64_t> Gguf::Integer(std::string_view key, std::optional<int64_t> absent) const {
  if (absent && !Has(key)) return *absent;
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key, false));
  int64_t integer = 0;
  if (IntegerAt(value->type, value->bytes.data(), integer)) return integer;
  return Fault("metadata '", View(key), "' is not an integer, or too large");
}

absl::StatusOr<double> Gguf::Real(std::string_view key, std::optional<double> absent) const {
  if (absent && !Has(key)) return *absent;
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key, false));
  if (value->type == GgufType::kF32) return double{LoadAt<float>(value->bytes.data())};
  if (value->type == GgufType::kF64) return LoadAt<double>(value->bytes.data());
  return Fault("metadata '", View(key), "' is not a floating-point number");
}

absl::StatusOr<bool> Gguf::Boolean(std::string_view key, std::optional<bool> absent) const {
  if (absent && !Has(key)) return *absent;
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key, false));
  if (value->type != GgufType::kBool) return Fault("metadata '", View(key), "' is not a boolean");
  return LoadAt<uint8_t>(value->bytes.data()) != 0;
}

absl::StatusOr<std::string_view> Gguf::String(std::string_view key,
                                              std::optional<std::string_view> absent) const {
  if (absent && !Has(key)) return *absent;
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key, false));
  if (value->type != GgufType::kString) return Fault("metadata '", View(key), "' is not a string");
  return SplitStrings(*value)[0];
}

absl::StatusOr<std::vector<std::string_view>> Gguf::Strings(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key, true));
  if (value->type == GgufType::kString) return SplitStrings(*value);
  return Fault("metadata '", View(key), "' is not an array of strings");
}

absl::StatusOr<std::vector<int64_t>> Gguf::Integers(std::string_view key) const {
  ASSIGN_OR_RETURN(const GgufValue* value, Find(key, true));
  const uint32_t width = ElementBytes(value->type);
  std::vector<int64_t> integers(width == 0 ? 0 : value->count);
  bool good = width != 0;
  for (size_t i = 0; good && i < integers.size(); ++i) {
    good = IntegerAt(value->type, value->bytes.data() + i * width, integers[i]);
  }
  if (good) return integers;
  return Fault("metadata '", View(key), "' is not an array of integers");
}

}  // namespace pdserve::engine
