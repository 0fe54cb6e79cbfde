#include "dio_alignment.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "error.h"
#include "sparkserve_native/c_api.h"

namespace sparkserve {
namespace {

// The kernel's own structure: the C library's headers are often older than the kernel and lack
// the direct-I/O fields. Layout as in the kernel's uapi/linux/stat.h, which never moves a field.
struct KernelStatx {
  uint32_t mask;
  uint32_t block_size;
  uint64_t attributes;
  uint32_t links;
  uint32_t user;
  uint32_t group;
  uint16_t mode;
  uint16_t spare0;
  uint64_t inode;
  uint64_t size_bytes;
  uint64_t blocks;
  uint64_t attributes_mask;
  uint64_t times[8];
  uint32_t device_numbers[4];
  uint64_t mount;
  uint32_t dio_memory_align;
  uint32_t dio_offset_align;
  uint64_t spare3[12];
};
static_assert(sizeof(KernelStatx) == 256);
static_assert(offsetof(KernelStatx, mode) == 0x1c);
static_assert(offsetof(KernelStatx, mount) == 0x90);
static_assert(offsetof(KernelStatx, dio_memory_align) == 0x98);

constexpr uint32_t kMaskType = 0x0001;
constexpr uint32_t kMaskDioAlign = 0x2000;
constexpr uint32_t kTypeBits = 0170000;
constexpr uint32_t kTypeDirectory = 0040000;
constexpr uint32_t kAssumedBytes = 4096;

// `name` below the open `folder`, or the open file itself where it is "" and flags allow that.
int Query(int folder, const char* name, int flags, const char* path,
          spn_dio_alignment& out) noexcept {
  KernelStatx found{};
  if (syscall(SYS_statx, folder, name, flags, kMaskType | kMaskDioAlign, &found) != 0) {
    return FailWithErrno(errno, path);
  }
  if ((found.mode & kTypeBits) == kTypeDirectory) {
    return FailWithErrno(EISDIR, path);
  }
  if ((found.mask & kMaskDioAlign) == 0) {
    out.source = SPN_DIO_ASSUMED;
    out.memory_bytes = kAssumedBytes;
    out.offset_bytes = kAssumedBytes;
    return 0;
  }
  if (found.dio_memory_align == 0 || found.dio_offset_align == 0) {
    return Fail(EOPNOTSUPP, path, "the file system does no direct I/O on this file");
  }
  out.source = SPN_DIO_STATX;
  out.memory_bytes = found.dio_memory_align;
  out.offset_bytes = found.dio_offset_align;
  return 0;
}

}  // namespace

int GetDioAlignment(int fd, const char* path, spn_dio_alignment& out) noexcept {
  return Query(fd, "", AT_EMPTY_PATH, path, out);
}

}  // namespace sparkserve

extern "C" int spn_get_dio_alignment(const char* path, spn_dio_alignment* out) {
  if (path == nullptr || out == nullptr) {
    return sparkserve::Fail(EINVAL, "spn_get_dio_alignment", "a null argument");
  }
  if (out->struct_bytes < sizeof(spn_dio_alignment)) {
    return sparkserve::Fail(EINVAL, "spn_get_dio_alignment", "struct_bytes is too small");
  }
  return sparkserve::Query(AT_FDCWD, path, 0, path, *out);
}
