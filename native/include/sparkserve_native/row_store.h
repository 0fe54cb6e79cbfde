// The row store: exact rows of a packed table, read from a file with direct I/O.
//
// A table has ids 0..total_ids-1. A file holds the rows of some of them back to back; segments
// say which id lies in which row. A row is weight_bytes of weights followed by scale_bytes of
// scales. A lookup gives, for each id in the caller's order, its row, or a row of zeros where no
// segment holds the id.
//
// Promise:   a lookup gives exactly the file's bytes or fails; after a failure its buffers hold
//            zeros and the store can be used again. Failures name the path and, where there is
//            one, the byte offset (spn_last_error, spn_last_error_offset).
// Threads:   every function but spn_store_close may be called from any thread at the same time;
//            lookups of one store run one after the other.
// Callbacks: lookups take no memory, call no Python and no CUDA, so that they may run inside
//            cudaLaunchHostFunc.
// Fork:      a store belongs to the process that opened it; in a child every call but
//            spn_store_close answers -EOWNERDEAD.

#ifndef SPARKSERVE_NATIVE_ROW_STORE_H_
#define SPARKSERVE_NATIVE_ROW_STORE_H_

#include <stdint.h>

#include "sparkserve_native/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

// Opaque; owned by the caller between spn_store_open and spn_store_close.
struct spn_store;

// How rows are read.
enum spn_engine {
  SPN_ENGINE_AUTO = 0,      // io_uring, or pread where the kernel refuses it
  SPN_ENGINE_IO_URING = 1,  // io_uring or an error
  SPN_ENGINE_PREAD = 2,     // a pool of threads
};

// A run of ids that the file holds: id -> row first_row + (id - first_id).
struct spn_segment {
  int64_t first_id;
  int64_t end_id;  // one past the last; greater than first_id
  int64_t first_row;
};

struct spn_store_config {
  uint32_t struct_bytes;               // sizeof(struct spn_store_config)
  uint32_t engine;                     // enum spn_engine
  const char* path;                    // a regular file
  uint64_t data_offset_bytes;          // where row 0 begins; any alignment
  uint64_t rows;                       // rows in the file; fewer than 2^32 - 1
  uint64_t total_ids;                  // ids of the whole table
  uint32_t weight_bytes;               // at least 1; weights and scales together at most 1 MiB
  uint32_t scale_bytes;                // may be 0
  const struct spn_segment* segments;  // ascending by first_id, without overlap
  uint64_t segment_count;              // at most 4096
  uint64_t cache_bytes;                // hard limit of the row cache, all of it; 0 = no cache
  uint32_t cache_ways;                 // 1..16
  uint32_t queue_depth;                // reads in flight with io_uring, 1..4096
  uint32_t threads;                    // reads in flight with pread, 1..1024, the caller's included
  uint32_t gap_bytes;                  // rows no further apart are read together
  uint64_t max_ids;                    // 1..2^24; longer lookups are done in pieces of this
};

// One lookup, at an address that does not change while it is in use (CUDA graphs bake it in).
// The caller sets struct_bytes and the five input fields and zeroes the rest; input may change
// between lookups but not during one.
struct spn_lookup_job {
  uint32_t struct_bytes;        // sizeof(struct spn_lookup_job)
  uint32_t state;               // the library's; 0 = at rest
  struct spn_store* store;      // in
  const int64_t* ids;           // in: count ids
  uint64_t count;               // in: may be 0
  uint8_t* weights;             // in: room for count * weight_bytes
  uint8_t* scales;              // in: room for count * scale_bytes; null = whole rows in weights
  struct spn_lookup_job* next;  // the library's
  int32_t result;               // out: 0 or -errno of the last lookup
  int32_t reserved;
  int64_t error_offset_bytes;  // out: -1 where the error belongs to no byte of the file
  char error[256];             // out: the reason, "" after success
};

// Sums since the store was opened, and what it is. Every owned id counts as one hit or one miss.
struct spn_store_stats {
  uint32_t struct_bytes;  // in: sizeof(struct spn_store_stats)
  uint32_t engine;        // enum spn_engine, never AUTO
  uint64_t lookups;       // that succeeded
  uint64_t failed_lookups;
  uint64_t ids;        // asked for
  uint64_t owned_ids;  // of these, held by a segment = hits + misses
  uint64_t hits;
  uint64_t misses;      // duplicates within one lookup count each time
  uint64_t unique_ids;  // distinct rows among the misses of each lookup
  uint64_t extents;     // reads planned after joining near rows
  uint64_t reads;       // reads asked of the kernel; more than extents after short reads
  uint64_t bytes_read;
  uint64_t p50_job_ns;  // time of a lookup from call to return, within 7 %
  uint64_t p99_job_ns;
  uint64_t cache_bytes;  // rows, keys and marks; at most the configured limit
  uint64_t cache_slots;  // rows that the cache can hold
  uint64_t arena_bytes;  // working memory besides the cache
  uint32_t cache_ways;
  uint32_t queue_depth;         // reads in flight at most
  uint32_t direct_io;           // 1, or 0 where the file system refused O_DIRECT
  uint32_t alignment_bytes;     // of direct reads; 1 if direct_io is 0
  uint32_t registered_buffers;  // io_uring: 1 where the kernel took the buffers beforehand
  uint32_t reserved;
  char engine_reason[256];  // why this engine
};

// Open a store.
//
// Returns 0 and the store in *out; -EINVAL for a configuration that contradicts itself; -ENODATA
// for a file shorter than its rows; -ENOSYS, -EPERM, -ENOMEM, ... with SPN_ENGINE_IO_URING where
// the kernel refuses it; else what the system gave (-ENOENT, -EACCES, -EISDIR, ...).
SPN_API int spn_store_open(const struct spn_store_config* config, struct spn_store** out);

// Look up `count` ids now, on this thread. `scales` null = whole rows back to back in `weights`.
//
// Returns 0; -ERANGE for an id outside 0..total_ids-1; -EIO, or what the system gave, for a read
// that failed; -ENODATA for one that ended early; -ESTALE for a file that was written to or cut
// since it was opened; -EOWNERDEAD in a forked child.
SPN_API int spn_store_lookup(struct spn_store* store, const int64_t* ids, uint64_t count,
                             uint8_t* weights, uint8_t* scales);

// The same for a job; also fills its out fields. -EBUSY for a job that is submitted.
SPN_API int spn_store_run(struct spn_lookup_job* job);

// Queue a job for the store's own thread, which takes jobs in the order of submission, and return
// at once. -EBUSY for a job that is submitted already. Every submitted job must be waited for.
SPN_API int spn_store_submit(struct spn_lookup_job* job);

// Wait for a submitted job and return its result. -EINVAL for a job that was not submitted.
SPN_API int spn_store_wait(struct spn_lookup_job* job);

// For cudaLaunchHostFunc; `job` is a struct spn_lookup_job*. A failure writes one line
// "sparkserve: FATAL engram_rows {json}" to stderr and ends the process with code 78: there is
// nobody to return an error to, and a wrong row must not be served.
SPN_API void spn_store_host_callback(void* job);         // run
SPN_API void spn_store_host_submit_callback(void* job);  // submit
SPN_API void spn_store_host_wait_callback(void* job);    // wait

// Fill *out, as far as its struct_bytes reaches.
SPN_API int spn_store_get_stats(struct spn_store* store, struct spn_store_stats* out);

// Finish queued jobs, end the threads and free everything. No other call may be under way or
// follow. Null is allowed. In a forked child only the handle is given up.
SPN_API void spn_store_close(struct spn_store* store);

// Byte offset that belongs to spn_last_error(), or -1.
SPN_API int64_t spn_last_error_offset(void);

#ifdef __cplusplus
}
#endif

#endif  // SPARKSERVE_NATIVE_ROW_STORE_H_
