// What carries out planned reads.

#ifndef SPARKSERVE_NATIVE_ROW_STORE_ENGINE_H_
#define SPARKSERVE_NATIVE_ROW_STORE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <span>

#include "row_store/planner.h"
#include "row_store/status.h"

namespace sparkserve {

// Takes what was read. Called once per extent whose needed bytes are all there, from any thread,
// from several at the same time for different extents; `bytes` is valid during the call.
class Sink {
 public:
  virtual void Deliver(const Extent& extent, const uint8_t* bytes) noexcept = 0;

 protected:
  ~Sink() = default;
};

struct ReadCounts {
  uint64_t reads = 0;  // asked of the kernel
  uint64_t bytes = 0;  // that came back
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Read every extent, or fail with the first error; returns when nothing is in flight any more,
  // whatever happened. One call at a time.
  virtual Status Read(std::span<const Extent> extents, Sink& sink, ReadCounts& counts) noexcept = 0;

  virtual uint32_t depth() const noexcept = 0;  // reads in flight at most
  virtual uint64_t arena_bytes() const noexcept = 0;
  virtual bool registered_buffers() const noexcept { return false; }
};

struct EngineOptions {
  int fd;                     // stays open as long as the engine
  uint32_t extent_cap_bytes;  // a multiple of 4096
  uint32_t alignment_bytes;   // 1 without direct I/O
};

// Reads through an io_uring of `depth` entries that one thread of the engine owns.
Status MakeUringEngine(const EngineOptions& options, uint32_t depth, std::unique_ptr<Engine>& out);

// Reads with `threads` threads, the caller's included, one extent at a time each.
Status MakePreadEngine(const EngineOptions& options, uint32_t threads,
                       std::unique_ptr<Engine>& out);

// The read of `extent` ended after `done` bytes with `result`: 0 = end of file, negative = -errno.
Status ReadFailure(const Extent& extent, uint32_t done, int64_t result) noexcept;

// Whether a read that gave some bytes and then `done` in all may go on where it stopped: direct
// reads end between sectors only at the end of the file.
inline bool MayContinue(const EngineOptions& options, uint32_t done) noexcept {
  return done % options.alignment_bytes == 0;
}

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_ROW_STORE_ENGINE_H_
