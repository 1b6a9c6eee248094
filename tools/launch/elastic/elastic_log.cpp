// SPDX-License-Identifier: MIT
#include "tools/launch/elastic/elastic_log.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti::launch {
namespace {

// A lock of the whole file, of an open file as flock() has it. Unlike flock(), the system tells whether it is held.
[[nodiscard]] struct flock whole_file() {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}
// Takes both kinds of locks: they do not exclude each other, and launchers of earlier builds only know flock().
void lock(int fd, const std::filesystem::path& file) {
  struct flock whole = whole_file();
  int result = 0;
  do result = ::fcntl(fd, F_OFD_SETLK, &whole) != 0 ? -1 : ::flock(fd, LOCK_EX | LOCK_NB);
  while (result != 0 && errno == EINTR);
  if (result == 0) return;
  const int error = errno;
  if (error != EAGAIN && error != EWOULDBLOCK && error != EACCES) io::fail_file("lock", file, error);
  fail<UsageError>("--elastic-dir", "a folder that no other job uses",
                   printable(file.parent_path().string()) + ", which another job uses",
                   "name another folder with --elastic-dir");
}

}  // namespace

io::Descriptor lock_hosts(const std::filesystem::path& folder) {
  io::Descriptor lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.get() >= 0)
    while (::flock(lock.get(), LOCK_EX) != 0 && errno == EINTR) {
    }
  return lock;
}

MembershipLog::MembershipLog(const std::filesystem::path& file)
    : hosts_lock_(lock_hosts(file.parent_path())),
      file_(file),
      fd_(io::Descriptor::open(file, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, "open")) {
  lock(fd_.get(), file);
  const std::string text = io::read_text_file(file, std::size_t{1} << 28);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::int64_t number = -1;
    if (words >> number && number >= 0) next_ = std::max(next_, number + 1);
  }
  if (!text.empty() && text.back() != '\n') write("\n");
}

bool MembershipLog::in_use(const std::filesystem::path& file) {
  const io::Descriptor fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct flock lock = whole_file();
  return fd.get() >= 0 && ::fcntl(fd.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

bool MembershipLog::append(bool added, const std::string& host) {
  const auto now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch());
  return write(std::to_string(next_++) + (added ? " ADDED " : " REMOVED ") + host + " " + std::to_string(now.count()) +
               "\n");
}

}  // namespace tutti::launch
