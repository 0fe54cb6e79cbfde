#include "error.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <initializer_list>

#include "sparkserve_native/c_api.h"
#include "sparkserve_native/row_store.h"

namespace sparkserve {
namespace {

// A fixed buffer: reporting an error must not itself fail for want of memory.
thread_local std::array<char, 4608> last_error{};
thread_local int64_t last_error_offset = -1;

void Remember(std::initializer_list<std::string_view> parts) noexcept {
  char* at = last_error.data();
  char* const end = at + last_error.size() - 1;
  for (std::string_view part : parts) {
    const auto room = static_cast<std::size_t>(end - at);
    at = std::copy_n(part.data(), std::min(part.size(), room), at);
  }
  *at = '\0';
}

}  // namespace

int Fail(int number, std::string_view subject, std::string_view reason) noexcept {
  Remember({subject, ": ", reason});
  last_error_offset = -1;
  return -number;
}

int FailWithErrno(int number, std::string_view subject) noexcept {
  std::array<char, 256> words{};
  // The GNU variant: it may answer with a constant of its own instead of filling the buffer.
  return Fail(number, subject, strerror_r(number, words.data(), words.size()));
}

int FailAt(int number, std::string_view path, int64_t offset_bytes,
           std::string_view reason) noexcept {
  if (offset_bytes < 0) {
    return Fail(number, path, reason);
  }
  std::array<char, 48> place{};
  std::snprintf(place.data(), place.size(),
                " at byte %lld: ", static_cast<long long>(offset_bytes));
  Remember({path, place.data(), reason});
  last_error_offset = offset_bytes;
  return -number;
}

}  // namespace sparkserve

extern "C" const char* spn_last_error(void) { return sparkserve::last_error.data(); }

extern "C" int64_t spn_last_error_offset(void) { return sparkserve::last_error_offset; }

extern "C" uint32_t spn_abi_version(void) { return 2; }
