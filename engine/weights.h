// A model's weights: asked for by name and shape, checked against the file, then packed once for
// the kernels into memory of their own, so that the file's mapping can go.
// Use: Plan every tensor, then Pack; the targets are filled by Pack. Loading thread only; the
// packed memory is immutable afterwards.
#ifndef PDSERVE_ENGINE_WEIGHTS_H_
#define PDSERVE_ENGINE_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/device.h"
#include "engine/ops.h"

namespace pdserve::engine {

/// Zeroed, 64-byte aligned memory in huge pages where the system has them.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  /// ResourceExhausted where it can't be had.
  static absl::StatusOr<AlignedMemory> Create(size_t size_bytes);
  AlignedMemory(AlignedMemory&& other) noexcept { *this = std::move(other); }
  AlignedMemory& operator=(AlignedMemory&& other) noexcept;
  ~AlignedMemory();

  std::byte* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

/// The rows of heads whose leading rows are rotated. The forward pass rotates neighbours; a file
/// may pair the first half of those rows with the second, and is then reordered as it is packed.
struct HeadRows {
  int32_t head_dim = 0;  // 0: rows stay as they are
  int32_t rotated = 0;   // leading rows of each head

  /// The row of the file that becomes `row`.
  int64_t InFile(int64_t row) const {
    const int64_t in_head = head_dim == 0 ? rotated : row % head_dim;
    if (in_head >= rotated) return row;
    return row - in_head + in_head / 2 + (in_head % 2) * (rotated / 2);
  }
};

class WeightPlan {
 public:
  /// `tensors` must outlive the plan. `own`: the architecture's rows for HfName. Names below are
  /// GGUF's; errors say what the file calls them.
  explicit WeightPlan(const TensorSet& tensors, std::span<const NameRow> own = {})
      : tensors_(tensors), own_(own) {}

  bool Has(std::string_view name) const;
  /// A matrix [rows][cols]. InvalidArgument: not in the file, another shape, or a type that is not
  /// read. `target` must stay where it is until Pack.
  absl::Status Matrix(const std::string& name, int64_t rows, int64_t cols, PackedMatrix* target,
                      HeadRows heads = {});
  /// A vector of `size` floats, kept as float; *target gets its address in the packed memory.
  absl::Status Vector(const std::string& name, int64_t size, const float** target,
                      HeadRows heads = {});
  /// A tensor that may be there and changes nothing.
  void Ignore(std::string_view name);

  /// InvalidArgument when the file has a tensor that was not asked for: the model would not be
  /// computed as it was meant.
  absl::Status CheckNothingLeft() const;

  /// Unpacks and packs everything on the team's threads.
  absl::StatusOr<AlignedMemory> Pack(Team& team) const;

 private:
  struct Entry {
    const Tensor* tensor = nullptr;
    PackedMatrix* matrix = nullptr;  // one of the two is set
    const float** vector = nullptr;
    HeadRows heads;
    size_t offset = 0;
  };
  struct Taken {
    const Tensor* tensor;
    Packing packing;
  };
  absl::StatusOr<Taken> Take(const std::string& name);
  void Add(Entry entry, size_t size_bytes);
  std::string ShapeText(uint64_t rows, uint64_t cols) const;
  static void UnpackVector(const Entry& entry, float* values);

  const TensorSet& tensors_;
  const std::span<const NameRow> own_;
  std::vector<Entry> entries_;
  absl::flat_hash_set<std::string_view> taken_;
  size_t total_bytes_ = 0;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_WEIGHTS_H_
