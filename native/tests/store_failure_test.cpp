#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "harness.h"
#include "opened.h"
#include "row_store/store.h"
#include "table.h"

namespace sparkserve {
namespace {

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

TEST("store: a file is opened so that reads wait for its disk") {
  RowFile file;  // one that takes no direct I/O
  CHECK(file.Open("/proc/self/status", 0).ok());
  CHECK(!file.direct());
  CHECK_EQ(fcntl(file.fd(), F_GETFL) & O_NONBLOCK, 0);
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

TEST("store: a file that loses its name keeps its rows") {
  for (bool replaced : {true, false}) {
    const Table table("renamed", 777, 4099);
    const Handle store = OpenStore(table.Config(SPN_ENGINE_AUTO, 0));
    const auto ids = Ids(9, 4099);
    Buffers before(ids.size());
    CHECK_EQ(Look(store, ids, before), 0);
    if (replaced) {
      const Table other("other", 777, 4099);
      CHECK_EQ(std::rename(other.path.c_str(), table.path.c_str()), 0);
    } else {
      CHECK_EQ(unlink(table.path.c_str()), 0);
    }
    Buffers after(ids.size());
    CHECK_EQ(Look(store, ids, after), 0);
    CHECK(after.weights == before.weights);
    CHECK(after.scales == before.scales);
  }
}

}  // namespace
}  // namespace sparkserve
