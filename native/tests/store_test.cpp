#include "row_store/store.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "harness.h"
#include "table.h"

namespace sparkserve {
namespace {

constexpr uint64_t kSeventeenSlots = 17 * (kRowBytes + 8);

struct Closer {
  void operator()(spn_store* store) const { spn_store_close(store); }
};
using Handle = std::unique_ptr<spn_store, Closer>;

Handle OpenStore(const spn_store_config& config) {
  spn_store* store = nullptr;
  const int result = spn_store_open(&config, &store);
  if (result != 0 && config.engine == SPN_ENGINE_IO_URING && result != -EINVAL) {
    throw testing::Skip(spn_last_error());
  }
  CHECK_EQ(result, 0);
  return Handle(store);
}

spn_store_stats StatsOf(const Handle& store) {
  spn_store_stats stats{};
  stats.struct_bytes = sizeof stats;
  CHECK_EQ(spn_store_get_stats(store.get(), &stats), 0);
  return stats;
}

int Look(const Handle& store, const std::vector<int64_t>& ids, Buffers& out) {
  return spn_store_lookup(store.get(), ids.data(), ids.size(), out.weights.data(),
                          out.scales.data());
}

// About 1007 ids: any, many twice, and rows 15..17, of which some lie on two pages.
std::vector<int64_t> Ids(uint32_t seed, int64_t total_ids) {
  std::mt19937 random(seed);
  std::vector<int64_t> ids(1000 + seed % 15);
  for (int64_t& id : ids) {
    id = static_cast<int64_t>(random() % static_cast<uint64_t>(total_ids));
  }
  for (std::size_t i = 0; i < 300; ++i) {
    ids[random() % ids.size()] = ids[random() % ids.size()];
  }
  for (int64_t id : {0, 15, 16, 17, 15}) {
    ids[random() % ids.size()] = id;
  }
  ids[random() % ids.size()] = total_ids - 1;
  return ids;
}

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

TEST("store: an id outside the table fails, gives zeros, and the store works on") {
  const Table table("range", 777, 300);
  const Handle store = OpenStore(table.Config(SPN_ENGINE_AUTO, 1 << 20));
  for (int64_t wrong : {int64_t{-1}, int64_t{300}, INT64_MIN, INT64_MAX, int64_t{1} << 32}) {
    std::vector<int64_t> ids = Ids(8, 300);
    Buffers out(ids.size());
    CHECK_EQ(Look(store, ids, out), 0);
    ids[ids.size() / 2] = wrong;
    CHECK_EQ(Look(store, ids, out), -ERANGE);
    CHECK(std::strstr(spn_last_error(), table.path.c_str()) != nullptr);
    CHECK(std::strstr(spn_last_error(), std::to_string(wrong).c_str()) != nullptr);
    CHECK(out.AllZero());
    ids[ids.size() / 2] = 3;
    CHECK_EQ(Look(store, ids, out), 0);
    out.Check(table, ids);
  }
  CHECK_EQ(StatsOf(store).failed_lookups, 5u);
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

// An engine whose reads fail where the test says so, after half of them were delivered.
class FailingEngine final : public Engine {
 public:
  FailingEngine(std::unique_ptr<Engine> real, const bool& failing)
      : real_(std::move(real)), failing_(failing) {}
  Status Read(std::span<const Extent> extents, Sink& sink, ReadCounts& counts) noexcept override {
    if (!failing_) {
      return real_->Read(extents, sink, counts);
    }
    Status status = real_->Read(extents.first(extents.size() / 2), sink, counts);
    return status.ok() ? ReadFailure(extents.back(), 0, -EIO) : status;
  }
  uint32_t depth() const noexcept override { return real_->depth(); }
  uint64_t arena_bytes() const noexcept override { return real_->arena_bytes(); }

 private:
  std::unique_ptr<Engine> real_;
  const bool& failing_;
};

TEST("store: after a failed read the buffers hold zeros and later rows are exact") {
  for (uint64_t cache_bytes : {uint64_t{0}, kSeventeenSlots, uint64_t{4} << 20}) {
    const Table table("failing", 777, 4099);
    const int fd = open(table.path.c_str(), O_RDONLY);
    CHECK(fd >= 0);
    std::unique_ptr<Engine> real;
    CHECK(MakePreadEngine({fd, 32768, 1}, 4, real).ok());
    bool failing = false;
    Store store;
    CHECK(store
              .Open(table.Config(SPN_ENGINE_PREAD, cache_bytes),
                    std::make_unique<FailingEngine>(std::move(real), failing))
              .ok());
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const auto ids = Ids(seed, 4099);
      Buffers out(ids.size());
      failing = seed % 3 == 1;
      const Status status =
          store.Lookup(ids.data(), ids.size(), {out.weights.data(), out.scales.data()});
      if (failing && !status.ok()) {
        CHECK_EQ(status.number, EIO);
        CHECK(status.offset_bytes >= 0);
        CHECK(out.AllZero());
      } else {
        CHECK(status.ok());
        out.Check(table, ids);
      }
    }
    spn_store_stats stats{};
    store.FillStats(stats);
    CHECK(stats.failed_lookups > 0);
    CHECK_EQ(stats.hits + stats.misses, stats.owned_ids);
    close(fd);
  }
}

TEST("store: a file that is shorter than its rows is refused, at the byte where it ends") {
  for (uint64_t missing : {1u, 264u, 4096u, 50000u}) {
    const Table table("short", 777, 300);
    CHECK_EQ(truncate(table.path.c_str(), static_cast<off_t>(table.FileBytes() - missing)), 0);
    const spn_store_config config = table.Config(SPN_ENGINE_AUTO, 0);
    spn_store* store = nullptr;
    CHECK_EQ(spn_store_open(&config, &store), -ENODATA);
    CHECK(store == nullptr);
    CHECK_EQ(spn_last_error_offset(), static_cast<int64_t>(table.FileBytes() - missing));
    CHECK(std::strstr(spn_last_error(), table.path.c_str()) != nullptr);
  }
}

// What happens to a file behind an open store, and that no row is given afterwards.
template <typename Change>
void Changes(uint32_t engine, Change change) {
  const Table table("changing", 777, 4099);
  const Handle store = OpenStore(table.Config(engine, 1 << 20));
  const auto ids = Ids(9, 4099);
  Buffers out(ids.size());
  CHECK_EQ(Look(store, ids, out), 0);
  change(table);
  for (int round = 0; round < 3; ++round) {
    for (uint32_t seed : {9u, 10u}) {
      const auto other = Ids(seed, 4099);
      Buffers none(other.size());
      const int result = Look(store, other, none);
      CHECK(result == -ESTALE || result == -ENODATA);
      CHECK(none.AllZero());
      CHECK(std::strstr(spn_last_error(), table.path.c_str()) != nullptr);
    }
  }
}

void Rewrite(const Table& table) {
  // The clock of a file system may stand still for some milliseconds.
  struct stat before {};
  struct stat after {};
  CHECK_EQ(stat(table.path.c_str(), &before), 0);
  const int fd = open(table.path.c_str(), O_WRONLY);
  do {
    CHECK_EQ(pwrite(fd, "x", 1, 5000), 1);
    CHECK_EQ(fstat(fd, &after), 0);
  } while (before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
  close(fd);
}

TEST("store: a file that is cut later is an error from then on") {
  for (uint32_t engine : {SPN_ENGINE_PREAD, SPN_ENGINE_AUTO}) {
    Changes(engine, [](const Table& table) { CHECK_EQ(truncate(table.path.c_str(), 200'001), 0); });
  }
}

TEST("store: a file that was cut and made as long again is an error from then on") {
  Changes(SPN_ENGINE_AUTO, [](const Table& table) {
    Rewrite(table);
    CHECK_EQ(truncate(table.path.c_str(), 5000), 0);
    CHECK_EQ(truncate(table.path.c_str(), static_cast<off_t>(table.FileBytes())), 0);
  });
}

TEST("store: a file that is written to is an error from then on") {
  Changes(SPN_ENGINE_AUTO, Rewrite);
}

TEST("store: a file that is replaced by another is an error from then on") {
  Changes(SPN_ENGINE_AUTO, [](const Table& table) {
    const Table other("other", 777, 4099);
    CHECK_EQ(std::rename(other.path.c_str(), table.path.c_str()), 0);
  });
}

TEST("store: a file that is removed is an error from then on") {
  Changes(SPN_ENGINE_AUTO, [](const Table& table) { CHECK_EQ(unlink(table.path.c_str()), 0); });
}

TEST("store: submitted jobs of many threads give exact rows") {
  const Table table("jobs", 777, 4099);
  const Handle store = OpenStore(table.Config(SPN_ENGINE_AUTO, kSeventeenSlots));
  std::atomic<int> failed = 0;
  std::vector<std::thread> callers;
  for (uint32_t caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&, caller] {
      try {
        for (uint32_t seed = 0; seed < 12; ++seed) {
          const auto ids = Ids(seed * 4 + caller, 4099);
          const auto few = Ids(seed, 300);
          Buffers first(ids.size());
          Buffers second(few.size());
          spn_lookup_job one{sizeof one,
                             0,
                             store.get(),
                             ids.data(),
                             ids.size(),
                             first.weights.data(),
                             first.scales.data(),
                             nullptr,
                             0,
                             0,
                             0,
                             ""};
          spn_lookup_job two{sizeof two,
                             0,
                             store.get(),
                             few.data(),
                             few.size(),
                             second.weights.data(),
                             second.scales.data(),
                             nullptr,
                             0,
                             0,
                             0,
                             ""};
          CHECK_EQ(spn_store_submit(&one), 0);
          CHECK_EQ(spn_store_submit(&one), -EBUSY);
          CHECK_EQ(spn_store_submit(&two), 0);
          CHECK_EQ(spn_store_wait(&two), 0);
          CHECK_EQ(spn_store_wait(&one), 0);
          CHECK_EQ(spn_store_wait(&one), -EINVAL);
          first.Check(table, ids);
          second.Check(table, few);
          first.Poison();
          CHECK_EQ(spn_store_run(&one), 0);
          first.Check(table, ids);
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
}

TEST("store: a submitted job that fails says so when it is waited for") {
  const Table table("failjob", 777, 300);
  const Handle store = OpenStore(table.Config(SPN_ENGINE_AUTO, 0));
  std::vector<int64_t> ids{1, 2, 300};
  Buffers out(3);
  spn_lookup_job job{
      sizeof job,        0,       store.get(), ids.data(), ids.size(), out.weights.data(),
      out.scales.data(), nullptr, 0,           0,          0,          ""};
  CHECK_EQ(spn_store_submit(&job), 0);
  CHECK_EQ(spn_store_wait(&job), -ERANGE);
  CHECK_EQ(job.result, -ERANGE);
  CHECK_EQ(job.error_offset_bytes, -1);
  CHECK(std::strstr(job.error, "300") != nullptr);
  CHECK(out.AllZero());
  ids[2] = 299;
  CHECK_EQ(spn_store_run(&job), 0);
  out.Check(table, ids);
  CHECK_EQ(std::string(job.error), "");
}

TEST("store: closing finishes the jobs that are queued") {
  const Table table("closing", 777, 4099);
  const auto ids = Ids(11, 4099);
  std::vector<Buffers> outs(8, Buffers(ids.size()));
  std::vector<spn_lookup_job> jobs(outs.size());
  {
    const Handle store = OpenStore(table.Config(SPN_ENGINE_AUTO, 0));
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      jobs[i] = {sizeof jobs[i],
                 0,
                 store.get(),
                 ids.data(),
                 ids.size(),
                 outs[i].weights.data(),
                 outs[i].scales.data(),
                 nullptr,
                 0,
                 0,
                 0,
                 ""};
      CHECK_EQ(spn_store_submit(&jobs[i]), 0);
    }
  }
  for (const Buffers& out : outs) {
    out.Check(table, ids);
  }
}

TEST("store: files of any length and content are refused or read exactly") {
  std::mt19937 random(12);
  const std::string path = testing::Folder() + "/garbage";
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<uint8_t> bytes(random() % 20000);
    for (uint8_t& byte : bytes) {
      byte = static_cast<uint8_t>(random());
    }
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    close(fd);
    const uint64_t offset = random() % 5000;
    const auto row_bytes = static_cast<uint32_t>(1 + random() % 600);
    const uint64_t rows = random() % 60;
    const spn_segment all{0, static_cast<int64_t>(rows), 0};
    spn_store_config config{};
    config = {sizeof config,
              turn % 2 == 0 ? SPN_ENGINE_AUTO : SPN_ENGINE_PREAD,
              path.c_str(),
              offset,
              rows,
              rows,
              row_bytes,
              0,
              &all,
              rows > 0,
              random() % 9000,
              4,
              8,
              3,
              4096,
              64};
    spn_store* opened = nullptr;
    const int result = spn_store_open(&config, &opened);
    const Handle store(opened);
    CHECK_EQ(result, bytes.size() >= offset + rows * row_bytes ? 0 : -ENODATA);
    if (result != 0 || rows == 0) {
      continue;
    }
    std::vector<int64_t> ids(50);
    for (int64_t& id : ids) {
      id = static_cast<int64_t>(random() % rows);
    }
    std::vector<uint8_t> out(ids.size() * row_bytes);
    CHECK_EQ(spn_store_lookup(store.get(), ids.data(), ids.size(), out.data(), nullptr), 0);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const uint8_t* wanted = bytes.data() + offset + static_cast<uint64_t>(ids[i]) * row_bytes;
      CHECK(std::equal(wanted, wanted + row_bytes, out.data() + i * row_bytes));
    }
  }
}

TEST("store: configurations of any numbers are refused or opened, never more") {
  std::mt19937_64 random(13);
  const Table table("config", 777, 300);
  const auto any = [&random]() -> uint64_t {
    const uint64_t near[] = {
        0, 1, 8, 264, 300, 301, 4096, UINT32_MAX, uint64_t{1} << 40, INT64_MAX, UINT64_MAX};
    return random() % 3 != 0 ? near[random() % std::size(near)] : random() >> random() % 64;
  };
  int opened = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    spn_segment segments[2] = {{0, 300, 0}, {300, 400, 0}};
    spn_store_config config = table.Config(SPN_ENGINE_PREAD, 0);
    config.threads = 2;
    config.segments = segments;
    config.segment_count = 1;
    const auto small = [&any] { return static_cast<uint32_t>(any()); };
    switch (turn % 12) {
      case 0:
        config.data_offset_bytes = any();
        break;
      case 1:
        config.rows = any();
        break;
      case 2:
        config.total_ids = any();
        break;
      case 3:
        config.weight_bytes = small();
        break;
      case 4:
        config.scale_bytes = small();
        break;
      case 5:
        segments[0].first_id = static_cast<int64_t>(any());
        break;
      case 6:
        segments[0].end_id = static_cast<int64_t>(any());
        break;
      case 7:
        segments[0].first_row = static_cast<int64_t>(any());
        break;
      case 8:
        config.segment_count = any();
        config.segment_count %= 3;
        break;
      case 9:
        config.cache_ways = small();
        break;
      case 10:
        config.gap_bytes = small();
        break;
      default:
        config.engine = small();
        config.queue_depth = small() % 300;
    }
    spn_store* store = nullptr;
    const int result = spn_store_open(&config, &store);
    const Handle handle(store);
    CHECK_EQ(result == 0, store != nullptr);
    CHECK(result == 0 || result == -EINVAL || result == -ENODATA || result == -ENOSYS);
    if (result == 0) {
      ++opened;
      std::vector<int64_t> ids{0, 299, 150};
      std::vector<uint8_t> out(ids.size() * (uint64_t{config.weight_bytes} + config.scale_bytes));
      const int looked = spn_store_lookup(store, ids.data(), ids.size(), out.data(), nullptr);
      CHECK(looked == 0 || looked == -ERANGE);
    }
  }
  CHECK(opened > 300);
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
