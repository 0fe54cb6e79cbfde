// The C interface of sparkserve's native code; everything else in the library is hidden.
//
// Errors:    every function returns 0, or -errno; the sentence for a person is then what
//            spn_last_error() gives on the same thread. No C++ exception leaves the library.
// Ownership: the caller owns every buffer it passes; the library keeps no pointer to it after
//            the call. Strings that the library returns stay its own.
// Threads:   all functions may be called from any thread at the same time.
// Versions:  structures only grow at their end. The caller sets struct_bytes to the size it was
//            compiled with; the library writes no byte beyond it.

#ifndef SPARKSERVE_NATIVE_C_API_H_
#define SPARKSERVE_NATIVE_C_API_H_

#include <stdint.h>

#define SPN_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

// Where an alignment comes from.
enum spn_dio_source {
  SPN_DIO_STATX = 1,    // the file system said so
  SPN_DIO_ASSUMED = 2,  // neither kernel nor file system says: 4096 for both
};

// How direct I/O on one file must be aligned.
struct spn_dio_alignment {
  uint32_t struct_bytes;  // in: sizeof(struct spn_dio_alignment)
  uint32_t source;        // out: enum spn_dio_source
  uint32_t memory_bytes;  // out: buffer addresses are multiples of this
  uint32_t offset_bytes;  // out: file offsets and lengths are multiples of this
};

// Ask how direct I/O on the file at `path` must be aligned (statx with STATX_DIOALIGN).
//
// Kernels before 6.1 and file systems without the answer (tmpfs, NFS) give SPN_DIO_ASSUMED with
// 4096, which is right for every logical block size up to a page.
//
// Returns 0; -EINVAL for a null argument or a struct_bytes that is too small; -EISDIR for a
// directory; -EOPNOTSUPP where the file system says that it does no direct I/O on this file;
// else what statx gave (-ENOENT, -EACCES, ...). On failure *out is unchanged.
SPN_API int spn_get_dio_alignment(const char* path, struct spn_dio_alignment* out);

// What went wrong in the last call on this thread that returned a negative number; "" if none
// did. Valid until the next call on this thread.
SPN_API const char* spn_last_error(void);

// Version of this interface; raised when a function or field changes its meaning.
SPN_API uint32_t spn_abi_version(void);

#ifdef __cplusplus
}
#endif

#endif  // SPARKSERVE_NATIVE_C_API_H_
