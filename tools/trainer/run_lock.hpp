// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

#include <tutti/io/file.hpp>

namespace tutti::trainer {

// Reserves a run's folder for one process of this host that trains there. Two would write into one log and remove each
// other's checkpoints.
class RunLock {
 public:
  RunLock() = default;
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // Returns false if another process holds the lock for the whole wait; the previous process may be about to end. A
  // folder that cannot be locked is not protected.
  [[nodiscard]] bool take(const io::Path& folder, std::chrono::milliseconds patience);
  // Throws UsageError if another process holds the lock.
  void require(const io::Path& folder);

 private:
  int fd_ = -1;
};

}  // namespace tutti::trainer
