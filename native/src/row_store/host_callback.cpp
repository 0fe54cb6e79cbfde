// Lookups inside cudaLaunchHostFunc: there is nobody to return an error to.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "sparkserve_native/row_store.h"

namespace sparkserve {
namespace {

// As sysexits' EX_CONFIG: the engine must not be started again as it is.
constexpr int kRefused = 78;

// A line that is built without memory of the heap and cut where it is too long.
class Line {
 public:
  void Add(const char* format, ...) noexcept __attribute__((format(printf, 2, 3))) {
    va_list values;
    va_start(values, format);
    const int length = std::vsnprintf(text_.data() + used_, Room(), format, values);
    va_end(values);
    used_ += std::min(static_cast<std::size_t>(std::max(length, 0)), Room() - 1);
  }

  void AddJson(const char* text) noexcept {
    Add("\"");
    // Room is left for the end of the line, so that it stays JSON when a text is cut.
    for (; *text != '\0' && Room() > kTail; ++text) {
      const auto byte = static_cast<unsigned char>(*text);
      if (byte == '"' || byte == '\\') {
        Add("\\%c", byte);
      } else if (byte < 0x20 || byte == 0x7f) {
        Add("\\u%04x", byte);
      } else {
        Add("%c", byte);
      }
    }
    Add("\"");
  }

  void Write() const noexcept {
    std::size_t done = 0;
    while (done < used_) {
      const ssize_t wrote = write(STDERR_FILENO, text_.data() + done, used_ - done);
      if (wrote < 0 && errno == EINTR) {
        continue;
      }
      if (wrote <= 0) {
        return;
      }
      done += static_cast<std::size_t>(wrote);
    }
  }

 private:
  static constexpr std::size_t kTail = 256;

  std::size_t Room() const noexcept { return text_.size() - used_; }

  std::array<char, 8192> text_{};
  std::size_t used_ = 0;
};

void EndOnFailure(int result) noexcept {
  if (result >= 0) {
    return;
  }
  Line line;
  line.Add("sparkserve: FATAL engram_rows {\"errno\": %d, \"offset_bytes\": ", -result);
  const int64_t offset = spn_last_error_offset();
  if (offset < 0) {
    line.Add("null");
  } else {
    line.Add("%lld", static_cast<long long>(offset));
  }
  line.Add(", \"error\": ");
  line.AddJson(spn_last_error());
  line.Add("}\n");
  line.Write();
  _exit(kRefused);
}

}  // namespace
}  // namespace sparkserve

extern "C" void spn_store_host_callback(void* job) {
  sparkserve::EndOnFailure(spn_store_run(static_cast<spn_lookup_job*>(job)));
}

extern "C" void spn_store_host_submit_callback(void* job) {
  sparkserve::EndOnFailure(spn_store_submit(static_cast<spn_lookup_job*>(job)));
}

extern "C" void spn_store_host_wait_callback(void* job) {
  sparkserve::EndOnFailure(spn_store_wait(static_cast<spn_lookup_job*>(job)));
}
