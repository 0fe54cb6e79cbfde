#include <linux/io_uring.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "row_store/engine.h"
#include "row_store/ring.h"
#include "row_store/thread.h"

namespace sparkserve {
namespace {

// Interrupted reads are asked for again, but not for ever.
constexpr uint32_t kMostRetries = 1000;

class UringEngine final : public Engine {
 public:
  UringEngine(const EngineOptions& options, uint32_t depth) : options_(options), depth_(depth) {}

  ~UringEngine() override {
    if (thread_.joinable()) {
      {
        std::lock_guard lock(mutex_);
        stopping_ = true;
      }
      work_.notify_one();
      thread_.join();
    }
  }

  // The ring is made by the thread that uses it: the kernel's cheapest mode allows no other.
  Status Start() {
    slots_.resize(depth_);
    free_.reserve(depth_);
    for (uint32_t slot = depth_; slot > 0; --slot) {
      free_.push_back(slot - 1);
    }
    const std::size_t bytes = std::size_t{depth_} * options_.extent_cap_bytes;
    if (Status status = Memory::Allocate(bytes, buffers_); !status.ok()) {
      return status;
    }
    if (Status status = StartThread("spn-uring", thread_, [this] { Serve(); }); !status.ok()) {
      return status;
    }
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return ready_; });
    return opened_;
  }

  Status Read(std::span<const Extent> extents, Sink& sink, ReadCounts& counts) noexcept override {
    Request request{extents, &sink, &counts, {}, false};
    std::unique_lock lock(mutex_);
    request_ = &request;
    work_.notify_one();
    done_.wait(lock, [&request] { return request.finished; });
    return request.status;
  }

  uint32_t depth() const noexcept override { return depth_; }
  uint64_t arena_bytes() const noexcept override { return buffers_.bytes(); }
  bool registered_buffers() const noexcept override { return fixed_buffers_; }

 private:
  struct Request {
    std::span<const Extent> extents;
    Sink* sink;
    ReadCounts* counts;
    Status status;
    bool finished;
  };
  struct Slot {
    const Extent* extent = nullptr;  // null = free
    uint32_t done_bytes = 0;
    uint32_t retries = 0;
  };

  void Serve() noexcept {
    Status status = ring_.Open(depth_);
    if (status.ok()) {
      fixed_file_ = ring_.RegisterFile(options_.fd);
      fixed_buffers_ = ring_.RegisterBuffer(buffers_.data(), buffers_.bytes());
    }
    std::unique_lock lock(mutex_);
    opened_ = status;
    ready_ = true;
    done_.notify_one();
    while (status.ok()) {
      work_.wait(lock, [this] { return request_ != nullptr || stopping_; });
      if (stopping_) {
        break;
      }
      Request* request = std::exchange(request_, nullptr);
      lock.unlock();
      request->status = Transfer(*request);
      lock.lock();
      request->finished = true;
      done_.notify_one();
    }
    if (fixed_file_) {
      ring_.UnregisterFile();
    }
  }

  Status Transfer(Request& request) noexcept {
    if (!broken_.ok()) {
      return broken_;
    }
    first_error_ = {};
    std::size_t next = 0;
    while (true) {
      while (first_error_.ok() && next < request.extents.size() && !free_.empty()) {
        const uint32_t slot = free_.back();
        free_.pop_back();
        slots_[slot] = {&request.extents[next++], 0, 0};
        Ask(slot, *request.counts);
      }
      const auto in_flight = static_cast<uint32_t>(depth_ - free_.size());
      if (in_flight == 0) {
        return first_error_;
      }
      // Waking for every result would cost more than it gains; the queue stays nearly full.
      const int result = ring_.Submit(std::min(in_flight, std::max(1u, depth_ / 8)));
      if (result < 0 && result != -EINTR && result != -EAGAIN && result != -EBUSY) {
        // What is in flight cannot be waited for, so its buffers can never be used again.
        broken_ = SystemFailure(-result, -1, "io_uring_enter");
        return broken_;
      }
      if (!TakeResults(request)) {
        return broken_;
      }
    }
  }

  bool TakeResults(Request& request) noexcept {
    while (const io_uring_cqe* result = ring_.Peek()) {
      const uint64_t slot = result->user_data;
      const int32_t value = result->res;
      ring_.Pop();
      if (slot >= depth_ || slots_[slot].extent == nullptr) {
        broken_ = Failure(EIO, -1, "io_uring answered a read that was not asked for");
        return false;
      }
      Take(static_cast<uint32_t>(slot), value, request);
    }
    return true;
  }

  void Take(uint32_t index, int32_t result, Request& request) noexcept {
    Slot& slot = slots_[index];
    const Extent& extent = *slot.extent;
    if ((result == -EINTR || result == -EAGAIN) && slot.retries < kMostRetries) {
      ++slot.retries;
      Ask(index, *request.counts);
      return;
    }
    if (result > 0) {
      slot.done_bytes += static_cast<uint32_t>(result);
      request.counts->bytes += static_cast<uint32_t>(result);
      if (slot.done_bytes >= extent.needed_bytes) {
        request.sink->Deliver(extent, Buffer(index));
        Release(index);
        return;
      }
      if (MayContinue(options_, slot.done_bytes)) {
        Ask(index, *request.counts);
        return;
      }
      result = 0;
    }
    if (first_error_.ok()) {
      first_error_ = ReadFailure(extent, slot.done_bytes, result);
    }
    Release(index);
  }

  void Ask(uint32_t index, ReadCounts& counts) noexcept {
    const Slot& slot = slots_[index];
    io_uring_sqe& entry = ring_.Next();
    entry.opcode = fixed_buffers_ ? IORING_OP_READ_FIXED : IORING_OP_READ;
    entry.flags = fixed_file_ ? IOSQE_FIXED_FILE : 0;
    entry.fd = fixed_file_ ? 0 : options_.fd;
    entry.off = slot.extent->offset_bytes + slot.done_bytes;
    entry.addr = reinterpret_cast<uint64_t>(Buffer(index) + slot.done_bytes);
    entry.len = slot.extent->length_bytes - slot.done_bytes;
    entry.user_data = index;
    ++counts.reads;
  }

  uint8_t* Buffer(uint32_t index) const noexcept {
    return buffers_.data() + std::size_t{index} * options_.extent_cap_bytes;
  }

  void Release(uint32_t index) noexcept {
    slots_[index].extent = nullptr;
    free_.push_back(index);
  }

  const EngineOptions options_;
  const uint32_t depth_;
  Memory buffers_;
  // Of the engine's thread, after Start.
  Ring ring_;
  bool fixed_file_ = false;
  bool fixed_buffers_ = false;
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
  Status first_error_;
  Status broken_;
  // Between the threads.
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  Request* request_ = nullptr;
  bool ready_ = false;
  bool stopping_ = false;
  Status opened_;
  std::thread thread_;
};

}  // namespace

Status MakeUringEngine(const EngineOptions& options, uint32_t depth, std::unique_ptr<Engine>& out) {
  auto engine = std::make_unique<UringEngine>(options, depth);
  Status status = engine->Start();
  if (status.ok()) {
    out = std::move(engine);
  }
  return status;
}

}  // namespace sparkserve
