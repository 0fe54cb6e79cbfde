#include "row_store/segments.h"

#include <cerrno>

namespace sparkserve {

Status Segments::Prepare(std::span<const spn_segment> segments, uint64_t total_ids, uint64_t rows) {
  if (total_ids > static_cast<uint64_t>(INT64_MAX)) {
    return Failure(EINVAL, -1, "total_ids %llu is no id",
                   static_cast<unsigned long long>(total_ids));
  }
  total_ids_ = static_cast<int64_t>(total_ids);
  int64_t end = 0;
  for (const spn_segment& one : segments) {
    const auto first = static_cast<long long>(one.first_id);
    const auto last = static_cast<long long>(one.end_id);
    if (one.first_id < end || one.end_id <= one.first_id || one.end_id > total_ids_) {
      return Failure(EINVAL, -1,
                     "segment of ids %lld..%lld, expected an ascending one within %lld..%lld",
                     first, last, static_cast<long long>(end), static_cast<long long>(total_ids_));
    }
    const auto length = static_cast<uint64_t>(one.end_id - one.first_id);
    if (one.first_row < 0 || length > rows ||
        static_cast<uint64_t>(one.first_row) > rows - length) {
      return Failure(EINVAL, -1, "segment of ids %lld..%lld from row %lld, the file has %llu rows",
                     first, last, static_cast<long long>(one.first_row),
                     static_cast<unsigned long long>(rows));
    }
    end = one.end_id;
  }
  segments_.assign(segments.begin(), segments.end());
  return {};
}

}  // namespace sparkserve
