#include "row_store/planner.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace sparkserve {
namespace {

constexpr unsigned kDigitBits = 11;
constexpr std::size_t kDigitValues = std::size_t{1} << kDigitBits;
// Below this a comparison sort is quicker than filling the digit counters.
constexpr std::size_t kFewKeys = 1024;

}  // namespace

Status Planner::Prepare(const Geometry& geometry, uint64_t rows, std::size_t max_ids) noexcept {
  geometry_ = geometry;
  row_bits_ = static_cast<unsigned>(std::bit_width(rows));
  const std::size_t bytes =
      max_ids * (2 * sizeof(uint64_t) + sizeof(Extent) + sizeof(uint32_t)) + sizeof(uint32_t);
  if (Status status = Memory::Allocate(bytes, arena_); !status.ok()) {
    return status;
  }
  // Descending alignment, so that every part is aligned.
  keys_ = reinterpret_cast<uint64_t*>(arena_.data());
  scratch_ = keys_ + max_ids;
  extents_ = reinterpret_cast<Extent*>(scratch_ + max_ids);
  starts_ = reinterpret_cast<uint32_t*>(extents_ + max_ids);
  return {};
}

void Planner::Sort() noexcept {
  sorted_ = keys_;
  if (misses_ <= kFewKeys) {
    std::sort(keys_, keys_ + misses_);
  } else {
    SortByDigits();
  }
}

// Least significant digit first, over the bits of the row alone: each pass is stable, and
// positions ascend from the start.
void Planner::SortByDigits() noexcept {
  uint64_t* other = scratch_;
  for (unsigned shift = 32; shift < 32 + row_bits_; shift += kDigitBits) {
    std::array<uint32_t, kDigitValues> at{};
    for (std::size_t i = 0; i < misses_; ++i) {
      ++at[sorted_[i] >> shift & (kDigitValues - 1)];
    }
    uint32_t sum = 0;
    for (uint32_t& count : at) {
      sum += std::exchange(count, sum);
    }
    for (std::size_t i = 0; i < misses_; ++i) {
      other[at[sorted_[i] >> shift & (kDigitValues - 1)]++] = sorted_[i];
    }
    std::swap(sorted_, other);
  }
}

std::span<const Extent> Planner::Plan() noexcept {
  Sort();
  const uint64_t mask = ~static_cast<uint64_t>(geometry_.alignment_bytes - 1);
  std::size_t extents = 0;
  unique_ = 0;
  for (std::size_t i = 0; i < misses_; ++i) {
    const auto row = static_cast<uint32_t>(sorted_[i] >> 32);
    if (i > 0 && row == static_cast<uint32_t>(sorted_[i - 1] >> 32)) {
      continue;
    }
    const uint64_t begin = geometry_.RowOffset(row);
    const uint64_t needed_end = begin + geometry_.row_bytes;
    const uint64_t end = (needed_end + geometry_.alignment_bytes - 1) & mask;
    starts_[unique_] = static_cast<uint32_t>(i);
    Extent* last = extents > 0 ? &extents_[extents - 1] : nullptr;
    if (last != nullptr && end - last->offset_bytes <= geometry_.extent_cap_bytes &&
        (begin & mask) <= last->offset_bytes + last->length_bytes + geometry_.gap_bytes) {
      last->length_bytes = static_cast<uint32_t>(end - last->offset_bytes);
      last->needed_bytes = static_cast<uint32_t>(needed_end - last->offset_bytes);
      ++last->count;
    } else {
      const uint64_t offset = begin & mask;
      extents_[extents++] = {offset, static_cast<uint32_t>(end - offset),
                             static_cast<uint32_t>(needed_end - offset),
                             static_cast<uint32_t>(unique_), 1};
    }
    ++unique_;
  }
  starts_[unique_] = static_cast<uint32_t>(misses_);
  return {extents_, extents};
}

}  // namespace sparkserve
