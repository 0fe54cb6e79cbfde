// Errors on their way to the C interface: a number for the program, a sentence for the person.

#ifndef SPARKSERVE_NATIVE_ERROR_H_
#define SPARKSERVE_NATIVE_ERROR_H_

#include <cstdint>
#include <string_view>

namespace sparkserve {

// Remember "<subject>: <reason>" for this thread and return -number.
int Fail(int number, std::string_view subject, std::string_view reason) noexcept;

// The same with the system's own words for `number`.
int FailWithErrno(int number, std::string_view subject) noexcept;

// Remember "<path> at byte <offset>: <reason>", or without the offset where it is negative.
int FailAt(int number, std::string_view path, int64_t offset_bytes,
           std::string_view reason) noexcept;

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_ERROR_H_
