#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "row_store/engine.h"
#include "row_store/thread.h"

namespace sparkserve {
namespace {

class PreadEngine final : public Engine {
 public:
  PreadEngine(const EngineOptions& options, uint32_t threads)
      : options_(options), threads_(threads) {}

  ~PreadEngine() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& helper : helpers_) {
      helper.join();
    }
  }

  Status Start() {
    const std::size_t bytes = std::size_t{threads_} * options_.extent_cap_bytes;
    if (Status status = Memory::Allocate(bytes, buffers_); !status.ok()) {
      return status;
    }
    helpers_.reserve(threads_ - 1);
    for (uint32_t index = 1; index < threads_; ++index) {
      std::thread helper;
      Status status = StartThread("spn-pread", helper, [this, index] { Serve(index); });
      if (!status.ok()) {
        return status;
      }
      helpers_.push_back(std::move(helper));
    }
    return {};
  }

  Status Read(std::span<const Extent> extents, Sink& sink, ReadCounts& counts) noexcept override {
    extents_ = extents;
    sink_ = &sink;
    next_.store(0, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    first_error_ = {};
    counts_ = {};
    // The caller reads too, so one extent needs no help.
    const std::size_t help = std::min(helpers_.size(), extents.empty() ? 0 : extents.size() - 1);
    if (help > 0) {
      {
        std::lock_guard lock(mutex_);
        wanted_ = help;
      }
      for (std::size_t i = 0; i < help; ++i) {
        work_.notify_one();
      }
    }
    Drain(0);
    std::unique_lock lock(mutex_);
    wanted_ = 0;  // who has not come by now is not needed
    idle_.wait(lock, [this] { return active_ == 0; });
    counts.reads += counts_.reads;
    counts.bytes += counts_.bytes;
    return first_error_;
  }

  uint32_t depth() const noexcept override { return threads_; }
  uint64_t arena_bytes() const noexcept override { return buffers_.bytes(); }

 private:
  void Serve(uint32_t index) noexcept {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return wanted_ > 0 || stopping_; });
      if (stopping_) {
        return;
      }
      --wanted_;
      ++active_;
      lock.unlock();
      Drain(index);
      lock.lock();
      if (--active_ == 0) {
        idle_.notify_one();
      }
    }
  }

  // Read extents until none is left or one failed.
  void Drain(uint32_t index) noexcept {
    uint8_t* buffer = buffers_.data() + std::size_t{index} * options_.extent_cap_bytes;
    ReadCounts counts;
    Status status;
    while (!failed_.load(std::memory_order_relaxed)) {
      const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= extents_.size()) {
        break;
      }
      status = ReadOne(extents_[i], buffer, counts);
      if (!status.ok()) {
        failed_.store(true, std::memory_order_relaxed);
        break;
      }
      sink_->Deliver(extents_[i], buffer);
    }
    std::lock_guard lock(mutex_);
    counts_.reads += counts.reads;
    counts_.bytes += counts.bytes;
    if (!status.ok() && first_error_.ok()) {
      first_error_ = status;
    }
  }

  Status ReadOne(const Extent& extent, uint8_t* buffer, ReadCounts& counts) const noexcept {
    uint32_t done = 0;
    while (done < extent.needed_bytes) {
      ++counts.reads;
      const ssize_t got = pread(options_.fd, buffer + done, extent.length_bytes - done,
                                static_cast<off_t>(extent.offset_bytes + done));
      if (got < 0 && errno == EINTR) {
        continue;
      }
      if (got <= 0) {
        return ReadFailure(extent, done, got < 0 ? -errno : 0);
      }
      counts.bytes += static_cast<uint64_t>(got);
      done += static_cast<uint32_t>(got);
      if (done < extent.needed_bytes && !MayContinue(options_, done)) {
        return ReadFailure(extent, done, 0);
      }
    }
    return {};
  }

  const EngineOptions options_;
  const uint32_t threads_;
  Memory buffers_;
  // The reads under way.
  std::span<const Extent> extents_;
  Sink* sink_ = nullptr;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  // Under the mutex.
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable idle_;
  std::size_t wanted_ = 0;  // helpers that may still join
  std::size_t active_ = 0;  // helpers that joined and have not left
  ReadCounts counts_;
  Status first_error_;
  bool stopping_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace

Status MakePreadEngine(const EngineOptions& options, uint32_t threads,
                       std::unique_ptr<Engine>& out) {
  auto engine = std::make_unique<PreadEngine>(options, threads);
  Status status = engine->Start();
  if (status.ok()) {
    out = std::move(engine);
  }
  return status;
}

}  // namespace sparkserve
