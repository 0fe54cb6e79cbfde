// A file that is read with direct I/O where its file system allows it.

#ifndef SPARKSERVE_NATIVE_ROW_STORE_ROW_FILE_H_
#define SPARKSERVE_NATIVE_ROW_STORE_ROW_FILE_H_

#include <sys/stat.h>

#include <cstdint>

#include "row_store/status.h"

namespace sparkserve {

class RowFile {
 public:
  RowFile() noexcept = default;
  RowFile(const RowFile&) = delete;
  RowFile& operator=(const RowFile&) = delete;
  ~RowFile();

  // Open the regular file at `path`. O_DIRECT is tried with one real read at `probe_offset_bytes`;
  // where the file system refuses it, reads go through the page cache.
  Status Open(const char* path, uint64_t probe_offset_bytes) noexcept;

  // Fails with ESTALE if the file was written to or cut since it was opened. A name that now
  // belongs to another file, or to none, is no failure: what is open still holds the old rows.
  Status Unchanged() const noexcept;

  int fd() const noexcept { return fd_; }
  uint64_t size_bytes() const noexcept { return static_cast<uint64_t>(opened_.st_size); }
  bool direct() const noexcept { return direct_; }
  // Offsets and lengths of reads are multiples of this; 1 without direct I/O.
  uint32_t alignment_bytes() const noexcept { return alignment_bytes_; }

 private:
  Status TryDirect(const char* path, uint64_t probe_offset_bytes) noexcept;

  int fd_ = -1;
  struct stat opened_ {};
  bool direct_ = false;
  uint32_t alignment_bytes_ = 1;
};

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_ROW_STORE_ROW_FILE_H_
