#include "row_store/engine.h"

#include <cerrno>

namespace sparkserve {

Status ReadFailure(const Extent& extent, uint32_t done, int64_t result) noexcept {
  const auto at = static_cast<int64_t>(extent.offset_bytes + done);
  if (result < 0) {
    return SystemFailure(static_cast<int>(-result), at, "read");
  }
  return Failure(ENODATA, at, "no more bytes here, %u of %u read: the file was cut", done,
                 extent.needed_bytes);
}

}  // namespace sparkserve
