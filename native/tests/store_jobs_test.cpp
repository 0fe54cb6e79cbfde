#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "harness.h"
#include "opened.h"
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
