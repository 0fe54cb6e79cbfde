#include "row_store/cache.h"

#include <map>
#include <random>
#include <vector>

#include "harness.h"

namespace sparkserve {
namespace {

constexpr uint32_t kRowBytes = 264;
constexpr uint64_t kSlotBytes = kRowBytes + 4;

std::vector<uint8_t> RowOf(uint32_t row, uint32_t version) {
  std::vector<uint8_t> bytes(kRowBytes);
  std::minstd_rand random(row * 31 + version + 1);
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(random());
  }
  return bytes;
}

bool Same(const uint8_t* bytes, const std::vector<uint8_t>& wanted) {
  return std::equal(wanted.begin(), wanted.end(), bytes);
}

TEST("cache: no budget is no cache") {
  Cache cache;
  CHECK(cache.Prepare(0, 8, kRowBytes).ok());
  CHECK(!cache.enabled());
  CHECK_EQ(cache.bytes(), 0u);
}

TEST("cache: a budget below one row is no cache") {
  Cache cache;
  CHECK(cache.Prepare(kSlotBytes, 8, kRowBytes).ok());
  CHECK(!cache.enabled());
}

TEST("cache: a budget below one set is one set of fewer ways") {
  Cache cache;
  CHECK(cache.Prepare(3 * kSlotBytes + 4, 8, kRowBytes).ok());
  CHECK_EQ(cache.slots(), 3u);
}

TEST("cache: all it holds stays within the budget, and little of the budget is wasted") {
  for (uint64_t budget : {1000u, 4624u, 65536u, 1000003u}) {
    for (uint32_t ways : {1u, 2u, 8u, 16u}) {
      Cache cache;
      CHECK(cache.Prepare(budget, ways, kRowBytes).ok());
      CHECK(cache.bytes() <= budget);
      CHECK(cache.bytes() + cache.ways() * kSlotBytes + 4 > budget);
      CHECK(cache.slots() * kSlotBytes <= cache.bytes());
    }
  }
}

TEST("cache: what it gives is what was put in last, whatever else came and went") {
  for (uint32_t ways : {1u, 4u, 16u}) {
    Cache cache;
    CHECK(cache.Prepare(64 * 280, ways, kRowBytes).ok());
    std::map<uint32_t, uint32_t> versions;
    std::mt19937 random(ways);
    uint64_t hits = 0;
    for (uint32_t turn = 0; turn < 20000; ++turn) {
      const auto row = static_cast<uint32_t>(random() % 100) * 40'000'003u;
      if (const uint8_t* found = cache.Find(row)) {
        CHECK(Same(found, RowOf(row, versions.at(row))));
        ++hits;
      } else {
        versions[row] = turn;
        cache.Insert(row, RowOf(row, turn).data());
        CHECK(Same(cache.Find(row), RowOf(row, turn)));
      }
    }
    CHECK(hits > 20000 / 4);
  }
}

TEST("cache: a row in use outlives many that are seen once") {
  Cache cache;
  CHECK(cache.Prepare(16 * kSlotBytes + 4, 16, kRowBytes).ok());
  CHECK_EQ(cache.slots(), 16u);
  cache.Insert(7, RowOf(7, 0).data());
  for (uint32_t other = 1000; other < 2000; ++other) {
    CHECK(cache.Find(7) != nullptr);
    cache.Insert(other, RowOf(other, 0).data());
  }
  CHECK(Same(cache.Find(7), RowOf(7, 0)));
}

TEST("cache: the first and the last row that a file may have are kept apart") {
  Cache cache;
  CHECK(cache.Prepare(1 << 16, 8, kRowBytes).ok());
  const uint32_t last = UINT32_MAX - 2;
  CHECK(cache.Find(0) == nullptr);
  CHECK(cache.Find(last) == nullptr);
  cache.Insert(0, RowOf(0, 0).data());
  cache.Insert(last, RowOf(last, 0).data());
  CHECK(Same(cache.Find(0), RowOf(0, 0)));
  CHECK(Same(cache.Find(last), RowOf(last, 0)));
}

}  // namespace
}  // namespace sparkserve
