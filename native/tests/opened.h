// Opening stores on test tables and asking them for many ids.

#ifndef SPARKSERVE_NATIVE_TESTS_OPENED_H_
#define SPARKSERVE_NATIVE_TESTS_OPENED_H_

#include <cerrno>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "harness.h"
#include "sparkserve_native/row_store.h"
#include "table.h"

namespace sparkserve {

constexpr uint64_t kSeventeenSlots = 17 * (kRowBytes + 8);

struct Closer {
  void operator()(spn_store* store) const { spn_store_close(store); }
};
using Handle = std::unique_ptr<spn_store, Closer>;

inline Handle OpenStore(const spn_store_config& config) {
  spn_store* store = nullptr;
  const int result = spn_store_open(&config, &store);
  if (result != 0 && config.engine == SPN_ENGINE_IO_URING && result != -EINVAL) {
    throw testing::Skip(spn_last_error());
  }
  CHECK_EQ(result, 0);
  return Handle(store);
}

inline spn_store_stats StatsOf(const Handle& store) {
  spn_store_stats stats{};
  stats.struct_bytes = sizeof stats;
  CHECK_EQ(spn_store_get_stats(store.get(), &stats), 0);
  return stats;
}

inline int Look(const Handle& store, const std::vector<int64_t>& ids, Buffers& out) {
  return spn_store_lookup(store.get(), ids.data(), ids.size(), out.weights.data(),
                          out.scales.data());
}

// About 1007 ids: any, many twice, and rows 15..17, of which some lie on two pages.
inline std::vector<int64_t> Ids(uint32_t seed, int64_t total_ids) {
  std::mt19937 random(seed);
  std::vector<int64_t> ids(1000 + seed % 15);
  for (int64_t& id : ids) {
    id = static_cast<int64_t>(random() % static_cast<uint64_t>(total_ids));
  }
  for (std::size_t i = 0; i < 300; ++i) {
    ids[random() % ids.size()] = ids[random() % ids.size()];
  }
  for (int64_t id : {0, 15, 16, 17, 15}) {
    ids[random() % ids.size()] = id;
  }
  ids[random() % ids.size()] = total_ids - 1;
  return ids;
}

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_TESTS_OPENED_H_
