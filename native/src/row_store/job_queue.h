// Jobs of a store: done at once, or one after the other by a thread of their own.

#ifndef SPARKSERVE_NATIVE_ROW_STORE_JOB_QUEUE_H_
#define SPARKSERVE_NATIVE_ROW_STORE_JOB_QUEUE_H_

#include <condition_variable>
#include <mutex>
#include <thread>

#include "row_store/status.h"
#include "row_store/store.h"
#include "sparkserve_native/row_store.h"

namespace sparkserve {

class JobQueue {
 public:
  JobQueue() = default;
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;
  // Finishes the jobs that are queued.
  ~JobQueue();

  // `store` outlives the queue.
  Status Start(Store& store);

  // Contracts: spn_store_run, spn_store_submit, spn_store_wait. Nothing is allocated: the queue
  // is a chain through the jobs.
  Status Run(spn_lookup_job& job) noexcept;
  Status Submit(spn_lookup_job& job) noexcept;
  Status Wait(spn_lookup_job& job) noexcept;

 private:
  // kDirect: Run does it, so that there is nothing to wait for.
  enum State : uint32_t { kAtRest = 0, kQueued = 1, kRunning = 2, kDone = 3, kDirect = 4 };

  void Serve() noexcept;
  void Look(spn_lookup_job& job) noexcept;

  Store* store_ = nullptr;
  std::mutex mutex_;  // over the chain and every job's state
  std::condition_variable work_;
  std::condition_variable done_;
  spn_lookup_job* first_ = nullptr;
  spn_lookup_job* last_ = nullptr;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_ROW_STORE_JOB_QUEUE_H_
