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

// The folder that a run writes to: its owner, and the lock by which one process at a time writes there.
namespace tutti::detail {

// UsageError for a folder that another user may have prepared: in a folder that everybody may write to, such as /tmp, a
// link or a folder of another user. A run would go on from its files and write to wherever a link leads.
inline void require_own_folder(const io::Path& folder, std::string_view where) {
  io::Path path = folder.lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // a '/' at the end
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

// Locks a folder for this process, on this host. Two runs would write one log and remove each other's checkpoints.
class RunFolderLock {
 public:
  RunFolderLock() = default;
  ~RunFolderLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  RunFolderLock(const RunFolderLock&) = delete;
  RunFolderLock& operator=(const RunFolderLock&) = delete;

  // False if another process still holds the lock after `patience`: one that is about to end may. A folder that cannot
  // be locked counts as locked.
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
  // UsageError if another process holds it.
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
