// From the rows that a lookup misses to few reads: sort, drop duplicates, join near rows.

#ifndef SPARKSERVE_NATIVE_ROW_STORE_PLANNER_H_
#define SPARKSERVE_NATIVE_ROW_STORE_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "row_store/memory.h"
#include "row_store/status.h"

namespace sparkserve {

// How rows lie in the file and what one read may be.
struct Geometry {
  uint64_t data_offset_bytes;
  uint32_t row_bytes;
  uint32_t alignment_bytes;   // of offsets and lengths; a power of two
  uint32_t gap_bytes;         // rows no further apart are read together
  uint32_t extent_cap_bytes;  // longest read; holds at least one row at any alignment

  uint64_t RowOffset(uint32_t row) const noexcept {
    return data_offset_bytes + static_cast<uint64_t>(row) * row_bytes;
  }
};

// One read: aligned bytes that hold `count` unique rows beginning with unique row `first`.
struct Extent {
  uint64_t offset_bytes;
  uint32_t length_bytes;
  uint32_t needed_bytes;  // up to the end of the last row; the rest may lie beyond the file's end
  uint32_t first;
  uint32_t count;
};

class Planner {
 public:
  // Memory for up to max_ids misses per plan.
  Status Prepare(const Geometry& geometry, uint64_t rows, std::size_t max_ids) noexcept;

  void Clear() noexcept { misses_ = 0; }
  void Add(uint32_t row, uint32_t position) noexcept {
    keys_[misses_++] = static_cast<uint64_t>(row) << 32 | position;
  }
  std::size_t misses() const noexcept { return misses_; }

  // Plan the reads for everything added since Clear; extents ascend by offset.
  std::span<const Extent> Plan() noexcept;
  std::size_t unique_rows() const noexcept { return unique_; }

  uint32_t Row(uint32_t unique) const noexcept {
    return static_cast<uint32_t>(sorted_[starts_[unique]] >> 32);
  }
  // Calls use(position) for each place in the lookup that asked for this unique row.
  template <typename Use>
  void ForEachPosition(uint32_t unique, Use use) const noexcept {
    for (uint32_t i = starts_[unique]; i < starts_[unique + 1]; ++i) {
      use(static_cast<uint32_t>(sorted_[i]));
    }
  }

  const Geometry& geometry() const noexcept { return geometry_; }
  std::size_t arena_bytes() const noexcept { return arena_.bytes(); }

 private:
  void Sort() noexcept;
  void SortByDigits() noexcept;

  Geometry geometry_{};
  unsigned row_bits_ = 0;
  Memory arena_;
  uint64_t* keys_ = nullptr;     // row << 32 | position, as added
  uint64_t* scratch_ = nullptr;  // the other half of the radix sort
  uint64_t* sorted_ = nullptr;   // whichever of the two holds the sorted keys
  Extent* extents_ = nullptr;
  uint32_t* starts_ = nullptr;  // where each unique row's run begins in sorted_, and the end
  std::size_t misses_ = 0;
  std::size_t unique_ = 0;
};

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_ROW_STORE_PLANNER_H_
