// The outcome of an operation on a row file; fits on the stack and never takes memory.

#ifndef SPARKSERVE_NATIVE_ROW_STORE_STATUS_H_
#define SPARKSERVE_NATIVE_ROW_STORE_STATUS_H_

#include <cstdint>

namespace sparkserve {

struct [[nodiscard]] Status {
  int number = 0;             // 0, or an errno
  int64_t offset_bytes = -1;  // the byte of the file that is to blame, or -1
  char reason[256];           // for a person; set only with a number

  Status() noexcept { reason[0] = '\0'; }
  bool ok() const noexcept { return number == 0; }
};

// A failure with a printf-like reason.
Status Failure(int number, int64_t offset_bytes, const char* format, ...) noexcept
    __attribute__((format(printf, 3, 4)));

// "<what>: <the system's words for number>".
Status SystemFailure(int number, int64_t offset_bytes, const char* what) noexcept;

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_ROW_STORE_STATUS_H_
