// SPDX-License-Identifier: MIT
#pragma once

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "interposed_files.hpp"
#include "network.hpp"
#include "system.hpp"

// The functions through which the launcher watches its hosts file and finds hosts: the times of files, inotify, and the
// name server. Include it once in a program, after interposed_files.hpp.
namespace tutti::simulation {

// The times of files by the simulation's clock, and the processes that watch folders. A file's time changes if its
// content differs from that of the last look.
class WatchedFiles {
 public:
  explicit WatchedFiles(Network& network) : network_(network) { current_ = this; }
  ~WatchedFiles() { current_ = nullptr; }
  WatchedFiles(const WatchedFiles&) = delete;
  WatchedFiles& operator=(const WatchedFiles&) = delete;
  [[nodiscard]] static WatchedFiles* current() noexcept { return current_; }

  // Call it after a file was written: the same content counts, too.
  void touch(const std::filesystem::path& path) {
    ++writes_[path];
    notify(path, IN_MODIFY);
  }
  // Call it after a file was renamed to this path.
  void moved(const std::filesystem::path& path) { notify(path, IN_MOVED_TO); }
  [[nodiscard]] int watch() {
    Process& p = Scheduler::current()->process();
    const auto ends = network_.connect(p, p, false);
    watches_.push_back(ends.second);
    return network_.claim(ends.first);
  }
  void set_times(const std::string& path, struct stat& s) {
    std::ifstream in(path);
    auto now = std::pair(writes_[path], std::string(std::istreambuf_iterator<char>(in), {}));
    auto& [seen, at] = seen_[s.st_ino];
    if (at == 0 || seen != now) {
      seen = std::move(now);
      at = Scheduler::current()->now() + 1;
    }
    s.st_mtim = s.st_ctim = timespec_of(at);
  }

 private:
  void notify(const std::filesystem::path& path, std::uint32_t what) {
    const std::string name = path.filename();
    std::string bytes(sizeof(inotify_event) + name.size() + 1, '\0');
    inotify_event event{};
    event.mask = what;
    event.len = static_cast<std::uint32_t>(name.size() + 1);
    std::memcpy(bytes.data(), &event, sizeof event);
    std::memcpy(bytes.data() + sizeof event, name.data(), name.size());
    for (const int end : watches_)
      if (auto* s = network_.find(end)) network_.send(*s, bytes);
  }

  inline static WatchedFiles* current_ = nullptr;
  Network& network_;
  std::vector<int> watches_;
  std::map<std::string, std::uint64_t> writes_;
  std::map<ino_t, std::pair<std::pair<std::uint64_t, std::string>, Nanos>> seen_;  // content and time
};

// In a namespace, too, a function with this linkage is that of the C library.
extern "C" {

int stat(const char* path, struct stat* s) noexcept {
  before_file();
  const int error = TUTTI_SYSTEM(stat)(path, s);
  if (error == 0 && S_ISREG(s->st_mode))
    if (auto* files = WatchedFiles::current()) files->set_times(path, *s);
  return error;
}
int lstat(const char* path, struct stat* s) noexcept {
  before_file();
  return TUTTI_SYSTEM(lstat)(path, s);
}
int rmdir(const char* path) noexcept {
  before_file();
  return TUTTI_SYSTEM(rmdir)(path);
}
int symlink(const char* to, const char* path) noexcept {
  before_file();
  return TUTTI_SYSTEM(symlink)(to, path);
}
int flock(int descriptor, int operation) noexcept {
  auto* s = Scheduler::current();
  before_file();
  if (s == nullptr || (operation & LOCK_NB) != 0) return TUTTI_SYSTEM(flock)(descriptor, operation);
  while (TUTTI_SYSTEM(flock)(descriptor, operation | LOCK_NB) != 0) s->sleep(ms);
  return 0;
}
// The watch begins here, because a launcher adds its folder next.
int inotify_init1(int flags) noexcept {
  before_file();
  auto* files = WatchedFiles::current();
  return files == nullptr ? TUTTI_SYSTEM(inotify_init1)(flags) : files->watch();
}
int inotify_add_watch(int descriptor, const char* path, std::uint32_t mask) noexcept {
  return WatchedFiles::current() == nullptr ? TUTTI_SYSTEM(inotify_add_watch)(descriptor, path, mask) : 1;
}
// The name server knows h1 to h99, and for each of them a second name, node1 to node99. It can be slow.
int getaddrinfo(const char* name, const char* service, const addrinfo* hints, addrinfo** list) {
  auto* s = Scheduler::current();
  const std::string text(name == nullptr ? "" : name);
  const bool known = text.starts_with("h") || text.starts_with("node");
  if (s == nullptr || !known) return TUTTI_SYSTEM(getaddrinfo)(name, service, hints, list);
  s->sleep(s->noise().one_in(8) ? s->noise().between(0, 400 * ms) : 1000);
  const std::string number = text.substr(text.find_first_of("0123456789"));
  return TUTTI_SYSTEM(getaddrinfo)(("10.9.8." + number).c_str(), service, hints, list);
}

}  // extern "C"
}  // namespace tutti::simulation
