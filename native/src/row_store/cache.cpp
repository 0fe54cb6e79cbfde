#include "row_store/cache.h"

#include <algorithm>

namespace sparkserve {

Status Cache::Prepare(uint64_t budget_bytes, uint32_t ways, uint32_t row_bytes) noexcept {
  const uint64_t slot = uint64_t{row_bytes} + sizeof(uint32_t);
  const uint64_t room = budget_bytes > sizeof(Marks) ? budget_bytes - sizeof(Marks) : 0;
  ways_ = static_cast<uint32_t>(std::min<uint64_t>(ways, room / slot));
  row_bytes_ = row_bytes;
  if (ways_ == 0) {
    return {};
  }
  const uint64_t set = ways_ * slot + sizeof(Marks);
  // A set index comes from 32 bits; more sets than that could never be used.
  sets_ = std::min<uint64_t>(budget_bytes / set, uint64_t{1} << 32);
  if (Status status = Memory::Allocate(sets_ * set, memory_); !status.ok()) {
    sets_ = 0;
    return status;
  }
  memory_.PreferLargePages();
  keys_ = reinterpret_cast<uint32_t*>(memory_.data());
  marks_ = reinterpret_cast<Marks*>(keys_ + sets_ * ways_);
  rows_ = reinterpret_cast<uint8_t*>(marks_ + sets_);
  return {};
}

void Cache::Insert(uint32_t row, const uint8_t* bytes) noexcept {
  const std::size_t set = Set(row);
  Marks& marks = marks_[set];
  uint32_t* keys = keys_ + set * ways_;
  uint32_t way = marks.cursor;
  // Ends after one round at the latest: each step takes a mark away.
  while (keys[way] != 0 && (marks.used >> way & 1u) != 0) {
    marks.used = static_cast<uint16_t>(marks.used & ~(1u << way));
    way = way + 1 < ways_ ? way + 1 : 0;
  }
  keys[way] = row + 1;
  std::memcpy(rows_ + (set * ways_ + way) * row_bytes_, bytes, row_bytes_);
  marks.cursor = static_cast<uint16_t>(way + 1 < ways_ ? way + 1 : 0);
}

}  // namespace sparkserve
