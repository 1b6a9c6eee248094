// SPDX-License-Identifier: MIT
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include <tutti/comm/deadline.hpp>
#include <tutti/core/threads/threads.hpp>

namespace tutti {

// A thread that ends the waits of a library at a deadline. The time-outs of the library itself would count a pause of
// this process. The thread sleeps while no operation runs.
class DeadlineWatcher {
 public:
  // expire: called by the thread when the deadline of the current operation has passed, at most once an operation. The
  // operation cannot end meanwhile, and expire must not use the watcher.
  explicit DeadlineWatcher(std::function<void()> expire)
      : expire_(std::move(expire)), thread_(start_thread("deadline", [this] { run(); })) {}
  ~DeadlineWatcher() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  DeadlineWatcher(const DeadlineWatcher&) = delete;
  DeadlineWatcher& operator=(const DeadlineWatcher&) = delete;

  // An operation with a deadline, which must outlive it. There is one at a time. The creating thread must not use the
  // deadline meanwhile.
  class Operation {
   public:
    Operation(DeadlineWatcher& watcher, const Deadline& deadline) : watcher_(watcher) {
      bool sleeps = false;
      {
        const std::lock_guard lock(watcher_.mutex_);
        watcher_.deadline_ = &deadline;
        sleeps = watcher_.sleeps_;
      }
      if (sleeps) watcher_.wake_.notify_all();
    }
    ~Operation() {
      const std::lock_guard lock(watcher_.mutex_);
      watcher_.deadline_ = nullptr;
    }
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;

   private:
    DeadlineWatcher& watcher_;
  };

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      if (deadline_ == nullptr) {
        sleeps_ = true;
        wake_.wait(lock, [&] { return stopping_ || deadline_ != nullptr; });
        sleeps_ = false;
      } else if (deadline_->is_over()) {
        deadline_ = nullptr;
        expire_();
      } else {
        wake_.wait_for(lock, deadline_->next_wait(), [&] { return stopping_; });
      }
    }
  }

  std::function<void()> expire_;
  std::mutex mutex_;
  std::condition_variable wake_;
  const Deadline* deadline_ = nullptr;
  bool stopping_ = false, sleeps_ = false;
  std::thread thread_;
};

}  // namespace tutti
