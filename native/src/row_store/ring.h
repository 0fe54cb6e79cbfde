// An io_uring by raw system calls: no liburing, so that a bare machine needs only a compiler.
//
// Everything but Map and the destructor must be called by the thread that called Open.

#ifndef SPARKSERVE_NATIVE_ROW_STORE_RING_H_
#define SPARKSERVE_NATIVE_ROW_STORE_RING_H_

#include <linux/io_uring.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "row_store/status.h"

namespace sparkserve {

class Ring {
 public:
  Ring() noexcept = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring();

  // Set up a ring for up to `depth` requests in flight, in the cheapest mode that the kernel
  // knows, and prove with one empty request that it works.
  Status Open(uint32_t depth) noexcept;

  // False where the kernel refuses; reads then work without.
  bool RegisterFile(int fd) noexcept;
  bool RegisterBuffer(void* data, std::size_t bytes) noexcept;
  // Give the file back now: the kernel takes a ring apart some time after it was closed, and a
  // file system with an open file cannot be unmounted.
  void UnregisterFile() noexcept;

  // The next request to fill; the caller never has more than `depth` in flight.
  io_uring_sqe& Next() noexcept;

  // Submit what was filled and wait until `completions` results are there. 0 or -errno; after
  // -EAGAIN, -EBUSY or -EINTR nothing is lost: take the results and call it again.
  int Submit(uint32_t completions) noexcept;

  // The next result, or null; Pop makes its place free.
  const io_uring_cqe* Peek() const noexcept;
  void Pop() noexcept;

 private:
  using Index = std::atomic<uint32_t>;
  static_assert(sizeof(Index) == sizeof(uint32_t) && Index::is_always_lock_free);

  Status Setup(uint32_t depth, io_uring_params& params) noexcept;
  Status Map(const io_uring_params& params) noexcept;
  Status Prove() noexcept;

  int fd_ = -1;
  void* rings_ = nullptr;  // submission and completion ring, one mapping
  std::size_t rings_bytes_ = 0;
  io_uring_sqe* entries_ = nullptr;
  std::size_t entries_bytes_ = 0;
  Index* submit_tail_ = nullptr;
  uint32_t submit_mask_ = 0;
  uint32_t tail_ = 0;       // ours; shown to the kernel in Submit
  uint32_t submitted_ = 0;  // of these, taken by the kernel
  Index* result_head_ = nullptr;
  Index* result_tail_ = nullptr;
  uint32_t result_mask_ = 0;
  const io_uring_cqe* results_ = nullptr;
};

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_ROW_STORE_RING_H_
