// Which row of the file holds an id.

#ifndef SPARKSERVE_NATIVE_ROW_STORE_SEGMENTS_H_
#define SPARKSERVE_NATIVE_ROW_STORE_SEGMENTS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "row_store/status.h"
#include "sparkserve_native/row_store.h"

namespace sparkserve {

class Segments {
 public:
  static constexpr uint32_t kNotOwned = UINT32_MAX;

  // Fails with EINVAL unless they ascend without overlap within the table and the file.
  Status Prepare(std::span<const spn_segment> segments, uint64_t total_ids, uint64_t rows);

  bool InTable(int64_t id) const noexcept { return id >= 0 && id < total_ids_; }
  int64_t total_ids() const noexcept { return total_ids_; }

  // For an id in the table: its row, or kNotOwned.
  uint32_t Row(int64_t id) const noexcept {
    const spn_segment* segment = segments_.data();
    if (segments_.size() > 1) {
      // The last segment that begins at or before the id.
      const auto after = std::upper_bound(
          segments_.begin(), segments_.end(), id,
          [](int64_t wanted, const spn_segment& one) { return wanted < one.first_id; });
      if (after == segments_.begin()) {
        return kNotOwned;
      }
      segment = &*(after - 1);
    } else if (segments_.empty() || id < segment->first_id) {
      return kNotOwned;
    }
    if (id >= segment->end_id) {
      return kNotOwned;
    }
    return static_cast<uint32_t>(segment->first_row + (id - segment->first_id));
  }

 private:
  std::vector<spn_segment> segments_;
  int64_t total_ids_ = 0;
};

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_ROW_STORE_SEGMENTS_H_
