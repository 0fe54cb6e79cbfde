// What the benchmark compares with: the row reader that is usual elsewhere, written plainly.
//
// A pool of threads; a job wakes all of them (mutex, condition variable); each takes one id at a
// time from a ticket counter, asks the optional cache, reads the 4 KiB pages that hold the row
// with one direct pread and copies the row out. No duplicates are found, nothing is sorted.

#ifndef SPARKSERVE_NATIVE_BENCH_PREAD_POOL_H_
#define SPARKSERVE_NATIVE_BENCH_PREAD_POOL_H_

#include <stdint.h>

#define SPNB_API __attribute__((visibility("default")))

extern "C" {

struct spnb_pool;

// A pool of `threads` threads, the caller's included, over rows of `row_bytes` (at most 4096) from
// `data_offset_bytes` on. The cache is set-associative with round-robin victims; 0 bytes = none.
// Returns null with errno set where the file cannot be opened for direct reads.
SPNB_API spnb_pool* spnb_pool_open(const char* path, uint64_t data_offset_bytes, uint32_t row_bytes,
                                   uint32_t threads, uint64_t cache_bytes, uint32_t cache_ways);

// Rows of `ids` (ids are rows) to `rows`, back to back. 0, or -1 after a failed read.
SPNB_API int spnb_pool_lookup(spnb_pool* pool, const int64_t* ids, uint64_t count, uint8_t* rows);

SPNB_API uint64_t spnb_pool_hits(const spnb_pool* pool);

SPNB_API void spnb_pool_close(spnb_pool* pool);
}

#endif  // SPARKSERVE_NATIVE_BENCH_PREAD_POOL_H_
