#include "row_store/planner.h"

#include <map>
#include <random>
#include <set>
#include <vector>

#include "harness.h"

namespace sparkserve {
namespace {

// What any plan must be, checked against the plain list of (row, position).
void CheckPlan(const Geometry& geometry, uint64_t rows, const std::vector<uint32_t>& wanted) {
  Planner planner;
  CHECK(planner.Prepare(geometry, rows, std::max<std::size_t>(wanted.size(), 1)).ok());
  std::map<uint32_t, std::multiset<uint32_t>> places;
  for (uint32_t position = 0; position < wanted.size(); ++position) {
    planner.Add(wanted[position], position);
    places[wanted[position]].insert(position);
  }
  uint32_t unique = 0;
  uint64_t end = 0;
  auto place = places.begin();
  for (const Extent& extent : planner.Plan()) {
    CHECK(unique == 0 || extent.offset_bytes > end + geometry.gap_bytes ||
          extent.offset_bytes + extent.length_bytes > end);
    CHECK_EQ(extent.offset_bytes % geometry.alignment_bytes, 0u);
    CHECK_EQ(extent.length_bytes % geometry.alignment_bytes, 0u);
    CHECK(extent.length_bytes <= geometry.extent_cap_bytes);
    CHECK(extent.needed_bytes <= extent.length_bytes);
    CHECK_EQ(extent.first, unique);
    for (; unique < extent.first + extent.count; ++unique, ++place) {
      CHECK(place != places.end());
      CHECK_EQ(planner.Row(unique), place->first);
      const uint64_t at = geometry.data_offset_bytes + uint64_t{place->first} * geometry.row_bytes;
      CHECK(at >= extent.offset_bytes);
      CHECK(at + geometry.row_bytes <= extent.offset_bytes + extent.needed_bytes);
      std::multiset<uint32_t> positions;
      planner.ForEachPosition(unique, [&](uint32_t position) { positions.insert(position); });
      CHECK(positions == place->second);
    }
    end = extent.offset_bytes + extent.length_bytes;
  }
  CHECK(place == places.end());
  CHECK_EQ(planner.unique_rows(), places.size());
}

TEST("planner: plans hold every row, once, at the right bytes") {
  std::mt19937 random(1);
  for (uint32_t alignment : {1u, 512u, 4096u}) {
    for (uint64_t offset : {0u, 777u, 4096u}) {
      for (std::size_t count : {0u, 1u, 2u, 144u, 1024u, 1025u, 5003u}) {
        for (uint64_t rows : {uint64_t{1}, uint64_t{4099}, uint64_t{UINT32_MAX} - 1}) {
          std::vector<uint32_t> wanted(count);
          for (uint32_t& row : wanted) {
            row = static_cast<uint32_t>(random() % rows);
          }
          CheckPlan({offset, 264, alignment, 4096, 32768}, rows, wanted);
        }
      }
    }
  }
}

TEST("planner: neighbours are read together, rows far apart are not") {
  Planner planner;
  CHECK(planner.Prepare({0, 264, 512, 4096, 32768}, 1'000'000, 8).ok());
  for (uint32_t row : {500u, 10u, 11u, 10u, 100'000u}) {
    planner.Add(row, 0);
  }
  const auto extents = planner.Plan();
  CHECK_EQ(extents.size(), 3u);
  // Rows 10 and 11 are bytes 2640..3168: sectors 2560..3584.
  CHECK_EQ(extents[0].offset_bytes, 2560u);
  CHECK_EQ(extents[0].length_bytes, 1024u);
  CHECK_EQ(extents[0].needed_bytes, 608u);
  CHECK_EQ(extents[0].count, 2u);
}

TEST("planner: no gap joins only rows that touch the same sectors") {
  Planner planner;
  CHECK(planner.Prepare({0, 264, 512, 0, 32768}, 1000, 8).ok());
  for (uint32_t row : {0u, 1u, 6u}) {
    planner.Add(row, row);
  }
  const auto extents = planner.Plan();
  // Row 6 is bytes 1584..1848, sector 1536; rows 0 and 1 end in sector 512..1024.
  CHECK_EQ(extents.size(), 2u);
}

TEST("planner: a dense run is cut at the longest read") {
  std::vector<uint32_t> wanted(4099);
  for (uint32_t row = 0; row < wanted.size(); ++row) {
    wanted[row] = row;
  }
  CheckPlan({777, 264, 512, 4096, 12288}, 4099, wanted);
}

}  // namespace
}  // namespace sparkserve
