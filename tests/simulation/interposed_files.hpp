// SPDX-License-Identifier: MIT
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>

#include "disk.hpp"
#include "interposed_threads.hpp"
#include "network.hpp"
#include "system.hpp"

// The functions through which a program reaches sockets, pipes and files. Sockets and pipes are those of Network. Files
// are those of the system; a process can be stopped and killed between any two of these calls. Changes of files on a
// Disk suffer its faults. Include it once in a program.
namespace tutti::simulation {

// Blocks until a message can be read, or returns false and sets errno.
inline bool await_readable(Network::Socket& s, bool waits) {
  Scheduler& scheduler = *Scheduler::current();
  for (;;) {
    const Nanos at = Network::current()->readable_at(s);
    if (at <= scheduler.now()) return true;
    if (!waits) {
      errno = EAGAIN;
      return false;
    }
    (void)scheduler.block(s.owner, "read", Network::moment(*s.owner, at));
  }
}
inline ssize_t receive(Network::Socket& s, void* to, std::size_t size, bool waits) {
  Scheduler::current()->point();
  if (!await_readable(s, waits)) return -1;
  const std::string bytes = Network::current()->take(s);
  const std::size_t n = std::min(size, bytes.size());
  std::memcpy(to, bytes.data(), n);
  return static_cast<ssize_t>(n);
}
inline ssize_t transmit(Network::Socket& s, const void* from, std::size_t size, bool waits) {
  Scheduler& scheduler = *Scheduler::current();
  Network& network = *Network::current();
  scheduler.point();
  const Moment until = s.send_timeout == never ? Moment{} : in(s.send_timeout);
  while (!network.peer_is_gone(s) && network.is_full(s))
    if (!waits || !scheduler.block(s.owner, "send", until)) {
      errno = EAGAIN;
      return -1;
    }
  if (network.peer_is_gone(s)) {
    errno = EPIPE;
    return -1;
  }
  network.send(s, std::string(static_cast<const char*>(from), size));
  return static_cast<ssize_t>(size);
}
// Sets the events of each descriptor. Returns the time at which the next one happens.
inline Nanos look(pollfd* list, std::size_t count, int& ready) {
  Nanos next = never;
  ready = 0;
  for (std::size_t i = 0; i < count; ++i) {
    pollfd& p = list[i];
    p.revents = 0;
    Network::Socket* const s = Network::current()->find(p.fd);
    if (s == nullptr) {
      if (p.fd >= 0) p.revents = POLLNVAL;
    } else {
      const Nanos at = Network::current()->readable_at(*s);
      if (at <= Scheduler::current()->now()) p.revents |= POLLIN;
      if ((p.events & POLLOUT) != 0 && !Network::current()->is_full(*s)) p.revents |= POLLOUT;
      next = std::min(next, at);
    }
    ready += p.revents != 0 ? 1 : 0;
  }
  return next;
}
// Another process or thread may run before each use of a file. The file server of a process may be slow.
inline void before_file() {
  Scheduler* const s = Scheduler::current();
  if (s == nullptr) return;
  s->point();
  if (const Nanos most = s->process().slow_files; most > 0) s->sleep(s->noise().between(0, most));
}
// Gets what a simulated process writes to its standard error, if it is set.
inline std::function<void(std::string_view text)> on_message;
// Sends a signal to a process, or to a group if the number is negative. Returns false if there is none.
inline std::function<bool(pid_t, int)> send_signal;
// Returns where the simulation has a file, for the files of /proc.
inline const char* (*redirect)(const char* path) = [](const char* path) { return path; };
// The same. Returns the path on the simulated disk, or an empty text if the file is not on it. file: its path, or its
// descriptor.
template <class File>
std::string before_disk(const File& file) {
  before_file();
  Scheduler* const s = Scheduler::current();
  Disk* const d = Disk::current();
  if (s == nullptr || d == nullptr) return {};
  std::string path = d->find(file);
  if (path.empty() || s->now() >= d->slow_until) return path;
  s->sleep(d->random().between(0, d->slowest));
  return d->find(file);  // another process may have renamed it
}
// Returns whether a call that needs space on the disk fails, and sets errno. A full disk may have some space.
inline bool is_full(const std::string& on_disk, std::uint64_t succeeds_once_in) {
  if (on_disk.empty() || Scheduler::current()->now() >= Disk::current()->full_until ||
      Disk::current()->random().one_in(succeeds_once_in))
    return false;
  errno = ENOSPC;
  return true;
}
// Returns the result of a system call, and calls `note` if the call succeeded on the simulated disk.
template <class Note>
int noted(int result, const std::string& on_disk, Note&& note) {
  const int error = errno;
  if (result >= 0 && !on_disk.empty()) note(*Disk::current());
  errno = error;
  return result;
}
inline ssize_t write_file(int descriptor, const void* from, std::size_t size) {
  const std::string path = before_disk(descriptor);
  if (is_full(path, 2)) return -1;
  if (!path.empty() && size > 1) {
    Disk& d = *Disk::current();
    const Nanos now = Scheduler::current()->now();
    if (now < d.full_until || (now < d.slow_until && d.random().one_in(3))) size = 1 + d.random().below(size);
  }
  const ssize_t n = TUTTI_SYSTEM(write)(descriptor, from, size);
  if (n > 0 && !path.empty())
    Disk::current()->written(path, static_cast<std::size_t>(::lseek(descriptor, 0, SEEK_CUR) - n),
                             {static_cast<const char*>(from), static_cast<std::size_t>(n)});
  return n;
}
inline int sync_file(int descriptor) {
  const std::string path = before_disk(descriptor);
  Scheduler* const s = Scheduler::current();
  if (s == nullptr) return TUTTI_SYSTEM(fsync)(descriptor);
  if (path.empty()) return 0;  // its file keeps all bytes
  Disk& disk = *Disk::current();
  const bool broken = s->now() < disk.broken_until && disk.random().one_in(disk.fails_once_in);
  const bool ok = !is_full(path, 2) && !broken;
  if (broken) errno = EIO;
  disk.synced(path, ok);
  return ok ? 0 : -1;
}
inline int opened(int descriptor) {
  if (Scheduler* s = Scheduler::current(); s != nullptr && descriptor >= 0) s->process().descriptors.insert(descriptor);
  return descriptor;
}
[[nodiscard]] inline Network::Socket* socket_of(int descriptor) {
  return Network::current() == nullptr ? nullptr : Network::current()->find(descriptor);
}

// In a namespace, too, a function with this linkage is that of the C library.
extern "C" {

// ---- sockets and pipes ----
int poll(pollfd* list, nfds_t count, int timeout) {
  Scheduler* const s = Scheduler::current();
  if (s == nullptr) return TUTTI_SYSTEM(poll)(list, count, timeout);
  s->point();
  const Clocks& clocks = s->process().clocks;
  const Moment until = timeout < 0 ? Moment{} : in(timeout * ms);
  for (;;) {
    int ready = 0;
    const Nanos next = look(list, count, ready);
    const Nanos end = clocks.time_of(until.clock, until.shown);
    if (ready > 0 || s->now() >= end) return ready;
    (void)s->block(&s->process(), "poll", next < end ? Network::moment(s->process(), next) : until);
  }
}
int pipe2(int* ends, int flags) noexcept {
  auto* s = Scheduler::current();
  if (s == nullptr) return TUTTI_SYSTEM(pipe2)(ends, flags);
  auto& p = s->process();
  const auto pair = Network::current()->connect(p, p, (flags & O_NONBLOCK) == 0);
  ends[0] = Network::current()->claim(pair.first);
  ends[1] = Network::current()->claim(pair.second);
  return 0;
}
ssize_t send(int descriptor, const void* from, std::size_t size, int flags) {
  auto* s = socket_of(descriptor);
  if (s == nullptr) return TUTTI_SYSTEM(send)(descriptor, from, size, flags);
  return transmit(*s, from, size, s->waits && (flags & MSG_DONTWAIT) == 0);
}
ssize_t recv(int descriptor, void* to, std::size_t size, int flags) {
  auto* s = socket_of(descriptor);
  if (s == nullptr) return TUTTI_SYSTEM(recv)(descriptor, to, size, flags);
  return receive(*s, to, size, s->waits && (flags & MSG_DONTWAIT) == 0);
}
int setsockopt(int descriptor, int level, int name, const void* value, socklen_t size) noexcept {
  auto* s = socket_of(descriptor);
  if (s == nullptr) return TUTTI_SYSTEM(setsockopt)(descriptor, level, name, value, size);
  if (level == SOL_SOCKET && name == SO_SNDTIMEO) {
    const auto& t = *static_cast<const timeval*>(value);
    s->send_timeout = t.tv_sec * second + t.tv_usec * 1000;
  }
  return 0;
}

// ---- sockets and files ----
ssize_t read(int descriptor, void* to, std::size_t size) {
  if (auto* s = socket_of(descriptor)) return receive(*s, to, size, s->waits);
  before_file();
  return TUTTI_SYSTEM(read)(descriptor, to, size);
}
ssize_t write(int descriptor, const void* from, std::size_t size) {
  if (auto* s = socket_of(descriptor)) return transmit(*s, from, size, s->waits);
  const bool simulated = Scheduler::current() != nullptr;
  if (descriptor == STDERR_FILENO && on_message && simulated) {
    on_message({static_cast<const char*>(from), size});
    return static_cast<ssize_t>(size);
  }
  return write_file(descriptor, from, size);
}
int close(int descriptor) {
  if (const auto* socket = socket_of(descriptor)) {
    // A started program owns its ends of the pipes; its parent closes its copies of them.
    if (socket->owner == &Scheduler::current()->process()) Network::current()->close(descriptor);
    return 0;
  }
  before_file();  // it may release a lock
  if (auto* s = Scheduler::current()) s->process().descriptors.erase(descriptor);
  return TUTTI_SYSTEM(close)(descriptor);
}
int fcntl(int descriptor, int command, ...) {
  va_list list;
  va_start(list, command);
  const long value = va_arg(list, long);
  va_end(list);
  if (socket_of(descriptor) != nullptr) return 0;
  before_file();  // it may be a lock
  return TUTTI_SYSTEM(fcntl)(descriptor, command, value);
}
int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const auto mode = static_cast<mode_t>(va_arg(list, int));
  va_end(list);
  const std::string disk = before_disk(std::string(path));
  const bool makes = !disk.empty() && (flags & O_CREAT) != 0 && ::access(path, F_OK) != 0;
  if (makes && is_full(disk, 2)) return -1;
  const int made = opened(TUTTI_SYSTEM(open)(redirect(path), flags, mode));
  return noted(made, disk, [&](Disk& d) {
    if (makes) d.made(disk, false);
    if (!makes && (flags & O_TRUNC) != 0) d.cut(disk, 0);
  });
}
int fsync(int descriptor) { return sync_file(descriptor); }
int rename(const char* from, const char* to) noexcept {
  const std::string disk = before_disk(std::string(from));
  if (is_full(disk, 2)) return -1;
  return noted(TUTTI_SYSTEM(rename)(from, to), disk, [&](Disk& d) { d.renamed(disk, d.find(std::string(to))); });
}
int unlink(const char* path) noexcept {
  const std::string disk = before_disk(std::string(path));
  return noted(TUTTI_SYSTEM(unlink)(path), disk, [&](Disk& d) { d.removed(disk); });
}
int remove(const char* path) noexcept {
  const std::string disk = before_disk(std::string(path));
  return noted(TUTTI_SYSTEM(remove)(path), disk, [&](Disk& d) { d.removed(disk); });
}
int unlinkat(int folder, const char* name, int flags) noexcept {
  std::string disk = folder == AT_FDCWD ? before_disk(std::string(name)) : before_disk(folder);
  if (folder != AT_FDCWD && !disk.empty()) disk += std::string("/") + name;
  return noted(TUTTI_SYSTEM(unlinkat)(folder, name, flags), disk, [&](Disk& d) { d.removed(disk); });
}
int mkdir(const char* path, mode_t mode) noexcept {
  const std::string disk = before_disk(std::string(path));
  if (is_full(disk, 2)) return -1;
  return noted(TUTTI_SYSTEM(mkdir)(path, mode), disk, [&](Disk& d) { d.made(disk, true); });
}
int ftruncate(int descriptor, off_t size) noexcept {
  const std::string disk = before_disk(descriptor);
  return noted(TUTTI_SYSTEM(ftruncate)(descriptor, size), disk,
               [&](Disk& d) { d.cut(disk, static_cast<std::size_t>(size)); });
}
pid_t getpid() noexcept {
  auto* s = Scheduler::current();
  return s == nullptr ? TUTTI_SYSTEM(getpid)() : 1000 + s->process().number;
}
// Signal 0 asks whether a process exists.
int kill(pid_t number, int signal) noexcept {
  auto* s = Scheduler::current();
  if (s == nullptr) return TUTTI_SYSTEM(kill)(number, signal);
  if (send_signal && send_signal(number, signal)) return 0;
  for (const auto& p : s->processes())
    if (signal == 0 && p.number + 1000 == number && p.runs()) return 0;
  errno = ESRCH;
  return -1;
}

}  // extern "C"
}  // namespace tutti::simulation
