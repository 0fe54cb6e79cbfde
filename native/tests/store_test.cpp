#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <thread>

#include "harness.h"
#include "opened.h"
#include "table.h"

namespace sparkserve {
namespace {

void FourCallers(uint32_t engine, uint64_t cache_bytes) {
  Table table("four", 777, 4099);
  // Three runs with holes, out of the file's order, and ids that nobody holds at the end.
  table.segments = {{10, 1500, 2609}, {1500, 2000, 0}, {2100, 4200, 500}};
  table.total_ids = 5000;
  const Handle store = OpenStore(table.Config(engine, cache_bytes));
  std::atomic<int> failed = 0;
  std::atomic<uint64_t> asked = 0;
  std::vector<std::thread> callers;
  for (uint32_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      try {
        for (uint32_t seed = 0; seed < 12; ++seed) {
          const auto ids = Ids(seed * 4 + caller, static_cast<int64_t>(table.total_ids));
          Buffers out(ids.size());
          CHECK_EQ(Look(store, ids, out), 0);
          out.Check(table, ids);
          asked += ids.size();
        }
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        ++failed;
      }
    });
  }
  for (std::thread& caller : callers) {
    caller.join();
  }
  CHECK_EQ(failed.load(), 0);
  const spn_store_stats stats = StatsOf(store);
  CHECK_EQ(stats.lookups, 48u);
  CHECK_EQ(stats.ids, asked.load());
  CHECK_EQ(stats.hits + stats.misses, stats.owned_ids);
  CHECK(stats.owned_ids < stats.ids);
  CHECK(stats.unique_ids < stats.misses);
  CHECK(stats.cache_bytes <= cache_bytes);
  CHECK((stats.hits > 0) == (cache_bytes > 0));
  CHECK_EQ(stats.cache_slots, cache_bytes == kSeventeenSlots ? 16u : stats.cache_slots);
}

TEST("store: four callers get exact rows, io_uring, no cache") {
  FourCallers(SPN_ENGINE_IO_URING, 0);
}
TEST("store: four callers get exact rows, io_uring, a cache of 17 rows") {
  FourCallers(SPN_ENGINE_IO_URING, kSeventeenSlots);
}
TEST("store: four callers get exact rows, io_uring, a cache for all rows") {
  FourCallers(SPN_ENGINE_IO_URING, 2 * 4099 * (kRowBytes + 8));
}
TEST("store: four callers get exact rows, pread, no cache") { FourCallers(SPN_ENGINE_PREAD, 0); }
TEST("store: four callers get exact rows, pread, a cache of 17 rows") {
  FourCallers(SPN_ENGINE_PREAD, kSeventeenSlots);
}
TEST("store: four callers get exact rows, pread, a cache for all rows") {
  FourCallers(SPN_ENGINE_PREAD, 2 * 4099 * (kRowBytes + 8));
}

TEST("store: whole rows back to back are the same bytes") {
  const Table table("whole", 777, 300);
  const Handle store = OpenStore(table.Config(SPN_ENGINE_AUTO, kSeventeenSlots));
  const auto ids = Ids(5, 300);
  std::vector<uint8_t> rows(ids.size() * kRowBytes, 0xA5);
  for (int round = 0; round < 2; ++round) {
    CHECK_EQ(spn_store_lookup(store.get(), ids.data(), ids.size(), rows.data(), nullptr), 0);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const uint8_t* row = &rows[i * kRowBytes];
      table.CheckRow(ids[i], row, row + kWeightBytes);
    }
  }
}

TEST("store: a lookup longer than its working memory is done in pieces") {
  const Table table("pieces", 4096, 4099);
  spn_store_config config = table.Config(SPN_ENGINE_AUTO, kSeventeenSlots);
  config.max_ids = 100;
  const Handle store = OpenStore(config);
  const auto ids = Ids(6, 4099);
  Buffers out(ids.size());
  CHECK_EQ(Look(store, ids, out), 0);
  out.Check(table, ids);
}

TEST("store: a lookup takes no memory from the heap") {
  const Table table("heap", 4096, 4099);
  for (uint32_t engine : {SPN_ENGINE_AUTO, SPN_ENGINE_PREAD}) {
    const Handle store = OpenStore(table.Config(engine, kSeventeenSlots));
    const auto ids = Ids(7, 4099);
    Buffers out(ids.size());
    const uint64_t before = testing::Allocations();
    for (int round = 0; round < 3; ++round) {
      if (Look(store, ids, out) != 0) {
        break;
      }
    }
    const uint64_t after = testing::Allocations();
    CHECK_EQ(after, before);
    out.Check(table, ids);
  }
}

TEST("store: rows beyond 2^31 and 4 GiB are found") {
  // A sparse file: only the last row has bytes.
  Table table("sparse", 777, 1);
  table.rows = 2'200'000'000;
  table.total_ids = 3'000'000'000;
  table.segments = {{500'000'000, 2'700'000'000, 0}};
  const int fd = open(table.path.c_str(), O_WRONLY);
  std::vector<uint8_t> row(kRowBytes);
  for (uint32_t i = 0; i < kRowBytes; ++i) {
    row[i] = TableByte(table.rows - 1, i);
  }
  const auto at = static_cast<off_t>(table.FileBytes() - kRowBytes);
  if (pwrite(fd, row.data(), row.size(), at) != static_cast<ssize_t>(row.size())) {
    close(fd);
    throw testing::Skip("no sparse file of 580 GB here");
  }
  CHECK_EQ(fsync(fd), 0);
  close(fd);
  const Handle store = OpenStore(table.Config(SPN_ENGINE_AUTO, 1 << 20));
  Buffers out(3);
  for (int round = 0; round < 2; ++round) {
    CHECK_EQ(Look(store, {2'699'999'999, 500'000'000, 2'700'000'000}, out), 0);
    table.CheckRow(2'699'999'999, out.weights.data(), out.scales.data());
    table.CheckRow(500'000'000, &out.weights[kWeightBytes], &out.scales[kScaleBytes]);
    table.CheckRow(2'700'000'000, &out.weights[2 * kWeightBytes], &out.scales[2 * kScaleBytes]);
  }
}

TEST("store: null arguments and structures that are too small are errors") {
  const Table table("null", 777, 300);
  spn_store_config config = table.Config(SPN_ENGINE_PREAD, 0);
  spn_store* store = nullptr;
  CHECK_EQ(spn_store_open(nullptr, &store), -EINVAL);
  CHECK_EQ(spn_store_open(&config, nullptr), -EINVAL);
  config.struct_bytes -= 1;
  CHECK_EQ(spn_store_open(&config, &store), -EINVAL);
  config = table.Config(SPN_ENGINE_PREAD, 0);
  config.path = nullptr;
  CHECK_EQ(spn_store_open(&config, &store), -EINVAL);
  const Handle good = OpenStore(table.Config(SPN_ENGINE_PREAD, 0));
  CHECK_EQ(spn_store_lookup(nullptr, nullptr, 0, nullptr, nullptr), -EINVAL);
  CHECK_EQ(spn_store_lookup(good.get(), nullptr, 1, nullptr, nullptr), -EINVAL);
  CHECK_EQ(spn_store_lookup(good.get(), nullptr, 0, nullptr, nullptr), 0);
  CHECK_EQ(spn_store_run(nullptr), -EINVAL);
  spn_lookup_job job{};
  CHECK_EQ(spn_store_submit(&job), -EINVAL);
  job.struct_bytes = sizeof job;
  CHECK_EQ(spn_store_submit(&job), -EINVAL);
  spn_store_stats stats{};
  CHECK_EQ(spn_store_get_stats(good.get(), &stats), -EINVAL);
  // An older caller's shorter structure is filled as far as it goes.
  stats.struct_bytes = offsetof(spn_store_stats, ids);
  stats.ids = 4711;
  CHECK_EQ(spn_store_get_stats(good.get(), &stats), 0);
  CHECK_EQ(stats.lookups, 1u);
  CHECK_EQ(stats.ids, 4711u);
  spn_store_close(nullptr);
}

}  // namespace
}  // namespace sparkserve
