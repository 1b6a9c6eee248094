// SPDX-License-Identifier: MIT
#include "tools/trainer/run_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include <tutti/core/error.hpp>

namespace tutti::trainer {

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

bool RunLock::take(const io::Path& folder, std::chrono::milliseconds patience) {
  if (fd_ >= 0) return true;
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return true;
  const auto end = std::chrono::steady_clock::now() + patience;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) break;
    if (std::chrono::steady_clock::now() >= end) {
      ::close(fd);
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  fd_ = fd;
  return true;
}

void RunLock::require(const io::Path& folder) {
  if (!take(folder, std::chrono::seconds(2)))
    fail<UsageError>("--run-dir", "a folder that no other process writes to",
                     folder.string() + ", in which another process trains", "wait for its end, or name another folder");
}

}  // namespace tutti::trainer
