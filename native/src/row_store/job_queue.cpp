#include "row_store/job_queue.h"

#include <cerrno>
#include <cstdio>

#include "row_store/thread.h"

namespace sparkserve {
namespace {

Status Outcome(const spn_lookup_job& job) noexcept {
  if (job.result == 0) {
    return {};
  }
  return Failure(-job.result, job.error_offset_bytes, "%s", job.error);
}

Status Busy() noexcept { return Failure(EBUSY, -1, "the job is under way already"); }

}  // namespace

JobQueue::~JobQueue() {
  if (thread_.joinable()) {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_one();
    thread_.join();
  }
}

Status JobQueue::Start(Store& store) {
  store_ = &store;
  return StartThread("spn-jobs", thread_, [this] { Serve(); });
}

Status JobQueue::Run(spn_lookup_job& job) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (job.state != kAtRest) {
      return Busy();
    }
    job.state = kDirect;
  }
  Look(job);
  std::lock_guard lock(mutex_);
  job.state = kAtRest;
  return Outcome(job);
}

Status JobQueue::Submit(spn_lookup_job& job) noexcept {
  {
    std::lock_guard lock(mutex_);
    if (job.state != kAtRest) {
      return Busy();
    }
    job.state = kQueued;
    job.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &job;
    last_ = &job;
  }
  work_.notify_one();
  return {};
}

Status JobQueue::Wait(spn_lookup_job& job) noexcept {
  std::unique_lock lock(mutex_);
  if (job.state == kAtRest || job.state == kDirect) {
    return Failure(EINVAL, -1, "the job was not submitted");
  }
  done_.wait(lock, [&job] { return job.state == kDone || job.state == kAtRest; });
  job.state = kAtRest;
  return Outcome(job);
}

void JobQueue::Serve() noexcept {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return first_ != nullptr || stopping_; });
    if (first_ == nullptr) {
      return;
    }
    spn_lookup_job& job = *first_;
    first_ = job.next;
    job.state = kRunning;
    lock.unlock();
    Look(job);
    lock.lock();
    job.state = kDone;
    done_.notify_all();
  }
}

void JobQueue::Look(spn_lookup_job& job) noexcept {
  const Status status = store_->Lookup(job.ids, job.count, {job.weights, job.scales});
  job.result = -status.number;
  job.error_offset_bytes = status.offset_bytes;
  std::snprintf(job.error, sizeof job.error, "%s", status.reason);
}

}  // namespace sparkserve
