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
#include <string>

#include "interposed_threads.hpp"
#include "network.hpp"
#include "system.hpp"

// The functions through which a program reaches sockets, pipes and files. Sockets and pipes are those of Network. Files
// are those of the system; a process can be stopped and killed between any two of these calls. Include it once in a
// program.
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
// Another process or thread may run before each use of a file.
inline void before_file() {
  if (Scheduler* s = Scheduler::current()) s->point();
}
// Returns where the simulation has a file, for the files of /proc.
inline const char* (*redirect)(const char* path) = [](const char* path) { return path; };
inline int opened(int descriptor) {
  if (Scheduler* s = Scheduler::current(); s != nullptr && descriptor >= 0) s->process().descriptors.insert(descriptor);
  return descriptor;
}
[[nodiscard]] inline Network::Socket* socket_of(int descriptor) {
  return Network::current() == nullptr ? nullptr : Network::current()->find(descriptor);
}

}  // namespace tutti::simulation

extern "C" {

// ---- sockets and pipes ----
int poll(pollfd* list, nfds_t count, int timeout) {
  using namespace tutti::simulation;
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
  auto* s = tutti::simulation::Scheduler::current();
  if (s == nullptr) return TUTTI_SYSTEM(pipe2)(ends, flags);
  auto& p = s->process();
  const auto pair = tutti::simulation::Network::current()->connect(p, p, (flags & O_NONBLOCK) == 0);
  ends[0] = tutti::simulation::Network::current()->claim(pair.first);
  ends[1] = tutti::simulation::Network::current()->claim(pair.second);
  return 0;
}
ssize_t send(int descriptor, const void* from, std::size_t size, int flags) {
  auto* s = tutti::simulation::socket_of(descriptor);
  if (s == nullptr) return TUTTI_SYSTEM(send)(descriptor, from, size, flags);
  return tutti::simulation::transmit(*s, from, size, s->waits && (flags & MSG_DONTWAIT) == 0);
}
ssize_t recv(int descriptor, void* to, std::size_t size, int flags) {
  auto* s = tutti::simulation::socket_of(descriptor);
  if (s == nullptr) return TUTTI_SYSTEM(recv)(descriptor, to, size, flags);
  return tutti::simulation::receive(*s, to, size, s->waits && (flags & MSG_DONTWAIT) == 0);
}
int setsockopt(int descriptor, int level, int name, const void* value, socklen_t size) noexcept {
  auto* s = tutti::simulation::socket_of(descriptor);
  if (s == nullptr) return TUTTI_SYSTEM(setsockopt)(descriptor, level, name, value, size);
  if (level == SOL_SOCKET && name == SO_SNDTIMEO) {
    const auto& t = *static_cast<const timeval*>(value);
    s->send_timeout = t.tv_sec * tutti::simulation::second + t.tv_usec * 1000;
  }
  return 0;
}

// ---- sockets and files ----
ssize_t read(int descriptor, void* to, std::size_t size) {
  if (auto* s = tutti::simulation::socket_of(descriptor)) return tutti::simulation::receive(*s, to, size, s->waits);
  tutti::simulation::before_file();
  return TUTTI_SYSTEM(read)(descriptor, to, size);
}
ssize_t write(int descriptor, const void* from, std::size_t size) {
  if (auto* s = tutti::simulation::socket_of(descriptor)) return tutti::simulation::transmit(*s, from, size, s->waits);
  tutti::simulation::before_file();
  return TUTTI_SYSTEM(write)(descriptor, from, size);
}
int close(int descriptor) {
  if (tutti::simulation::socket_of(descriptor) != nullptr) {
    tutti::simulation::Network::current()->close(descriptor);
    return 0;
  }
  if (auto* s = tutti::simulation::Scheduler::current()) {
    s->point();
    s->process().descriptors.erase(descriptor);
  }
  return TUTTI_SYSTEM(close)(descriptor);
}
int fcntl(int descriptor, int command, ...) {
  va_list list;
  va_start(list, command);
  const long value = va_arg(list, long);
  va_end(list);
  return tutti::simulation::socket_of(descriptor) != nullptr ? 0 : TUTTI_SYSTEM(fcntl)(descriptor, command, value);
}
int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const auto mode = static_cast<mode_t>(va_arg(list, int));
  va_end(list);
  tutti::simulation::before_file();
  return tutti::simulation::opened(TUTTI_SYSTEM(open)(tutti::simulation::redirect(path), flags, mode));
}
int fsync(int descriptor) {
  tutti::simulation::before_file();
  // No schedule cuts the machine's power, so the file need not reach the disk.
  return tutti::simulation::Scheduler::current() == nullptr ? TUTTI_SYSTEM(fsync)(descriptor) : 0;
}
int rename(const char* from, const char* to) noexcept {
  tutti::simulation::before_file();
  return TUTTI_SYSTEM(rename)(from, to);
}
int unlink(const char* path) noexcept {
  tutti::simulation::before_file();
  return TUTTI_SYSTEM(unlink)(path);
}
int mkdir(const char* path, mode_t mode) noexcept {
  tutti::simulation::before_file();
  return TUTTI_SYSTEM(mkdir)(path, mode);
}
int ftruncate(int descriptor, off_t size) noexcept {
  tutti::simulation::before_file();
  return TUTTI_SYSTEM(ftruncate)(descriptor, size);
}
pid_t getpid() noexcept {
  auto* s = tutti::simulation::Scheduler::current();
  return s == nullptr ? TUTTI_SYSTEM(getpid)() : 1000 + s->process().number;
}
// Signal 0 asks whether a process exists. Processes of the simulation send each other no signals.
int kill(pid_t number, int signal) noexcept {
  auto* s = tutti::simulation::Scheduler::current();
  if (s == nullptr) return TUTTI_SYSTEM(kill)(number, signal);
  for (const auto& p : s->processes())
    if (p.number + 1000 == number && p.runs()) return 0;
  errno = ESRCH;
  return -1;
}

}  // extern "C"
