// A file mapped for reading; owned by the checkpoint, immutable, any thread. The size is taken
// once, from the open file; a file that was cut while it was being mapped is refused, and
// Unchanged() tells whether what was read can be trusted. Bytes that another process cuts off
// later, under our eyes, end in SIGBUS as with every mapping: replace a model by renaming a new
// file over it, never in place.
#ifndef PDSERVE_ENGINE_MAPPED_FILE_H_
#define PDSERVE_ENGINE_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pdserve::engine {

class MappedFile {
 public:
  /// NotFound, PermissionDenied or InvalidArgument (a folder, an empty file) with the reason.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  /// Fails when size or time of change differ from those at the opening.
  absl::Status Unchanged() const;

 private:
  struct Stamp {
    int64_t size_bytes = 0;
    int64_t seconds = 0;
    int64_t nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  explicit MappedFile(int descriptor) : descriptor_(descriptor) {}
  absl::StatusOr<Stamp> ReadStamp() const;

  const int descriptor_;
  Stamp stamp_;
  std::span<const std::byte> bytes_;
};

}  // namespace pdserve::engine

#endif  // PDSERVE_ENGINE_MAPPED_FILE_H_
