// Anonymous memory of the process alone: page-aligned, filled when first touched, not inherited
// by forked children (the kernel may be writing to it).

#ifndef SPARKSERVE_NATIVE_ROW_STORE_MEMORY_H_
#define SPARKSERVE_NATIVE_ROW_STORE_MEMORY_H_

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "row_store/status.h"

namespace sparkserve {

class Memory {
 public:
  Memory() noexcept = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Memory(Memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Memory() {
    if (data_ != nullptr) {
      munmap(data_, bytes_);
    }
  }

  // Zero-filled memory; `bytes` 0 gives none.
  static Status Allocate(std::size_t bytes, Memory& out) noexcept {
    Memory made;
    if (bytes > 0) {
      void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (at == MAP_FAILED) {
        return Failure(errno, -1, "no memory for %zu bytes", bytes);
      }
      made.data_ = static_cast<uint8_t*>(at);
      made.bytes_ = bytes;
      madvise(at, bytes, MADV_DONTFORK);
    }
    out = std::move(made);
    return {};
  }

  // Ask for large pages, for big areas that are read at random.
  void PreferLargePages() noexcept {
    if (data_ != nullptr) {
      madvise(data_, bytes_, MADV_HUGEPAGE);
    }
  }

  uint8_t* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_ROW_STORE_MEMORY_H_
