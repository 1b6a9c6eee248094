// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <array>
#include <functional>

#include <doctest/doctest.h>

#include "core/end_process.hpp"

namespace tutti::testing {

// Sends a value of a fixed size to another process.
template <class T>
void put(int fd, const T& v) {
  if (::write(fd, &v, sizeof v) != ssize_t{sizeof v}) ::_exit(9);
}
template <class T>
T get(int fd) {
  T v{};
  if (::read(fd, &v, sizeof v) != ssize_t{sizeof v}) v = {};
  return v;
}
// A child process with its own windows, which runs f(from parent, to parent). Its exit code is the result of f.
struct Process {
  std::array<int, 2> there{}, back{};
  pid_t pid = -1;
  explicit Process(const std::function<int(int in, int out)>& f) {
    REQUIRE(::pipe(there.data()) == 0);
    REQUIRE(::pipe(back.data()) == 0);
    pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
      ::close(there[1]);
      ::close(back[0]);
      testing::end_process(f(there[0], back[1]));
    }
    ::close(there[0]);
    ::close(back[1]);
  }
  ~Process() {
    if (pid > 0) ::kill(pid, SIGKILL);
    end();
    ::close(there[1]);
    ::close(back[0]);
  }
  // Waits for the process and returns its wait status.
  int end() {
    int status = 0;
    if (pid > 0) ::waitpid(pid, &status, 0);
    pid = -1;
    return status;
  }
};

}  // namespace tutti::testing
