// Rows kept in memory: set-associative, second chance, within a hard budget.
//
// Not safe for several threads at once: the store holds its lock.

#ifndef SPARKSERVE_NATIVE_ROW_STORE_CACHE_H_
#define SPARKSERVE_NATIVE_ROW_STORE_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "row_store/memory.h"
#include "row_store/status.h"

namespace sparkserve {

class Cache {
 public:
  // As many sets of `ways` rows (1..16) as the budget holds with their keys and marks; a budget
  // smaller than one set gives one set of fewer ways, or no cache.
  Status Prepare(uint64_t budget_bytes, uint32_t ways, uint32_t row_bytes) noexcept;

  bool enabled() const noexcept { return sets_ > 0; }
  uint32_t ways() const noexcept { return ways_; }
  uint64_t slots() const noexcept { return static_cast<uint64_t>(sets_) * ways_; }
  uint64_t bytes() const noexcept { return memory_.bytes(); }

  // Ask the processor for the row's set, some time before Find.
  void Prefetch(uint32_t row) const noexcept {
    const std::size_t set = Set(row);
    __builtin_prefetch(keys_ + set * ways_);
    __builtin_prefetch(marks_ + set);
  }

  // Ask the processor for a row's bytes, some time before they are copied.
  void PrefetchBytes(const uint8_t* bytes) const noexcept {
    for (uint32_t at = 0; at < row_bytes_; at += 64) {
      __builtin_prefetch(bytes + at);
    }
  }

  // The row's bytes, valid until the next Insert; null if it is not there.
  const uint8_t* Find(uint32_t row) noexcept {
    const std::size_t set = Set(row);
    const uint32_t* keys = keys_ + set * ways_;
    const uint32_t key = row + 1;
    for (uint32_t way = 0; way < ways_; ++way) {
      if (keys[way] == key) {
        const auto bit = static_cast<uint16_t>(1u << way);
        if ((marks_[set].used & bit) == 0) {
          marks_[set].used = static_cast<uint16_t>(marks_[set].used | bit);
        }
        return rows_ + (set * ways_ + way) * row_bytes_;
      }
    }
    return nullptr;
  }

  // Keep a row that is not there, in place of one that was not used since its last chance.
  void Insert(uint32_t row, const uint8_t* bytes) noexcept;

 private:
  struct Marks {
    uint16_t used;    // bit per way: found since the cursor last passed
    uint16_t cursor;  // the way to look at next when a place is needed
  };

  std::size_t Set(uint32_t row) const noexcept {
    // Neighbouring rows spread over all sets; the multiplication is a bijection of 2^32.
    return static_cast<std::size_t>(static_cast<uint64_t>(row * 0x9E3779B1u) * sets_ >> 32);
  }

  Memory memory_;
  uint32_t* keys_ = nullptr;  // row + 1; 0 = empty
  Marks* marks_ = nullptr;
  uint8_t* rows_ = nullptr;
  uint64_t sets_ = 0;
  uint32_t ways_ = 0;
  uint32_t row_bytes_ = 0;
};

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_ROW_STORE_CACHE_H_
