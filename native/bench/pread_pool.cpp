#include "pread_pool.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kSerialBelow = 8;
constexpr std::size_t kLocks = 256;

class RoundRobinCache {
 public:
  RoundRobinCache(uint64_t bytes, uint32_t ways, uint32_t row_bytes)
      : ways_(ways),
        row_bytes_(row_bytes),
        sets_(bytes / ((row_bytes + sizeof(int64_t)) * uint64_t{ways} + 1)),
        keys_(new int64_t[sets_ * ways]()),
        cursors_(new uint8_t[sets_]()),
        rows_(new uint8_t[sets_ * ways * row_bytes]) {}

  bool Find(int64_t id, uint8_t* out) {
    if (sets_ == 0) {
      return false;
    }
    const uint64_t set = static_cast<uint64_t>(id) % sets_;
    std::lock_guard lock(locks_[set % kLocks]);
    for (uint64_t slot = set * ways_; slot < (set + 1) * ways_; ++slot) {
      if (keys_[slot] == id + 1) {
        std::memcpy(out, &rows_[slot * row_bytes_], row_bytes_);
        hits_.fetch_add(1, std::memory_order_relaxed);
        return true;
      }
    }
    return false;
  }

  void Insert(int64_t id, const uint8_t* row) {
    if (sets_ == 0) {
      return;
    }
    const uint64_t set = static_cast<uint64_t>(id) % sets_;
    std::lock_guard lock(locks_[set % kLocks]);
    const uint64_t slot = set * ways_ + cursors_[set];
    cursors_[set] = static_cast<uint8_t>((cursors_[set] + 1u) % ways_);
    keys_[slot] = id + 1;
    std::memcpy(&rows_[slot * row_bytes_], row, row_bytes_);
  }

  uint64_t hits() const { return hits_.load(std::memory_order_relaxed); }

 private:
  const uint64_t ways_;
  const uint64_t row_bytes_;
  const uint64_t sets_;
  std::unique_ptr<int64_t[]> keys_;
  std::unique_ptr<uint8_t[]> cursors_;
  std::unique_ptr<uint8_t[]> rows_;
  std::array<std::mutex, kLocks> locks_;
  std::atomic<uint64_t> hits_ = 0;
};

}  // namespace

struct spnb_pool {
  spnb_pool(int file, uint64_t data_offset, uint32_t row_bytes, uint32_t threads,
            uint64_t cache_bytes, uint32_t ways)
      : file_(file),
        data_offset_(data_offset),
        row_bytes_(row_bytes),
        cache_(cache_bytes, ways, row_bytes) {
    for (uint32_t i = 1; i < threads; ++i) {
      threads_.emplace_back([this] { Serve(); });
    }
  }

  ~spnb_pool() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
    close(file_);
  }

  int Lookup(const int64_t* ids, uint64_t count, uint8_t* rows) {
    std::unique_lock lock(mutex_);
    ids_ = ids;
    count_ = count;
    rows_ = rows;
    next_ = 0;
    failed_ = false;
    if (count >= kSerialBelow) {
      ++job_;
      inside_ = threads_.size();
      work_.notify_all();
    }
    lock.unlock();
    Drain();
    lock.lock();
    done_.wait(lock, [this] { return inside_ == 0; });
    return failed_ ? -1 : 0;
  }

  uint64_t hits() const { return cache_.hits(); }

 private:
  void Serve() {
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [&] { return job_ != seen || stopping_; });
      if (stopping_) {
        return;
      }
      seen = job_;
      lock.unlock();
      Drain();
      lock.lock();
      if (--inside_ == 0) {
        done_.notify_one();
      }
    }
  }

  void Drain() {
    alignas(4096) uint8_t pages[2 * kPage];
    for (uint64_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) {
      uint8_t* out = rows_ + i * row_bytes_;
      if (cache_.Find(ids_[i], out)) {
        continue;
      }
      const uint64_t at = data_offset_ + static_cast<uint64_t>(ids_[i]) * row_bytes_;
      const uint64_t begin = at / kPage * kPage;
      const uint64_t end = (at + row_bytes_ + kPage - 1) / kPage * kPage;
      const ssize_t got = pread(file_, pages, end - begin, static_cast<off_t>(begin));
      if (got < static_cast<ssize_t>(at + row_bytes_ - begin)) {
        failed_ = true;
        return;
      }
      std::memcpy(out, pages + (at - begin), row_bytes_);
      cache_.Insert(ids_[i], out);
    }
  }

  const int file_;
  const uint64_t data_offset_;
  const uint64_t row_bytes_;
  RoundRobinCache cache_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable done_;
  uint64_t job_ = 0;
  std::size_t inside_ = 0;
  bool stopping_ = false;
  const int64_t* ids_ = nullptr;
  uint64_t count_ = 0;
  uint8_t* rows_ = nullptr;
  std::atomic<uint64_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::vector<std::thread> threads_;
};

extern "C" spnb_pool* spnb_pool_open(const char* path, uint64_t data_offset_bytes,
                                     uint32_t row_bytes, uint32_t threads, uint64_t cache_bytes,
                                     uint32_t cache_ways) {
  const int file = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
  if (file < 0) {
    return nullptr;
  }
  return new spnb_pool(file, data_offset_bytes, row_bytes, threads, cache_bytes, cache_ways);
}

extern "C" int spnb_pool_lookup(spnb_pool* pool, const int64_t* ids, uint64_t count,
                                uint8_t* rows) {
  return pool->Lookup(ids, count, rows);
}

extern "C" uint64_t spnb_pool_hits(const spnb_pool* pool) { return pool->hits(); }

extern "C" void spnb_pool_close(spnb_pool* pool) { delete pool; }
