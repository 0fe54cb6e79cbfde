#include "harness.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <string_view>

namespace {

struct Test {
  const char* name;
  void (*body)();
};

std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

std::string folder;
std::atomic<uint64_t> allocations = 0;

}  // namespace

// Counted, so that a test can tell that a lookup takes no memory.
void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* at = std::malloc(bytes)) {
    return at;
  }
  throw std::bad_alloc();
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }

namespace testing {

Registration::Registration(const char* name, void (*body)()) { Tests().push_back({name, body}); }

void Fail(const char* file, int line, const std::string& what) {
  throw std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + what);
}

const std::string& Folder() { return folder; }

uint64_t Allocations() { return allocations.load(std::memory_order_relaxed); }

}  // namespace testing

// usage: row_store_test FOLDER [PART OF A NAME]; runs the tests, files go below FOLDER.
int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: %s FOLDER [PART OF A NAME]\n", arguments[0]);
    return 2;
  }
  folder = std::string(arguments[1]) + "/row-store-test-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return 2;
  }
  int failed = 0;
  int ran = 0;
  for (const Test& test : Tests()) {
    if (count > 2 && std::string_view(test.name).find(arguments[2]) == std::string_view::npos) {
      continue;
    }
    ++ran;
    try {
      test.body();
      std::printf("ok       %s\n", test.name);
    } catch (const testing::Skip& reason) {
      std::printf("skipped  %s: %s\n", test.name, reason.what());
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED   %s: %s\n", test.name, error.what());
    }
    std::fflush(stdout);
  }
  std::filesystem::remove_all(folder);
  std::printf("%d tests, %d failed\n", ran, failed);
  return failed == 0 && ran > 0 ? 0 : 1;
}
