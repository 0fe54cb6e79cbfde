#include "row_store/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace sparkserve {
namespace {

// Our own names: the kernel's headers on a machine are often older than its kernel.
constexpr uint32_t kCoopTaskrun = 1u << 8;    // Linux 5.19
constexpr uint32_t kSingleIssuer = 1u << 12;  // Linux 6.0
constexpr uint32_t kDeferTaskrun = 1u << 13;  // Linux 6.1: the waiter wakes once per batch
constexpr uint32_t kEnterGetEvents = 1u << 0;
constexpr uint32_t kFeatureSingleMap = 1u << 0;
constexpr uint64_t kProof = ~uint64_t{0};
constexpr std::array kModes{kSingleIssuer | kDeferTaskrun, kCoopTaskrun, 0u};

// The number in /proc/sys/kernel/io_uring_disabled, or '0' where there is none.
char DisabledBySysctl() noexcept {
  char digit = '0';
  const int fd = open("/proc/sys/kernel/io_uring_disabled", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    if (read(fd, &digit, 1) != 1) {
      digit = '0';
    }
    close(fd);
  }
  return digit;
}

Status SetupFailure(int number) noexcept {
  const char disabled = DisabledBySysctl();
  const char* why = "";
  if (number == EPERM) {
    why = disabled == '0' ? " (seccomp? containers block io_uring by default)"
                          : " (sysctl kernel.io_uring_disabled is set)";
  } else if (number == ENOSYS) {
    why = " (a kernel without io_uring, or seccomp)";
  } else if (number == ENOMEM) {
    why = " (locked memory? see ulimit -l)";
  }
  std::array<char, 128> words{};
  return Failure(number, -1, "io_uring_setup: %s%s", strerror_r(number, words.data(), words.size()),
                 why);
}

}  // namespace

Ring::~Ring() {
  if (entries_ != nullptr) {
    munmap(entries_, entries_bytes_);
  }
  if (rings_ != nullptr) {
    munmap(rings_, rings_bytes_);
  }
  if (fd_ >= 0) {
    close(fd_);
  }
}

Status Ring::Open(uint32_t depth) noexcept {
  io_uring_params params{};
  if (Status status = Setup(depth, params); !status.ok()) {
    return status;
  }
  if ((params.features & kFeatureSingleMap) == 0) {
    return Failure(ENOSYS, -1, "io_uring_setup: a kernel before 5.4");
  }
  if (Status status = Map(params); !status.ok()) {
    return status;
  }
  return Prove();
}

Status Ring::Setup(uint32_t depth, io_uring_params& params) noexcept {
  int number = EINVAL;
  for (uint32_t mode : kModes) {
    params = {};
    params.flags = mode;
    const long made = syscall(__NR_io_uring_setup, depth, &params);
    if (made >= 0) {
      fd_ = static_cast<int>(made);
      return {};
    }
    number = errno;
    if (number != EINVAL) {
      break;
    }
  }
  return SetupFailure(number);
}

Status Ring::Map(const io_uring_params& params) noexcept {
  rings_bytes_ =
      std::max<std::size_t>(params.sq_off.array + params.sq_entries * sizeof(uint32_t),
                            params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
  entries_bytes_ = params.sq_entries * sizeof(io_uring_sqe);
  constexpr int kReadWrite = PROT_READ | PROT_WRITE;
  constexpr int kFlags = MAP_SHARED | MAP_POPULATE;
  void* rings = mmap(nullptr, rings_bytes_, kReadWrite, kFlags, fd_, IORING_OFF_SQ_RING);
  if (rings == MAP_FAILED) {
    return SystemFailure(errno, -1, "io_uring: mapping the rings");
  }
  rings_ = rings;
  void* entries = mmap(nullptr, entries_bytes_, kReadWrite, kFlags, fd_, IORING_OFF_SQES);
  if (entries == MAP_FAILED) {
    return SystemFailure(errno, -1, "io_uring: mapping the entries");
  }
  entries_ = static_cast<io_uring_sqe*>(entries);
  madvise(rings_, rings_bytes_, MADV_DONTFORK);
  madvise(entries_, entries_bytes_, MADV_DONTFORK);
  auto* base = static_cast<char*>(rings_);
  submit_tail_ = reinterpret_cast<Index*>(base + params.sq_off.tail);
  submit_mask_ = *reinterpret_cast<uint32_t*>(base + params.sq_off.ring_mask);
  tail_ = submitted_ = submit_tail_->load(std::memory_order_relaxed);
  // Entry i always stands at place i, so this table is written once.
  auto* order = reinterpret_cast<uint32_t*>(base + params.sq_off.array);
  for (uint32_t i = 0; i < params.sq_entries; ++i) {
    order[i] = i;
  }
  result_head_ = reinterpret_cast<Index*>(base + params.cq_off.head);
  result_tail_ = reinterpret_cast<Index*>(base + params.cq_off.tail);
  result_mask_ = *reinterpret_cast<uint32_t*>(base + params.cq_off.ring_mask);
  results_ = reinterpret_cast<io_uring_cqe*>(base + params.cq_off.cqes);
  return {};
}

// A filter may allow io_uring_setup and block io_uring_enter.
Status Ring::Prove() noexcept {
  io_uring_sqe& entry = Next();
  entry.opcode = IORING_OP_NOP;
  entry.user_data = kProof;
  int result = 0;
  do {
    result = Submit(1);
  } while (result == -EINTR);
  if (result < 0) {
    return SystemFailure(-result, -1, "io_uring_enter");
  }
  const io_uring_cqe* answer = Peek();
  if (answer == nullptr || answer->user_data != kProof || answer->res != 0) {
    return Failure(EIO, -1, "io_uring: an empty request was not answered rightly");
  }
  Pop();
  return {};
}

bool Ring::RegisterFile(int fd) noexcept {
  return syscall(__NR_io_uring_register, fd_, IORING_REGISTER_FILES, &fd, 1) == 0;
}

void Ring::UnregisterFile() noexcept {
  syscall(__NR_io_uring_register, fd_, IORING_UNREGISTER_FILES, nullptr, 0);
}

bool Ring::RegisterBuffer(void* data, std::size_t bytes) noexcept {
  iovec buffer{data, bytes};
  return syscall(__NR_io_uring_register, fd_, IORING_REGISTER_BUFFERS, &buffer, 1) == 0;
}

io_uring_sqe& Ring::Next() noexcept {
  io_uring_sqe& entry = entries_[tail_++ & submit_mask_];
  std::memset(&entry, 0, sizeof entry);
  return entry;
}

int Ring::Submit(uint32_t completions) noexcept {
  submit_tail_->store(tail_, std::memory_order_release);
  const uint32_t waiting = tail_ - submitted_;
  const long taken =
      syscall(__NR_io_uring_enter, fd_, waiting, completions, kEnterGetEvents, nullptr, 0);
  if (taken < 0) {
    return -errno;
  }
  submitted_ += static_cast<uint32_t>(taken);
  return 0;
}

const io_uring_cqe* Ring::Peek() const noexcept {
  const uint32_t head = result_head_->load(std::memory_order_relaxed);
  if (head == result_tail_->load(std::memory_order_acquire)) {
    return nullptr;
  }
  return &results_[head & result_mask_];
}

void Ring::Pop() noexcept {
  result_head_->store(result_head_->load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

}  // namespace sparkserve
