#include "error.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "sparkserve_native/c_api.h"

namespace sparkserve {
namespace {

// A fixed buffer: reporting an error must not itself fail for want of memory.
thread_local std::array<char, 4608> last_error{};

}  // namespace

int Fail(int number, std::string_view subject, std::string_view reason) noexcept {
  char* at = last_error.data();
  char* const end = at + last_error.size() - 1;
  for (std::string_view part : {subject, std::string_view(": "), reason}) {
    const auto room = static_cast<std::size_t>(end - at);
    at = std::copy_n(part.data(), std::min(part.size(), room), at);
  }
  *at = '\0';
  return -number;
}

int FailWithErrno(int number, std::string_view subject) noexcept {
  std::array<char, 256> words{};
  // The GNU variant: it may answer with a constant of its own instead of filling the buffer.
  return Fail(number, subject, strerror_r(number, words.data(), words.size()));
}

}  // namespace sparkserve

extern "C" const char* spn_last_error(void) { return sparkserve::last_error.data(); }

extern "C" uint32_t spn_abi_version(void) { return 1; }
