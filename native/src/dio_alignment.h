// What direct I/O on an open file demands.

#ifndef SPARKSERVE_NATIVE_DIO_ALIGNMENT_H_
#define SPARKSERVE_NATIVE_DIO_ALIGNMENT_H_

#include "sparkserve_native/c_api.h"

namespace sparkserve {

// As spn_get_dio_alignment, for an open file; `path` only names it in the error.
int GetDioAlignment(int fd, const char* path, spn_dio_alignment& out) noexcept;

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_DIO_ALIGNMENT_H_
