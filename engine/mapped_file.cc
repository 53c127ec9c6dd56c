#include "engine/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/status_macros.h"

namespace pdserve::engine {

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return absl::ErrnoToStatus(errno, "cannot be opened");
  std::unique_ptr<MappedFile> file(new MappedFile(descriptor));
  ASSIGN_OR_RETURN(file->stamp_, file->ReadStamp());
  const auto size = static_cast<size_t>(file->stamp_.size_bytes);
  if (size == 0) return absl::InvalidArgumentError("the file is empty");
  void* base = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (base == MAP_FAILED) return absl::ErrnoToStatus(errno, "cannot be mapped");
  file->bytes_ = {static_cast<const std::byte*>(base), size};
  RETURN_IF_ERROR(file->Unchanged());
  madvise(base, size, MADV_WILLNEED);
  return file;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  close(descriptor_);
}

absl::StatusOr<MappedFile::Stamp> MappedFile::ReadStamp() const {
  struct stat status;
  if (fstat(descriptor_, &status) != 0) return absl::ErrnoToStatus(errno, "cannot be examined");
  if (!S_ISREG(status.st_mode)) return absl::InvalidArgumentError("is not a regular file");
  return Stamp{status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
}

absl::Status MappedFile::Unchanged() const {
  ASSIGN_OR_RETURN(const Stamp now, ReadStamp());
  if (now == stamp_) return absl::OkStatus();
  return absl::InvalidArgumentError("the file was changed while it was being read");
}

}  // namespace pdserve::engine
