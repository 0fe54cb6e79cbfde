#include "row_store/engine.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

#include "harness.h"

namespace sparkserve {
namespace {

constexpr uint32_t kCap = 8192;
constexpr uint32_t kFileBytes = 64 * 4096 + 1000;  // the last sector is not whole

uint8_t ByteAt(uint64_t offset) { return static_cast<uint8_t>(offset * 2654435761u >> 13); }

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags) : fd_(open(path.c_str(), flags, 0600)) {
    CHECK(fd_ >= 0);
  }
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  operator int() const { return fd_; }

 private:
  int fd_;
};

std::string MakeFile() {
  const std::string path = testing::Folder() + "/bytes";
  const Descriptor file(path, O_WRONLY | O_CREAT | O_TRUNC);
  std::vector<uint8_t> bytes(kFileBytes);
  for (uint64_t at = 0; at < bytes.size(); ++at) {
    bytes[at] = ByteAt(at);
  }
  CHECK_EQ(write(file, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  CHECK_EQ(fsync(file), 0);
  return path;
}

int DirectOrSkip(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECT);
  if (fd < 0) {
    throw testing::Skip("no direct I/O in " + path);
  }
  close(fd);
  return O_RDONLY | O_DIRECT;
}

enum class Kind { kUring, kPread };

std::unique_ptr<Engine> Make(Kind kind, int fd, uint32_t alignment, uint32_t depth) {
  std::unique_ptr<Engine> engine;
  const EngineOptions options{fd, kCap, alignment};
  const Status status = kind == Kind::kUring ? MakeUringEngine(options, depth, engine)
                                             : MakePreadEngine(options, depth, engine);
  if (kind == Kind::kUring && !status.ok()) {
    throw testing::Skip(status.reason);
  }
  CHECK_EQ(status.number, 0);
  return engine;
}

class CheckBytes final : public Sink {
 public:
  void Deliver(const Extent& extent, const uint8_t* bytes) noexcept override {
    for (uint32_t at = 0; at < extent.needed_bytes; ++at) {
      if (bytes[at] != ByteAt(extent.offset_bytes + at)) {
        wrong.fetch_add(1);
      }
    }
    delivered.fetch_add(1);
  }
  std::atomic<uint64_t> delivered = 0;
  std::atomic<uint64_t> wrong = 0;
};

void ReadsAll(Kind kind, uint32_t depth) {
  const std::string path = MakeFile();
  const Descriptor file(path, DirectOrSkip(path));
  const auto engine = Make(kind, file, 4096, depth);
  std::vector<Extent> extents;
  for (uint32_t i = 0; i < 1000; ++i) {
    extents.push_back({uint64_t{i % 64} * 4096, 4096, 4096 - i % 7, 0, 0});
  }
  // Shorter than asked for, but all that is needed.
  extents.push_back({64 * 4096, 4096, 1000, 0, 0});
  for (int round = 0; round < 3; ++round) {
    CheckBytes sink;
    ReadCounts counts;
    CHECK_EQ(engine->Read(extents, sink, counts).number, 0);
    CHECK_EQ(sink.delivered.load(), extents.size());
    CHECK_EQ(sink.wrong.load(), 0u);
    CHECK_EQ(counts.reads, extents.size());
    CHECK_EQ(counts.bytes, 1000u * 4096 + 1000);
  }
}

TEST("io_uring: reads every extent, at any depth") {
  for (uint32_t depth : {1u, 3u, 64u, 128u}) {
    ReadsAll(Kind::kUring, depth);
  }
}

TEST("pread: reads every extent, with any number of threads") {
  for (uint32_t threads : {1u, 2u, 32u}) {
    ReadsAll(Kind::kPread, threads);
  }
}

void NothingToRead(Kind kind) {
  const Descriptor file(MakeFile(), O_RDONLY);
  CheckBytes sink;
  ReadCounts counts;
  CHECK(Make(kind, file, 1, 4)->Read({}, sink, counts).ok());
  CHECK_EQ(counts.reads, 0u);
}

TEST("io_uring: no extents are no reads") { NothingToRead(Kind::kUring); }
TEST("pread: no extents are no reads") { NothingToRead(Kind::kPread); }

// One bad extent among many good ones: its error, and the engine works on.
void Fails(Kind kind, const Extent& bad, int number, uint64_t offset_bytes, int flags) {
  const std::string path = MakeFile();
  if (flags & O_DIRECT) {
    DirectOrSkip(path);
  }
  const Descriptor file(path, O_RDONLY | flags);
  const auto engine = Make(kind, file, 512, 16);
  std::vector<Extent> good(300, Extent{8192, 4096, 4096, 0, 0});
  std::vector<Extent> mixed = good;
  mixed[150] = bad;
  for (int round = 0; round < 3; ++round) {
    CheckBytes sink;
    ReadCounts counts;
    const Status status = engine->Read(mixed, sink, counts);
    CHECK_EQ(status.number, number);
    CHECK_EQ(status.offset_bytes, static_cast<int64_t>(offset_bytes));
    CHECK(sink.delivered < mixed.size());
    CHECK_EQ(sink.wrong.load(), 0u);
    CheckBytes again;
    CHECK(engine->Read(good, again, counts).ok());
    CHECK_EQ(again.delivered.load(), good.size());
    CHECK_EQ(again.wrong.load(), 0u);
  }
}

TEST("io_uring: a read that the kernel refuses is an error with its offset") {
  Fails(Kind::kUring, {1001, 4096, 4096, 0, 0}, EINVAL, 1001, O_DIRECT);
}
TEST("pread: a read that the kernel refuses is an error with its offset") {
  Fails(Kind::kPread, {1001, 4096, 4096, 0, 0}, EINVAL, 1001, O_DIRECT);
}
TEST("io_uring: the end of the file within a row is an error") {
  Fails(Kind::kUring, {64 * 4096, 4096, 1001, 0, 0}, ENODATA, kFileBytes, O_DIRECT);
}
TEST("pread: the end of the file within a row is an error") {
  Fails(Kind::kPread, {64 * 4096, 4096, 1001, 0, 0}, ENODATA, kFileBytes, O_DIRECT);
}
TEST("io_uring: a read beyond the end of the file is an error") {
  Fails(Kind::kUring, {100 * 4096, 4096, 10, 0, 0}, ENODATA, 100 * 4096, 0);
}
TEST("pread: a read beyond the end of the file is an error") {
  Fails(Kind::kPread, {100 * 4096, 4096, 10, 0, 0}, ENODATA, 100 * 4096, 0);
}

// A file of the kernel that really answers EIO, and stops short before it: our own memory, where
// one page of a file is mapped and the next lies beyond the file's end.
class OwnMemory {
 public:
  OwnMemory() : file("/proc/self/mem", O_RDONLY) {
    const Descriptor backing(testing::Folder() + "/page", O_RDWR | O_CREAT | O_TRUNC);
    CHECK_EQ(ftruncate(backing, 4096), 0);
    void* at = mmap(nullptr, 2 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, backing, 0);
    CHECK(at != MAP_FAILED);
    page = static_cast<uint8_t*>(at);
    for (uint32_t i = 0; i < 4096; ++i) {
      page[i] = ByteAt(Offset() + i);
    }
    uint8_t byte = 0;
    if (pread(file, &byte, 1, static_cast<off_t>(Offset())) != 1 || byte != page[0]) {
      throw testing::Skip("this machine's /proc/self/mem is not our memory");
    }
  }
  ~OwnMemory() { munmap(page, 2 * 4096); }
  uint64_t Offset() const { return reinterpret_cast<uint64_t>(page); }

  uint8_t* page;
  const Descriptor file;
};

void InputOutputError(Kind kind) {
  const OwnMemory memory;
  const auto engine = Make(kind, memory.file, 1, 8);
  const Extent good{memory.Offset(), 4096, 4096, 0, 0};
  for (int round = 0; round < 3; ++round) {
    CheckBytes sink;
    ReadCounts counts;
    Status status =
        engine->Read(std::vector{good, {memory.Offset() + 4096, 64, 64, 0, 0}}, sink, counts);
    CHECK_EQ(status.number, EIO);
    CHECK_EQ(status.offset_bytes, static_cast<int64_t>(memory.Offset() + 4096));
    // Starts well, stops short: asked for again from there, where the error is.
    counts = {};
    status =
        engine->Read(std::vector{Extent{memory.Offset() + 4000, 200, 200, 0, 0}}, sink, counts);
    CHECK_EQ(status.number, EIO);
    CHECK_EQ(status.offset_bytes, static_cast<int64_t>(memory.Offset() + 4096));
    CHECK_EQ(counts.reads, 2u);
    CHECK_EQ(counts.bytes, 96u);
    CheckBytes again;
    CHECK(engine->Read(std::vector{good}, again, counts).ok());
    CHECK_EQ(again.delivered.load(), 1u);
    CHECK_EQ(again.wrong.load() + sink.wrong.load(), 0u);
  }
}

TEST("io_uring: an input/output error after a short read names the byte") {
  InputOutputError(Kind::kUring);
}
TEST("pread: an input/output error after a short read names the byte") {
  InputOutputError(Kind::kPread);
}

}  // namespace
}  // namespace sparkserve
