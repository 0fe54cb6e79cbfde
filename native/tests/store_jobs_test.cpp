#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <latch>
#include <string>
#include <thread>

#include "harness.h"
#include "opened.h"
#include "row_store/job_queue.h"
#include "table.h"

namespace sparkserve {
namespace {

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

// An engine whose reads go on only when the test says so.
class HeldEngine final : public Engine {
 public:
  explicit HeldEngine(std::unique_ptr<Engine> real) : real_(std::move(real)) {}
  Status Read(std::span<const Extent> extents, Sink& sink, ReadCounts& counts) noexcept override {
    entered.count_down();
    released.wait();
    return real_->Read(extents, sink, counts);
  }
  uint32_t depth() const noexcept override { return real_->depth(); }
  uint64_t arena_bytes() const noexcept override { return real_->arena_bytes(); }

  std::latch entered{1};
  std::latch released{1};

 private:
  std::unique_ptr<Engine> real_;
};

TEST("store: a job that another thread runs was not submitted, and cannot be waited for") {
  const Table table("directjob", 777, 300);
  const int fd = open(table.path.c_str(), O_RDONLY);
  CHECK(fd >= 0);
  {
    std::unique_ptr<Engine> real;
    CHECK(MakePreadEngine({fd, 32768, 1}, 1, real).ok());
    auto made = std::make_unique<HeldEngine>(std::move(real));
    HeldEngine& engine = *made;
    Store store;
    CHECK(store.Open(table.Config(SPN_ENGINE_PREAD, 0), std::move(made)).ok());
    JobQueue queue;
    CHECK(queue.Start(store).ok());
    const std::vector<int64_t> ids{1, 2, 299};
    Buffers out(ids.size());
    spn_lookup_job job{};
    job.ids = ids.data();
    job.count = ids.size();
    job.weights = out.weights.data();
    job.scales = out.scales.data();
    int ran = -1;
    std::thread runner([&] { ran = queue.Run(job).number; });
    engine.entered.wait();
    const int waited = queue.Wait(job).number;
    const int submitted = queue.Submit(job).number;
    engine.released.count_down();
    runner.join();
    CHECK_EQ(waited, EINVAL);
    CHECK_EQ(submitted, EBUSY);
    CHECK_EQ(ran, 0);
    out.Check(table, ids);
  }
  close(fd);
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

}  // namespace
}  // namespace sparkserve
