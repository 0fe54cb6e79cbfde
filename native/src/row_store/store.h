// A store: filter owned ids, ask the cache, plan and read what is missing, hand rows out.

#ifndef SPARKSERVE_NATIVE_ROW_STORE_STORE_H_
#define SPARKSERVE_NATIVE_ROW_STORE_STORE_H_

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "row_store/cache.h"
#include "row_store/engine.h"
#include "row_store/planner.h"
#include "row_store/row_file.h"
#include "row_store/segments.h"
#include "row_store/stats.h"
#include "row_store/status.h"
#include "sparkserve_native/row_store.h"

namespace sparkserve {

// Where the rows of a lookup go; `scales` null = whole rows back to back in `weights`.
struct Output {
  uint8_t* weights;
  uint8_t* scales;
};

class Store {
 public:
  // Opens the file, checks that it holds its rows, and makes everything a lookup needs.
  // `made` replaces the engine (tests); null = the one that the configuration names.
  Status Open(const spn_store_config& config, std::unique_ptr<Engine> made = nullptr);

  // Contract: spn_store_lookup. One at a time; others wait.
  Status Lookup(const int64_t* ids, uint64_t count, Output out) noexcept;

  void FillStats(spn_store_stats& out) noexcept;

  const char* path() const noexcept { return path_.c_str(); }
  bool forked() const noexcept { return getpid() != process_; }

 private:
  class Scatter;

  Status Check(const spn_store_config& config) noexcept;
  Status MakeEngine(const spn_store_config& config);
  Status LookupPiece(const int64_t* ids, std::size_t count, Output out,
                     Counters& counters) noexcept;
  Status Probe(const int64_t* ids, std::size_t count, Output out, Counters& counters) noexcept;
  Status ReadMisses(Output out, Counters& counters) noexcept;
  void CopyRow(const uint8_t* row, Output out, std::size_t position) const noexcept;
  void ZeroRows(Output out, std::size_t position, std::size_t count) const noexcept;
  Output Later(Output out, std::size_t positions) const noexcept;

  std::string path_;
  pid_t process_ = 0;
  uint32_t weight_bytes_ = 0;
  uint32_t scale_bytes_ = 0;
  std::size_t max_ids_ = 0;
  RowFile file_;
  Segments segments_;
  Cache cache_;
  Planner planner_;
  std::unique_ptr<Engine> engine_;
  uint32_t engine_kind_ = SPN_ENGINE_PREAD;
  std::string engine_reason_;

  std::mutex lookup_mutex_;  // over cache_, planner_, engine_ and stale_
  Status stale_;             // once the file was found changed, every lookup says so
  std::mutex cache_mutex_;   // over inserts while an engine with several threads delivers
  std::mutex stats_mutex_;
  Counters counters_;
  Histogram times_;
};

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_ROW_STORE_STORE_H_
