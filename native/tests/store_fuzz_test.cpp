#include <algorithm>
#include <cerrno>
#include <iterator>
#include <random>

#include "harness.h"
#include "opened.h"
#include "table.h"

namespace sparkserve {
namespace {

TEST("store: files of any length and content are refused or read exactly") {
  std::mt19937 random(12);
  const std::string path = testing::Folder() + "/garbage";
  for (int turn = 0; turn < 300; ++turn) {
    std::vector<uint8_t> bytes(random() % 20000);
    for (uint8_t& byte : bytes) {
      byte = static_cast<uint8_t>(random());
    }
    const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    close(fd);
    const uint64_t offset = random() % 5000;
    const auto row_bytes = static_cast<uint32_t>(1 + random() % 600);
    const uint64_t rows = random() % 60;
    const spn_segment all{0, static_cast<int64_t>(rows), 0};
    spn_store_config config{};
    config = {sizeof config,
              turn % 2 == 0 ? SPN_ENGINE_AUTO : SPN_ENGINE_PREAD,
              path.c_str(),
              offset,
              rows,
              rows,
              row_bytes,
              0,
              &all,
              rows > 0,
              random() % 9000,
              4,
              8,
              3,
              4096,
              64};
    spn_store* opened = nullptr;
    const int result = spn_store_open(&config, &opened);
    const Handle store(opened);
    CHECK_EQ(result, bytes.size() >= offset + rows * row_bytes ? 0 : -ENODATA);
    if (result != 0 || rows == 0) {
      continue;
    }
    std::vector<int64_t> ids(50);
    for (int64_t& id : ids) {
      id = static_cast<int64_t>(random() % rows);
    }
    std::vector<uint8_t> out(ids.size() * row_bytes);
    CHECK_EQ(spn_store_lookup(store.get(), ids.data(), ids.size(), out.data(), nullptr), 0);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const uint8_t* wanted = bytes.data() + offset + static_cast<uint64_t>(ids[i]) * row_bytes;
      CHECK(std::equal(wanted, wanted + row_bytes, out.data() + i * row_bytes));
    }
  }
}

TEST("store: configurations of any numbers are refused or opened, never more") {
  std::mt19937_64 random(13);
  const Table table("config", 777, 300);
  const auto any = [&random]() -> uint64_t {
    const uint64_t near[] = {
        0, 1, 8, 264, 300, 301, 4096, UINT32_MAX, uint64_t{1} << 40, INT64_MAX, UINT64_MAX};
    return random() % 3 != 0 ? near[random() % std::size(near)] : random() >> random() % 64;
  };
  int opened = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    spn_segment segments[2] = {{0, 300, 0}, {300, 400, 0}};
    spn_store_config config = table.Config(SPN_ENGINE_PREAD, 0);
    config.threads = 2;
    config.segments = segments;
    config.segment_count = 1;
    const auto small = [&any] { return static_cast<uint32_t>(any()); };
    switch (turn % 12) {
      case 0:
        config.data_offset_bytes = any();
        break;
      case 1:
        config.rows = any();
        break;
      case 2:
        config.total_ids = any();
        break;
      case 3:
        config.weight_bytes = small();
        break;
      case 4:
        config.scale_bytes = small();
        break;
      case 5:
        segments[0].first_id = static_cast<int64_t>(any());
        break;
      case 6:
        segments[0].end_id = static_cast<int64_t>(any());
        break;
      case 7:
        segments[0].first_row = static_cast<int64_t>(any());
        break;
      case 8:
        config.segment_count = any();
        config.segment_count %= 3;
        break;
      case 9:
        config.cache_ways = small();
        break;
      case 10:
        config.gap_bytes = small();
        break;
      default:
        config.engine = small();
        config.queue_depth = small() % 300;
    }
    spn_store* store = nullptr;
    const int result = spn_store_open(&config, &store);
    const Handle handle(store);
    CHECK_EQ(result == 0, store != nullptr);
    CHECK(result == 0 || result == -EINVAL || result == -ENODATA || result == -ENOSYS);
    if (result == 0) {
      ++opened;
      std::vector<int64_t> ids{0, 299, 150};
      std::vector<uint8_t> out(ids.size() * (uint64_t{config.weight_bytes} + config.scale_bytes));
      const int looked = spn_store_lookup(store, ids.data(), ids.size(), out.data(), nullptr);
      CHECK(looked == 0 || looked == -ERANGE);
    }
  }
  CHECK(opened > 300);
}

}  // namespace
}  // namespace sparkserve
