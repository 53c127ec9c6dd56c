#include "engine/weights.h"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace pdserve::engine {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr int32_t kTilesInChunk = 8;  // packed by one thread at a time

template <typename... Parts>
absl::Status Fault(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Some tiles of one matrix, as a unit of parallel work.
struct Chunk {
  const Tensor* tensor;
  const PackedMatrix* matrix;
  HeadRows heads;
  int32_t first_tile;
  int32_t last_tile;
};

// One thread's buffers for a tile of rows before they are packed; rows past the matrix's end stay
// zero.
class TilePacker {
 public:
  void Pack(const Chunk& chunk) {
    for (int32_t tile = chunk.first_tile; tile < chunk.last_tile; ++tile) PackTile(chunk, tile);
  }

 private:
  void PackTile(const Chunk& chunk, int32_t tile) {
    const PackedMatrix& matrix = *chunk.matrix;
    const TensorType& type = *chunk.tensor->type;
    const size_t row_bytes = size_t(matrix.cols) / type.block_values * type.block_bytes;
    const int32_t first_row = tile * kTileRows;
    const int32_t rows = std::min(kTileRows, matrix.rows - first_row);
    const auto source = [&](int32_t row) {
      const auto in_file = static_cast<size_t>(chunk.heads.InFile(first_row + row));
      return chunk.tensor->bytes.data() + in_file * row_bytes;
    };
    std::byte* out = matrix.data + size_t(tile) * PackedTileBytes(matrix.packing, matrix.cols);
    if (matrix.packing == Packing::kU4 || matrix.packing == Packing::kU8) {
      const size_t blocks = size_t(matrix.cols) / kBlockCols;
      q_.assign(size_t(kTileRows) * matrix.cols, 0);
      scale_.assign(kTileRows * blocks, 0);
      minimum_.assign(kTileRows * blocks, 0);
      for (int32_t row = 0; row < rows; ++row) {
        UnpackQuantisedRow(type, source(row), matrix.cols,
                           {q_.data() + size_t(row) * matrix.cols, scale_.data() + row * blocks,
                            minimum_.data() + row * blocks});
      }
      PackQuantisedTile(matrix.packing, matrix.cols, {q_.data(), scale_.data(), minimum_.data()},
                        out);
      return;
    }
    values_.assign(size_t(kTileRows) * matrix.cols, 0);
    for (int32_t row = 0; row < rows; ++row) {
      UnpackFloatRow(type, source(row), matrix.cols, values_.data() + size_t(row) * matrix.cols);
    }
    PackFloatTile(matrix.packing, matrix.cols, values_.data(), out);
  }

  std::vector<uint8_t> q_;      // [kTileRows][cols]
  std::vector<float> scale_;    // [kTileRows][cols / kBlockCols]
  std::vector<float> minimum_;  // [kTileRows][cols / kBlockCols]
  std::vector<float> values_;   // [kTileRows][cols]
};

}  // namespace

absl::StatusOr<AlignedMemory> AlignedMemory::Create(size_t size_bytes) {
  AlignedMemory memory;
  memory.size_bytes_ = (std::max<size_t>(size_bytes, 1) + kHugePage - 1) / kHugePage * kHugePage;
  void* base =
      mmap(nullptr, memory.size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", memory.size_bytes_, " bytes of weights"));
  }
  memory.data_ = static_cast<std::byte*>(base);
  madvise(base, memory.size_bytes_, MADV_HUGEPAGE);  // a wish: small pages work as well
  return memory;
}

AlignedMemory& AlignedMemory::operator=(AlignedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

AlignedMemory::~AlignedMemory() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

bool WeightPlan::Has(std::string_view name) const {
  return tensors_.Find(tensors_.NameInFile(name, own_)) != nullptr;
}

void WeightPlan::Ignore(std::string_view name) {
  const Tensor* tensor = tensors_.Find(tensors_.NameInFile(name, own_));
  if (tensor != nullptr) taken_.insert(tensor->name);
}

absl::StatusOr<WeightPlan::Taken> WeightPlan::Take(const std::string& name) {
  const std::string in_file = tensors_.NameInFile(name, own_);
  const Tensor* tensor = tensors_.Find(in_file);
  if (tensor == nullptr) return Fault("tensor '", in_file, "' is missing");
  const TensorType& type = *tensor->type;
  if (!type.packing) {
    return Fault("tensor '", in_file, "' has the type ",
                 absl::string_view(type.name.data(), type.name.size()), ", which is not supported");
  }
  taken_.insert(tensor->name);
  return Taken{tensor, *type.packing};
}

void WeightPlan::Add(Entry entry, size_t size_bytes) {
  entry.offset = total_bytes_;
  total_bytes_ += (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
  entries_.push_back(entry);
}

// In the order in which the file's format writes a shape.
std::string WeightPlan::ShapeText(uint64_t rows, uint64_t cols) const {
  if (tensors_.convention() == Convention::kGguf) std::swap(rows, cols);
  return absl::StrCat("[", rows, ", ", cols, "]");
}

absl::Status WeightPlan::Matrix(const std::string& name, int64_t rows, int64_t cols,
                                PackedMatrix* target, HeadRows heads) {
  ASSIGN_OR_RETURN(const Taken taken, Take(name));
  const Tensor* tensor = taken.tensor;
  if (tensor->num_dims > 2) {
    return Fault("tensor '", tensor->name, "' has ", tensor->num_dims, " dimensions, not two");
  }
  if (rows < 1 || cols < 1 || rows > std::numeric_limits<int32_t>::max() - kTileRows ||
      cols > std::numeric_limits<int32_t>::max() || tensor->rows() != uint64_t(rows) ||
      tensor->cols() != uint64_t(cols)) {
    return Fault("tensor '", tensor->name, "' has the shape ",
                 ShapeText(tensor->rows(), tensor->cols()), ", not ", ShapeText(rows, cols));
  }
  *target = {taken.packing, int32_t(rows), int32_t(cols), nullptr};
  Add({tensor, target, nullptr, heads}, PackedBytes(target->packing, target->rows, target->cols));
  return absl::OkStatus();
}

absl::Status WeightPlan::Vector(const std::string& name, int64_t size, const float** target,
                                HeadRows heads) {
  ASSIGN_OR_RETURN(const Taken taken, Take(name));
  const Tensor* tensor = taken.tensor;
  if (tensor->rows() != 1 || tensor->cols() != uint64_t(size)) {
    return Fault("tensor '", tensor->name, "' has ", tensor->rows(), " rows of ", tensor->cols(),
                 " values, not one of ", size);
  }
  if (tensor->type->block_values != 1) {
    return Fault("tensor '", tensor->name,
                 "' is a vector of a quantised type, which is not supported");
  }
  Add({tensor, nullptr, target, heads}, size_t(size) * sizeof(float));
  return absl::OkStatus();
}

absl::Status WeightPlan::CheckNothingLeft() const {
  for (const Tensor& tensor : tensors_.tensors()) {
    if (taken_.contains(tensor.name)) continue;
    return Fault("tensor '", Printable(tensor.name), "' is not known to this architecture");
  }
  return absl::OkStatus();
}

void WeightPlan::UnpackVector(const Entry& entry, float* values) {
  const Tensor& tensor = *entry.tensor;
  const auto size = static_cast<int32_t>(tensor.cols());
  UnpackFloatRow(*tensor.type, tensor.bytes.data(), size, values);
  if (entry.heads.head_dim == 0) return;
  const std::vector<float> in_file(values, values + size);
  for (int32_t i = 0; i < size; ++i) values[i] = in_file[entry.heads.InFile(i)];
}

absl::StatusOr<AlignedMemory> WeightPlan::Pack(Team& team) const {
  ASSIGN_OR_RETURN(AlignedMemory memory, AlignedMemory::Create(total_bytes_));
  std::vector<Chunk> chunks;
  for (const Entry& entry : entries_) {
    std::byte* at = memory.data() + entry.offset;
    if (entry.vector != nullptr) {
      auto* values = reinterpret_cast<float*>(at);
      UnpackVector(entry, values);
      *entry.vector = values;
      continue;
    }
    entry.matrix->data = at;
    for (int32_t tile = 0; tile < entry.matrix->tiles(); tile += kTilesInChunk) {
      const int32_t last = std::min(tile + kTilesInChunk, entry.matrix->tiles());
      chunks.push_back({entry.tensor, entry.matrix, entry.heads, tile, last});
    }
  }
  std::vector<TilePacker> packers(team.threads());
  team.Run(static_cast<int32_t>(chunks.size()), 1, [&](int32_t thread, Share some) {
    for (int32_t i = some.first; i < some.last; ++i) packers[thread].Pack(chunks[i]);
  });
  return memory;
}

}  // namespace pdserve::engine
