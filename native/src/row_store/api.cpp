// The C interface of the row store: checks arguments, keeps exceptions in, names the path.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>

#include "error.h"
#include "row_store/job_queue.h"
#include "row_store/status.h"
#include "row_store/store.h"
#include "sparkserve_native/row_store.h"

struct spn_store {
  sparkserve::Store store;
  sparkserve::JobQueue jobs;  // ends before the store
};

namespace sparkserve {
namespace {

int Answer(const char* path, const Status& status) noexcept {
  return status.ok() ? 0 : FailAt(status.number, path, status.offset_bytes, status.reason);
}

// 0, or why a store cannot be used here.
int Refusal(const spn_store* store) noexcept {
  if (store == nullptr) {
    return Fail(EINVAL, "row store", "none, or it is closed");
  }
  if (store->store.forked()) {
    return Fail(EOWNERDEAD, store->store.path(),
                "the row store was opened by another process; open one after the fork");
  }
  return 0;
}

bool Usable(const void* at, uint64_t count) noexcept { return at != nullptr || count == 0; }

int Refusal(const spn_lookup_job* job) noexcept {
  if (job == nullptr || job->struct_bytes < sizeof(spn_lookup_job)) {
    return Fail(EINVAL, "row store", "no job, or its struct_bytes is too small");
  }
  if (int refused = Refusal(job->store); refused != 0) {
    return refused;
  }
  if (!Usable(job->ids, job->count) || !Usable(job->weights, job->count)) {
    return Fail(EINVAL, job->store->store.path(), "a job with a null buffer");
  }
  return 0;
}

template <typename Operation>
int OnJob(void* pointer, Operation operation) noexcept {
  auto* job = static_cast<spn_lookup_job*>(pointer);
  if (int refused = Refusal(job); refused != 0) {
    return refused;
  }
  return Answer(job->store->store.path(), (job->store->jobs.*operation)(*job));
}

int Open(const spn_store_config& config, spn_store*& out) {
  auto made = std::make_unique<spn_store>();
  Status status = made->store.Open(config);
  if (status.ok()) {
    status = made->jobs.Start(made->store);
  }
  if (status.ok()) {
    out = made.release();
  }
  return Answer(config.path, status);
}

}  // namespace
}  // namespace sparkserve

using sparkserve::Fail;
using sparkserve::JobQueue;

extern "C" int spn_store_open(const spn_store_config* config, spn_store** out) {
  if (config == nullptr || out == nullptr) {
    return Fail(EINVAL, "spn_store_open", "a null argument");
  }
  if (config->struct_bytes < sizeof(spn_store_config) || config->path == nullptr) {
    return Fail(EINVAL, "spn_store_open", "no path, or struct_bytes is too small");
  }
  if (config->engine > SPN_ENGINE_PREAD) {
    return Fail(EINVAL, config->path, "no such engine");
  }
  try {
    return sparkserve::Open(*config, *out);
  } catch (const std::bad_alloc&) {
    return Fail(ENOMEM, config->path, "no memory for the row store");
  } catch (const std::exception& error) {
    return Fail(EIO, config->path, error.what());
  }
}

extern "C" int spn_store_lookup(spn_store* store, const int64_t* ids, uint64_t count,
                                uint8_t* weights, uint8_t* scales) {
  if (int refused = sparkserve::Refusal(store); refused != 0) {
    return refused;
  }
  if (!sparkserve::Usable(ids, count) || !sparkserve::Usable(weights, count)) {
    return Fail(EINVAL, store->store.path(), "a null buffer");
  }
  return sparkserve::Answer(store->store.path(),
                            store->store.Lookup(ids, count, {weights, scales}));
}

extern "C" int spn_store_run(spn_lookup_job* job) { return sparkserve::OnJob(job, &JobQueue::Run); }

extern "C" int spn_store_submit(spn_lookup_job* job) {
  return sparkserve::OnJob(job, &JobQueue::Submit);
}

extern "C" int spn_store_wait(spn_lookup_job* job) {
  return sparkserve::OnJob(job, &JobQueue::Wait);
}

extern "C" int spn_store_get_stats(spn_store* store, spn_store_stats* out) {
  if (int refused = sparkserve::Refusal(store); refused != 0) {
    return refused;
  }
  if (out == nullptr || out->struct_bytes < offsetof(spn_store_stats, lookups)) {
    return Fail(EINVAL, store->store.path(), "no statistics, or struct_bytes is too small");
  }
  spn_store_stats all{};
  all.struct_bytes = out->struct_bytes;
  store->store.FillStats(all);
  std::memcpy(out, &all, std::min<std::size_t>(out->struct_bytes, sizeof all));
  return 0;
}

extern "C" void spn_store_close(spn_store* store) {
  // In a forked child the threads do not exist and locks may be held: nothing can be freed.
  if (store != nullptr && !store->store.forked()) {
    delete store;
  }
}
