#include "row_store/store.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

namespace sparkserve {
namespace {

constexpr uint64_t kMostRows = UINT32_MAX - 1;  // a cache key is row + 1, 32 bits wide
constexpr uint64_t kMostRowBytes = uint64_t{1} << 20;
constexpr uint64_t kMostIds = uint64_t{1} << 24;
constexpr uint64_t kMostSegments = 4096;
constexpr uint32_t kPage = 4096;
constexpr uint32_t kLongestExtent = 32 * 1024;
constexpr uint32_t kBufferBytes = 8 * 1024 * 1024;  // the usual limit of locked memory
// Ids looked at together, so that their cache lines arrive while others are being worked on.
constexpr std::size_t kBatch = 16;

uint32_t ExtentCap(uint32_t row_bytes, uint32_t depth) noexcept {
  const uint32_t least = (row_bytes + 3 * kPage - 1) / kPage * kPage;
  const uint32_t share = kBufferBytes / depth / kPage * kPage;
  return std::max(least, std::min(kLongestExtent, share));
}

}  // namespace

// Hands the rows of an extent to the places that asked for them, and to the cache.
class Store::Scatter final : public Sink {
 public:
  Scatter(Store& store, Output out) noexcept : store_(store), out_(out) {}

  void Deliver(const Extent& extent, const uint8_t* bytes) noexcept override {
    const Planner& planner = store_.planner_;
    const auto row_of = [&](uint32_t unique) {
      return bytes + (planner.geometry().RowOffset(planner.Row(unique)) - extent.offset_bytes);
    };
    const uint32_t end = extent.first + extent.count;
    for (uint32_t unique = extent.first; unique < end; ++unique) {
      planner.ForEachPosition(
          unique, [&](uint32_t position) { store_.CopyRow(row_of(unique), out_, position); });
    }
    if (store_.cache_.enabled()) {
      std::lock_guard lock(store_.cache_mutex_);
      for (uint32_t unique = extent.first; unique < end; ++unique) {
        store_.cache_.Insert(planner.Row(unique), row_of(unique));
      }
    }
  }

 private:
  Store& store_;
  const Output out_;
};

Status Store::Check(const spn_store_config& config) noexcept {
  const uint64_t row_bytes = uint64_t{config.weight_bytes} + config.scale_bytes;
  if (config.weight_bytes == 0 || row_bytes > kMostRowBytes) {
    return Failure(EINVAL, -1, "rows of %u + %u bytes, expected 1..%llu with some weights",
                   config.weight_bytes, config.scale_bytes,
                   static_cast<unsigned long long>(kMostRowBytes));
  }
  if (config.rows > kMostRows) {
    return Failure(EINVAL, -1, "%llu rows, expected at most %llu",
                   static_cast<unsigned long long>(config.rows),
                   static_cast<unsigned long long>(kMostRows));
  }
  if (config.cache_ways < 1 || config.cache_ways > 16) {
    return Failure(EINVAL, -1, "cache_ways %u, expected 1..16", config.cache_ways);
  }
  if (config.queue_depth < 1 || config.queue_depth > 4096) {
    return Failure(EINVAL, -1, "queue_depth %u, expected 1..4096", config.queue_depth);
  }
  if (config.threads < 1 || config.threads > 1024) {
    return Failure(EINVAL, -1, "threads %u, expected 1..1024", config.threads);
  }
  if (config.max_ids < 1 || config.max_ids > kMostIds) {
    return Failure(EINVAL, -1, "max_ids %llu, expected 1..%llu",
                   static_cast<unsigned long long>(config.max_ids),
                   static_cast<unsigned long long>(kMostIds));
  }
  if (config.segment_count > kMostSegments ||
      (config.segment_count > 0 && config.segments == nullptr)) {
    return Failure(EINVAL, -1, "%llu segments, expected an array of at most %llu",
                   static_cast<unsigned long long>(config.segment_count),
                   static_cast<unsigned long long>(kMostSegments));
  }
  return segments_.Prepare({config.segments, config.segment_count}, config.total_ids, config.rows);
}

Status Store::Open(const spn_store_config& config, std::unique_ptr<Engine> made) {
  path_ = config.path;
  process_ = getpid();
  weight_bytes_ = config.weight_bytes;
  scale_bytes_ = config.scale_bytes;
  max_ids_ = config.max_ids;
  if (Status status = Check(config); !status.ok()) {
    return status;
  }
  const uint32_t row_bytes = weight_bytes_ + scale_bytes_;
  const uint64_t data = config.rows * row_bytes;
  if (config.data_offset_bytes > static_cast<uint64_t>(INT64_MAX) - data) {
    return Failure(EINVAL, -1, "data_offset_bytes %llu is no offset of a file",
                   static_cast<unsigned long long>(config.data_offset_bytes));
  }
  if (Status status = file_.Open(config.path, config.data_offset_bytes); !status.ok()) {
    return status;
  }
  const uint64_t end = config.data_offset_bytes + data;
  if (file_.size_bytes() < end) {
    return Failure(ENODATA, static_cast<int64_t>(file_.size_bytes()),
                   "the file ends here, expected %llu bytes for %llu rows",
                   static_cast<unsigned long long>(end),
                   static_cast<unsigned long long>(config.rows));
  }
  if (Status status = cache_.Prepare(config.cache_bytes, config.cache_ways, row_bytes);
      !status.ok()) {
    return status;
  }
  const Geometry geometry{config.data_offset_bytes, row_bytes, file_.alignment_bytes(),
                          config.gap_bytes,
                          ExtentCap(row_bytes, std::max(config.queue_depth, config.threads))};
  if (Status status = planner_.Prepare(geometry, config.rows, max_ids_); !status.ok()) {
    return status;
  }
  engine_ = std::move(made);
  engine_kind_ = config.engine;
  return engine_ != nullptr ? Status{} : MakeEngine(config);
}

Status Store::MakeEngine(const spn_store_config& config) {
  const EngineOptions options{file_.fd(), planner_.geometry().extent_cap_bytes,
                              file_.alignment_bytes()};
  engine_reason_ = config.engine == SPN_ENGINE_AUTO ? "the kernel offers it" : "asked for";
  engine_kind_ = SPN_ENGINE_IO_URING;
  if (config.engine != SPN_ENGINE_PREAD) {
    Status status = MakeUringEngine(options, config.queue_depth, engine_);
    if (!status.ok() && config.engine == SPN_ENGINE_IO_URING) {
      return status;
    }
    engine_reason_ = status.ok() ? engine_reason_ : status.reason;
  }
  if (engine_ == nullptr) {
    engine_kind_ = SPN_ENGINE_PREAD;
    if (Status status = MakePreadEngine(options, config.threads, engine_); !status.ok()) {
      return status;
    }
  }
  if (!file_.direct()) {
    engine_reason_ += "; through the page cache: the file system refuses direct I/O";
  }
  return {};
}

Status Store::Lookup(const int64_t* ids, uint64_t count, Output out) noexcept {
  const auto began = std::chrono::steady_clock::now();
  Counters counters;
  counters.ids = count;
  Status status;
  {
    std::lock_guard lock(lookup_mutex_);
    status = stale_;
    for (uint64_t done = 0; done < count && status.ok(); done += max_ids_) {
      const auto piece = static_cast<std::size_t>(std::min<uint64_t>(count - done, max_ids_));
      status = LookupPiece(ids + done, piece, Later(out, done), counters);
    }
    if (status.ok()) {
      // Checked after the reads: rows that were read before the file changed are exact.
      status = stale_ = file_.Unchanged();
    }
  }
  if (!status.ok()) {
    ZeroRows(out, 0, count);
    counters = {};
    counters.failed_lookups = 1;
  } else {
    counters.lookups = 1;
  }
  const auto took = std::chrono::steady_clock::now() - began;
  std::lock_guard lock(stats_mutex_);
  counters_.Add(counters);
  if (status.ok()) {
    times_.Add(static_cast<uint64_t>(std::chrono::nanoseconds(took).count()));
  }
  return status;
}

Status Store::LookupPiece(const int64_t* ids, std::size_t count, Output out,
                          Counters& counters) noexcept {
  planner_.Clear();
  if (Status status = Probe(ids, count, out, counters); !status.ok()) {
    return status;
  }
  return planner_.misses() > 0 ? ReadMisses(out, counters) : Status{};
}

// Hand out what the cache has and zeros for ids that are not owned; plan the rest.
Status Store::Probe(const int64_t* ids, std::size_t count, Output out,
                    Counters& counters) noexcept {
  std::array<uint32_t, kBatch> rows;
  std::array<const uint8_t*, kBatch> found{};
  for (std::size_t begin = 0; begin < count; begin += kBatch) {
    const std::size_t batch = std::min(kBatch, count - begin);
    for (std::size_t i = 0; i < batch; ++i) {
      const int64_t id = ids[begin + i];
      if (!segments_.InTable(id)) {
        return Failure(ERANGE, -1, "id %lld, expected 0 <= id < %lld", static_cast<long long>(id),
                       static_cast<long long>(segments_.total_ids()));
      }
      rows[i] = segments_.Row(id);
      if (cache_.enabled() && rows[i] != Segments::kNotOwned) {
        cache_.Prefetch(rows[i]);
      }
    }
    for (std::size_t i = 0; i < batch && cache_.enabled(); ++i) {
      found[i] = rows[i] != Segments::kNotOwned ? cache_.Find(rows[i]) : nullptr;
      if (found[i] != nullptr) {
        cache_.PrefetchBytes(found[i]);
      }
    }
    for (std::size_t i = 0; i < batch; ++i) {
      if (rows[i] == Segments::kNotOwned) {
        ZeroRows(out, begin + i, 1);
        continue;
      }
      ++counters.owned_ids;
      if (found[i] != nullptr) {
        ++counters.hits;
        CopyRow(found[i], out, begin + i);
      } else {
        ++counters.misses;
        planner_.Add(rows[i], static_cast<uint32_t>(begin + i));
      }
    }
  }
  return {};
}

Status Store::ReadMisses(Output out, Counters& counters) noexcept {
  const std::span<const Extent> extents = planner_.Plan();
  Scatter scatter(*this, out);
  ReadCounts read;
  Status status = engine_->Read(extents, scatter, read);
  counters.unique_ids += planner_.unique_rows();
  counters.extents += extents.size();
  counters.reads += read.reads;
  counters.bytes_read += read.bytes;
  return status;
}

void Store::CopyRow(const uint8_t* row, Output out, std::size_t position) const noexcept {
  if (out.scales == nullptr) {
    const std::size_t row_bytes = weight_bytes_ + scale_bytes_;
    std::memcpy(out.weights + position * row_bytes, row, row_bytes);
    return;
  }
  std::memcpy(out.weights + position * weight_bytes_, row, weight_bytes_);
  std::memcpy(out.scales + position * scale_bytes_, row + weight_bytes_, scale_bytes_);
}

void Store::ZeroRows(Output out, std::size_t position, std::size_t count) const noexcept {
  const Output from = Later(out, position);
  if (count == 0) {
    return;
  }
  if (out.scales == nullptr) {
    std::memset(from.weights, 0, count * (weight_bytes_ + scale_bytes_));
    return;
  }
  std::memset(from.weights, 0, count * weight_bytes_);
  std::memset(from.scales, 0, count * scale_bytes_);
}

// The output that begins `positions` rows later.
Output Store::Later(Output out, std::size_t positions) const noexcept {
  if (out.scales == nullptr) {
    return {out.weights + positions * (weight_bytes_ + scale_bytes_), nullptr};
  }
  return {out.weights + positions * weight_bytes_, out.scales + positions * scale_bytes_};
}

void Store::FillStats(spn_store_stats& out) noexcept {
  {
    std::lock_guard lock(stats_mutex_);
    out.lookups = counters_.lookups;
    out.failed_lookups = counters_.failed_lookups;
    out.ids = counters_.ids;
    out.owned_ids = counters_.owned_ids;
    out.hits = counters_.hits;
    out.misses = counters_.misses;
    out.unique_ids = counters_.unique_ids;
    out.extents = counters_.extents;
    out.reads = counters_.reads;
    out.bytes_read = counters_.bytes_read;
    out.p50_job_ns = times_.Quantile(50);
    out.p99_job_ns = times_.Quantile(99);
  }
  out.engine = engine_kind_;
  out.cache_bytes = cache_.bytes();
  out.cache_slots = cache_.slots();
  out.cache_ways = cache_.ways();
  out.arena_bytes = planner_.arena_bytes() + engine_->arena_bytes();
  out.queue_depth = engine_->depth();
  out.direct_io = file_.direct() ? 1 : 0;
  out.alignment_bytes = file_.alignment_bytes();
  out.registered_buffers = engine_->registered_buffers() ? 1 : 0;
  const std::size_t length = std::min(engine_reason_.size(), sizeof out.engine_reason - 1);
  std::memcpy(out.engine_reason, engine_reason_.data(), length);
  out.engine_reason[length] = '\0';
}

}  // namespace sparkserve
