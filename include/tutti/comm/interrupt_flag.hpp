// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

namespace tutti {

// Ends a group of ranks on this rank, whether it works, waits or is being formed. Any thread may raise it. It stays
// raised: the next group has its own flag.
class InterruptFlag {
 public:
  InterruptFlag() = default;
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;

  // why: the reason for messages, for example "the loss of worker 2 on b". The first reason counts.
  void raise(const std::string& why) noexcept {
    {
      const std::lock_guard lock(why_mutex_);
      if (!raised_.load()) why_ = why;
      raised_.store(true);
    }
    const std::lock_guard lock(watcher_mutex_);
    if (watcher_) watcher_();
  }
  [[nodiscard]] const std::atomic<bool>& raised() const noexcept { return raised_; }
  [[nodiscard]] std::string why() const {
    const std::lock_guard lock(why_mutex_);
    return why_;
  }

  // Calls f when the flag is raised, or at once if it is raised already. f must not throw. There is only one watcher.
  void watch(std::function<void()> f) {
    const std::lock_guard lock(watcher_mutex_);
    watcher_ = std::move(f);
    if (watcher_ && raised_) watcher_();
  }

 private:
  std::atomic<bool> raised_{false};
  mutable std::mutex why_mutex_, watcher_mutex_;
  std::string why_;
  std::function<void()> watcher_;
};

// Watches a flag during its lifetime.
class InterruptWatch {
 public:
  InterruptWatch(InterruptFlag& flag, std::function<void()> f) : flag_(flag) { flag_.watch(std::move(f)); }
  ~InterruptWatch() { flag_.watch({}); }
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

 private:
  InterruptFlag& flag_;
};

}  // namespace tutti
