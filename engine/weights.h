// A model's weights: asked for by name and shape, checked against the file, then packed once for
// the kernels into memory of their own, so that the file's mapping can go.
// Use: Plan every tensor, then Pack; the targets are filled by Pack. Loading thread only; the
// packed memory is immutable afterwards.
#ifndef PDSERVE_ENGINE_WEIGHTS_H_
#define PDSERVE_ENGINE_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/device.h"
#include "engine/gguf.h"
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

class WeightPlan {
 public:
  /// `gguf` must outlive the plan.
  explicit WeightPlan(const Gguf& gguf) : gguf_(gguf) {}

  bool Has(std::string_view name) const { return gguf_.FindTensor(name) != nullptr; }
  /// A matrix [rows][cols]. InvalidArgument: not in the file, another shape, or a type that is not
  /// read. `target` must stay where it is until Pack.
  absl::Status Matrix(const std::string& name, int64_t rows, int64_t cols, PackedMatrix* target);
  /// A vector of `size` floats, kept as float; *target gets its address in the packed memory.
  absl::Status Vector(const std::string& name, int64_t size, const float** target);

  /// InvalidArgument when the file has a tensor that was not asked for: the model would not be
  /// computed as it was meant.
  absl::Status CheckNothingLeft() const;

  /// Unpacks and packs everything on the team's threads.
  absl::StatusOr<AlignedMemory> Pack(Team& team) const;

 private:
  struct Entry {
    const GgufTensor* tensor = nullptr;
    PackedMatrix* matrix = nullptr;  // one of the two is set
    const float** vector = nullptr;
    size_t offset = 0;
  };
  struct Taken {
    const GgufTensor* tensor;
    Packing packing;
  };
  absl::StatusOr<Taken> Take(const std::string& name);
  void Add(Entry entry, size_t size_bytes);

  const Gguf& gguf_;
  std::vector<Entry> entries_;
  absl::flat_hash_set<std::string_view> taken_;
  size_t total_bytes_ = 0;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_WEIGHTS_H_
