// Counters of a store, and the times of its lookups as a histogram with bounded memory.

#ifndef SPARKSERVE_NATIVE_ROW_STORE_STATS_H_
#define SPARKSERVE_NATIVE_ROW_STORE_STATS_H_

#include <array>
#include <bit>
#include <cstdint>

namespace sparkserve {

struct Counters {
  uint64_t lookups = 0;
  uint64_t failed_lookups = 0;
  uint64_t ids = 0;
  uint64_t owned_ids = 0;
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t unique_ids = 0;
  uint64_t extents = 0;
  uint64_t reads = 0;
  uint64_t bytes_read = 0;

  void Add(const Counters& other) noexcept {
    lookups += other.lookups;
    failed_lookups += other.failed_lookups;
    ids += other.ids;
    owned_ids += other.owned_ids;
    hits += other.hits;
    misses += other.misses;
    unique_ids += other.unique_ids;
    extents += other.extents;
    reads += other.reads;
    bytes_read += other.bytes_read;
  }
};

// Sixteen buckets per power of two: a quantile is the upper end of its bucket, at most 1/16 high.
class Histogram {
 public:
  void Add(uint64_t value) noexcept {
    ++buckets_[Bucket(value)];
    ++count_;
  }

  // The smallest bucket end that at least `percent` of the values do not exceed; 0 without values.
  uint64_t Quantile(unsigned percent) const noexcept {
    const uint64_t wanted = (count_ * percent + 99) / 100;
    uint64_t seen = 0;
    for (std::size_t bucket = 0; bucket < buckets_.size() && wanted > 0; ++bucket) {
      seen += buckets_[bucket];
      if (seen >= wanted) {
        return End(bucket);
      }
    }
    return 0;
  }

 private:
  static constexpr unsigned kSteps = 16;

  static std::size_t Bucket(uint64_t value) noexcept {
    if (value < kSteps) {
      return value;
    }
    const auto power = static_cast<unsigned>(std::bit_width(value)) - 5;  // value >> power: 16..31
    return power * kSteps + (value >> power);
  }
  static uint64_t End(std::size_t bucket) noexcept {
    if (bucket < 2 * kSteps) {
      return bucket;
    }
    const std::size_t power = bucket / kSteps - 1;
    const uint64_t step = bucket % kSteps + kSteps;
    return ((step + 1) << power) - 1;
  }

  std::array<uint64_t, 61 * kSteps> buckets_{};
  uint64_t count_ = 0;
};

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_ROW_STORE_STATS_H_
