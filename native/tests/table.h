// A table on disk whose every byte is known, for tests of the store.

#ifndef SPARKSERVE_NATIVE_TESTS_TABLE_H_
#define SPARKSERVE_NATIVE_TESTS_TABLE_H_

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "harness.h"
#include "sparkserve_native/row_store.h"

namespace sparkserve {

constexpr uint32_t kWeightBytes = 256;
constexpr uint32_t kScaleBytes = 8;
constexpr uint32_t kRowBytes = kWeightBytes + kScaleBytes;

inline uint8_t TableByte(uint64_t row, uint32_t at) {
  uint64_t mixed = (row * 264 + at + 1) * 0x9E3779B97F4A7C15u;
  mixed ^= mixed >> 29;
  return static_cast<uint8_t>(mixed * 0xBF58476D1CE4E5B9u >> 56);
}

// `rows` rows at byte `offset`; ids below total_ids that no segment holds are not owned.
struct Table {
  std::string path;
  uint64_t offset;
  uint64_t rows;
  uint64_t total_ids;
  std::vector<spn_segment> segments;

  Table(const std::string& name, uint64_t at, uint64_t count)
      : path(testing::Folder() + "/" + name),
        offset(at),
        rows(count),
        total_ids(count),
        segments{{0, static_cast<int64_t>(count), 0}} {
    std::vector<uint8_t> bytes(offset, 0xEE);
    bytes.reserve(offset + rows * kRowBytes);
    for (uint64_t row = 0; row < rows; ++row) {
      for (uint32_t i = 0; i < kRowBytes; ++i) {
        bytes.push_back(TableByte(row, i));
      }
    }
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    CHECK_EQ(fsync(fd), 0);
    close(fd);
  }

  uint64_t FileBytes() const { return offset + rows * kRowBytes; }

  spn_store_config Config(uint32_t engine, uint64_t cache_bytes) const {
    spn_store_config config{};
    config.struct_bytes = sizeof config;
    config.engine = engine;
    config.path = path.c_str();
    config.data_offset_bytes = offset;
    config.rows = rows;
    config.total_ids = total_ids;
    config.weight_bytes = kWeightBytes;
    config.scale_bytes = kScaleBytes;
    config.segments = segments.data();
    config.segment_count = segments.size();
    config.cache_bytes = cache_bytes;
    config.cache_ways = 8;
    config.queue_depth = 64;
    config.threads = 8;
    config.gap_bytes = 4096;
    config.max_ids = 4096;
    return config;
  }

  // The row that an id must give: the file's, or -1 for zeros.
  int64_t RowOf(int64_t id) const {
    for (const spn_segment& one : segments) {
      if (id >= one.first_id && id < one.end_id) {
        return one.first_row + (id - one.first_id);
      }
    }
    return -1;
  }

  void CheckRow(int64_t id, const uint8_t* weights, const uint8_t* scales) const {
    const int64_t row = RowOf(id);
    for (uint32_t i = 0; i < kRowBytes; ++i) {
      const uint8_t wanted = row < 0 ? uint8_t{0} : TableByte(static_cast<uint64_t>(row), i);
      const uint8_t found = i < kWeightBytes ? weights[i] : scales[i - kWeightBytes];
      if (wanted != found) {
        testing::Fail(__FILE__, __LINE__,
                      "id " + std::to_string(id) + " byte " + std::to_string(i) + " is wrong");
      }
    }
  }
};

// Buffers of one lookup, poisoned before each.
struct Buffers {
  std::vector<uint8_t> weights;
  std::vector<uint8_t> scales;

  explicit Buffers(std::size_t ids) : weights(ids * kWeightBytes), scales(ids * kScaleBytes) {
    Poison();
  }
  void Poison() {
    weights.assign(weights.size(), 0xA5);
    scales.assign(scales.size(), 0xA5);
  }
  bool AllZero() const {
    for (const auto* bytes : {&weights, &scales}) {
      for (uint8_t byte : *bytes) {
        if (byte != 0) {
          return false;
        }
      }
    }
    return true;
  }
  void Check(const Table& table, const std::vector<int64_t>& ids) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      table.CheckRow(ids[i], &weights[i * kWeightBytes], &scales[i * kScaleBytes]);
    }
  }
};

}  // namespace sparkserve

#endif  // SPARKSERVE_NATIVE_TESTS_TABLE_H_
