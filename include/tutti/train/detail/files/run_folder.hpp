// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

// The folder to which a run writes: checks its owner, and locks it so that only one process at a time writes there.
namespace tutti::detail {

// Throws UsageError for a folder that another user may have prepared: a link or another user's folder, in a folder such
// as /tmp to which all users may write. The run would use the files in it, or write to the target of the link.
inline void require_own_folder(const io::Path& folder, std::string_view where) {
  io::Path path = folder.lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // removes a '/' at the end
  const io::Path above = path.has_parent_path() ? path.parent_path() : io::Path(".");
  struct stat parent {
  }, own{};
  if (::stat(above.c_str(), &parent) != 0 || (parent.st_mode & S_IWOTH) == 0) return;
  if (::lstat(path.c_str(), &own) != 0) return;  // it does not exist yet
  const bool is_link = S_ISLNK(own.st_mode);
  if (!is_link && own.st_uid == ::geteuid()) return;
  fail<UsageError>(where, "a folder of this user, because all users may write to " + above.string(),
                   path.string() + ", which is " + (is_link ? "a link" : "user " + std::to_string(own.st_uid) + "'s"),
                   "remove it, or name a folder that only this user can write to");
}

// Locks a folder for this process, on this host. Without the lock, two runs would write the same log and remove each
// other's checkpoints.
class RunFolderLock {
 public:
  RunFolderLock() = default;
  ~RunFolderLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  RunFolderLock(const RunFolderLock&) = delete;
  RunFolderLock& operator=(const RunFolderLock&) = delete;

  // Waits up to `patience` for a process that is ending. Returns false if another process still has the lock. A folder
  // that cannot be locked counts as locked.
  [[nodiscard]] bool take(const io::Path& folder, std::chrono::milliseconds patience) {
    if (descriptor_ >= 0) return true;
    const int opened = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0) return true;
    const auto end = std::chrono::steady_clock::now() + patience;
    while (::flock(opened, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) break;
      if (std::chrono::steady_clock::now() >= end) {
        ::close(opened);
        return false;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    descriptor_ = opened;
    return true;
  }
  // Throws UsageError if another process has the lock.
  void require(const io::Path& folder, std::string_view where) {
    if (!take(folder, std::chrono::seconds(2)))
      fail<UsageError>(where, "a folder that no other process writes to",
                       folder.string() + ", in which another process trains",
                       "wait for its end, or name another folder");
  }

 private:
  int descriptor_ = -1;
};

}  // namespace tutti::detail
