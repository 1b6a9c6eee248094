// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>

#include <tutti/io/file.hpp>

namespace tutti::trainer {

// Keeps a run's folder for one process of this host that trains there: two would write into one log and remove each
// other's checkpoints.
class RunLock {
 public:
  RunLock() = default;
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  // False where another one has it and keeps it for that long: the one before may be about to end. A folder that cannot
  // be locked is anybody's.
  [[nodiscard]] bool take(const io::Path& folder, std::chrono::milliseconds patience);
  // UsageError if another process holds it.
  void require(const io::Path& folder);

 private:
  int fd_ = -1;
};

}  // namespace tutti::trainer
