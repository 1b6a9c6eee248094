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

namespace tutti::data_tool {

// Counts images from several threads and reports progress: on a terminal in one line that is overwritten, otherwise in
// a new line every half minute.
class Progress {
 public:
  // total: 0 if it is not known.
  Progress(std::string what, std::int64_t total) : what_(std::move(what)), total_(total) {}
  ~Progress() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(std::int64_t images, std::uint64_t bytes);
  [[nodiscard]] std::int64_t images() const noexcept { return images_.load(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_.load(); }
  [[nodiscard]] double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  [[nodiscard]] double rate() const { return seconds() > 0 ? static_cast<double>(images()) / seconds() : 0; }

 private:
  void show(double now);

  std::string what_;
  std::int64_t total_;
  std::atomic<std::int64_t> images_{0};
  std::atomic<std::uint64_t> bytes_{0};
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  bool terminal_ = ::isatty(STDERR_FILENO) != 0, shown_ = false;
  double last_ = 0;
  std::mutex mutex_;
};

// Returns, for example, "1.5 GB".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

}  // namespace tutti::data_tool
