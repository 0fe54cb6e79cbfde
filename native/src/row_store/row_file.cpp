#include "row_store/row_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cerrno>

#include "dio_alignment.h"
#include "row_store/memory.h"

namespace sparkserve {
namespace {

// Buffers lie on page boundaries; no file system is known to ask for more.
constexpr uint32_t kLargestAlignment = 4096;

}  // namespace

RowFile::~RowFile() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

Status RowFile::Open(const char* path, uint64_t probe_offset_bytes) noexcept {
  // O_NONBLOCK: a named pipe must be refused, not waited for.
  fd_ = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    return SystemFailure(errno, -1, "open");
  }
  if (fstat(fd_, &opened_) != 0) {
    return SystemFailure(errno, -1, "fstat");
  }
  if (S_ISDIR(opened_.st_mode)) {
    return SystemFailure(EISDIR, -1, "open");
  }
  if (!S_ISREG(opened_.st_mode)) {
    return Failure(EINVAL, -1, "not a regular file");
  }
  // Or a read through the page cache may answer "try again" instead of waiting for the disk.
  if (fcntl(fd_, F_SETFL, 0) != 0) {
    return SystemFailure(errno, -1, "fcntl");
  }
  return TryDirect(path, probe_offset_bytes);
}

Status RowFile::TryDirect(const char* path, uint64_t probe_offset_bytes) noexcept {
  spn_dio_alignment asked{sizeof asked, 0, 0, 0};
  const bool may =
      GetDioAlignment(fd_, path, asked) == 0 && std::has_single_bit(asked.offset_bytes) &&
      asked.offset_bytes <= kLargestAlignment && asked.memory_bytes <= kLargestAlignment;
  if (!may || fcntl(fd_, F_SETFL, O_DIRECT) != 0) {
    return {};
  }
  // A slot's buffers start at multiples of the length unit, so it must satisfy memory too.
  const uint32_t unit = std::bit_ceil(asked.offset_bytes > asked.memory_bytes ? asked.offset_bytes
                                                                              : asked.memory_bytes);
  Memory probe;
  if (Status status = Memory::Allocate(kLargestAlignment, probe); !status.ok()) {
    return status;
  }
  const uint64_t at = probe_offset_bytes & ~static_cast<uint64_t>(unit - 1);
  if (pread(fd_, probe.data(), unit, static_cast<off_t>(at)) < 0) {
    if (errno != EINVAL && errno != EOPNOTSUPP) {
      return SystemFailure(errno, static_cast<int64_t>(at), "read");
    }
    fcntl(fd_, F_SETFL, 0);
    return {};
  }
  direct_ = true;
  alignment_bytes_ = unit;
  return {};
}

Status RowFile::Unchanged() const noexcept {
  struct stat now {};
  if (fstat(fd_, &now) != 0) {
    return SystemFailure(errno, -1, "fstat");
  }
  if (now.st_size != opened_.st_size) {
    return Failure(ESTALE, now.st_size < opened_.st_size ? now.st_size : opened_.st_size,
                   "the file has %lld bytes, %lld when it was opened",
                   static_cast<long long>(now.st_size), static_cast<long long>(opened_.st_size));
  }
  if (now.st_mtim.tv_sec != opened_.st_mtim.tv_sec ||
      now.st_mtim.tv_nsec != opened_.st_mtim.tv_nsec) {
    return Failure(ESTALE, -1, "the file was written to since it was opened");
  }
  return {};
}

}  // namespace sparkserve
