#include "row_store/stats.h"

#include <algorithm>
#include <random>
#include <vector>

#include "harness.h"

namespace sparkserve {
namespace {

TEST("stats: quantiles are those of the sorted values, at most a sixteenth high") {
  std::mt19937_64 random(3);
  for (unsigned shift : {0u, 20u, 40u, 60u}) {
    Histogram histogram;
    std::vector<uint64_t> values(1000);
    for (uint64_t& value : values) {
      value = random() >> shift;
      histogram.Add(value);
    }
    std::sort(values.begin(), values.end());
    for (unsigned percent : {1u, 50u, 99u, 100u}) {
      const uint64_t exact = values[values.size() * percent / 100 - 1];
      const uint64_t found = histogram.Quantile(percent);
      CHECK(found >= exact);
      CHECK(found - exact <= exact / 16);
    }
  }
}

TEST("stats: no values have no quantile, the largest value has one") {
  Histogram histogram;
  CHECK_EQ(histogram.Quantile(50), 0u);
  histogram.Add(UINT64_MAX);
  CHECK_EQ(histogram.Quantile(99), UINT64_MAX);
}

}  // namespace
}  // namespace sparkserve
