// SPDX-License-Identifier: MIT
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>
#include <utility>

#include <tutti/train/progress.hpp>

namespace tutti::data_tool {

// Counts images from several threads and says how far they are: on a terminal in one line that is written over, else in
// a line each half minute.
class Progress {
 public:
  // `total`: 0 where it is not known.
  Progress(std::string what, std::int64_t total) : what_(std::move(what)), total_(total) {}
  ~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::int64_t images, std::uint64_t bytes) {
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
  [[nodiscard]] std::int64_t images() const noexcept { return images_.load(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_.load(); }
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  [[nodiscard]] double rate() const { return seconds() > 0 ? static_cast<double>(images()) / seconds() : 0; }

 private:
  void show(double now) {
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

  std::string what_;
  std::int64_t total_;
  std::atomic<std::int64_t> images_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool terminal_ = ::isatty(STDERR_FILENO) != 0, shown_ = false;
  double last_ = 0;
  std::mutex mutex_;
};

// "1.5 GB"
[[nodiscard]] inline std::string bytes_text(std::uint64_t bytes) {
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
