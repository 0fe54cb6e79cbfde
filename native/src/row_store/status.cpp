#include "row_store/status.h"

#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace sparkserve {

Status Failure(int number, int64_t offset_bytes, const char* format, ...) noexcept {
  Status status;
  status.number = number;
  status.offset_bytes = offset_bytes;
  va_list values;
  va_start(values, format);
  std::vsnprintf(status.reason, sizeof status.reason, format, values);
  va_end(values);
  return status;
}

Status SystemFailure(int number, int64_t offset_bytes, const char* what) noexcept {
  std::array<char, 128> words{};
  return Failure(number, offset_bytes, "%s: %s", what,
                 strerror_r(number, words.data(), words.size()));
}

}  // namespace sparkserve
