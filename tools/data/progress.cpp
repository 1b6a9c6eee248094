// SPDX-License-Identifier: MIT
#include "tools/data/progress.hpp"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>

#include <tutti/train/progress.hpp>

namespace tutti::data_tool {

void Progress::add(std::int64_t images, std::uint64_t bytes) {
  images_.fetch_add(images, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (mutex_.try_lock()) {
    const std::lock_guard lock(mutex_, std::adopt_lock);
    if (const double now = seconds(); now - last_ >= (terminal_ ? 0.5 : 30)) {
      last_ = now;
      show(now);
    }
  }
}

void Progress::show(double now) {
  shown_ = terminal_;
  const std::int64_t n = images();
  std::string line = what_ + ": " + std::to_string(n);
  if (total_ > 0) line += "/" + std::to_string(total_);
  char text[64];
  std::snprintf(text, sizeof text, " images, %.0f images/s, %.1f MB/s", rate(),
                static_cast<double>(bytes()) / now / 1e6);
  line += text;
  if (total_ > 0 && n > 0)
    line += ", left " + format_duration(static_cast<double>(total_ - n) * now / static_cast<double>(n));
  if (terminal_)
    std::fprintf(stderr, "\r%s\033[K", line.c_str());
  else
    std::fprintf(stderr, "%s\n", line.c_str());
}

std::string bytes_text(std::uint64_t bytes) {
  char text[32];
  const auto b = static_cast<double>(bytes);
  if (bytes < 10'000)
    std::snprintf(text, sizeof text, "%llu bytes", static_cast<unsigned long long>(bytes));
  else
    std::snprintf(text, sizeof text, "%.1f %s",
                  b >= 1e9   ? b / 1e9
                  : b >= 1e6 ? b / 1e6
                             : b / 1e3,
                  b >= 1e9   ? "GB"
                  : b >= 1e6 ? "MB"
                             : "kB");
  return text;
}

}  // namespace tutti::data_tool
