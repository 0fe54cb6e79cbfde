// A small test harness: tests register themselves, checks throw, main prints one line per test.

#ifndef SPARKSERVE_NATIVE_TESTS_HARNESS_H_
#define SPARKSERVE_NATIVE_TESTS_HARNESS_H_

#include <cstdint>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace testing {

// Thrown where something is missing on this machine; the reason is printed.
struct Skip : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Registration {
  Registration(const char* name, void (*body)());
};

[[noreturn]] void Fail(const char* file, int line, const std::string& what);

template <typename Left, typename Right>
void CheckEqual(const Left& left, const Right& right, const char* text, const char* file,
                int line) {
  if (!(left == right)) {
    std::ostringstream what;
    what << text << ": " << left << " against " << right;
    Fail(file, line, what.str());
  }
}

// A folder of this run on a real disk, removed at its end.
const std::string& Folder();

// Objects made with operator new since the program began.
uint64_t Allocations();

}  // namespace testing

#define TEST_JOIN2(a, b) a##b
#define TEST_JOIN(a, b) TEST_JOIN2(a, b)
#define TEST(name)                                                                                \
  static void TEST_JOIN(Test, __LINE__)();                                                        \
  static const testing::Registration TEST_JOIN(kTest, __LINE__)(name, TEST_JOIN(Test, __LINE__)); \
  static void TEST_JOIN(Test, __LINE__)()
#define CHECK(condition) ((condition) ? void() : testing::Fail(__FILE__, __LINE__, #condition))
#define CHECK_EQ(left, right) \
  testing::CheckEqual((left), (right), #left " == " #right, __FILE__, __LINE__)

#endif  // SPARKSERVE_NATIVE_TESTS_HARNESS_H_
