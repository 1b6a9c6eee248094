// SPDX-License-Identifier: MIT
// Tests how tutti-launch reads data of other processes, which may end at any time.
#include <doctest/doctest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>

#include "tools/launch/host/process.hpp"

using namespace tutti;
using namespace tutti::launch;

namespace {

void reap(pid_t pid) {
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

TEST_CASE("the state, parent and environment of a process can be read until the process ends") {
  ::setenv("TUTTI_TEST_PROCESS", "is here", 1);
  const Started child = start_process({.argv = {"sleep", "1000"}});
  ::unsetenv("TUTTI_TEST_PROCESS");
  REQUIRE(child.error == 0);
  const auto status = process_status(child.pid);
  REQUIRE(status);
  CHECK(status->parent == ::getpid());
  CHECK(status->group == child.pid);
  CHECK(lives(child.pid, status->start));
  CHECK(!lives(child.pid, status->start + 1));
  CHECK(started_with(child.pid, "TUTTI_TEST_PROCESS=is here"));
  CHECK(!started_with(child.pid, "TUTTI_TEST_PROCESS=is"));
  const auto mine = [&] { return processes_where([&](pid_t p, const ProcessStatus&) { return p == child.pid; }); };
  CHECK(mine().size() == 1);

  ::kill(child.pid, SIGKILL);
  siginfo_t ended{};
  CHECK(::waitid(P_PID, static_cast<id_t>(child.pid), &ended, WEXITED | WNOWAIT) == 0);
  // Its parent has not collected its exit status yet.
  CHECK(process_status(child.pid)->state == 'Z');
  CHECK(!lives(child.pid, status->start));
  CHECK(mine().empty());
  reap(child.pid);
  CHECK(!process_status(child.pid));
  CHECK(proc_text(child.pid, "stat").empty());
  CHECK(!started_with(child.pid, "TUTTI_TEST_PROCESS=is here"));
}

TEST_CASE("a file that opens but cannot be read is empty") {
  CHECK(proc_text(::getpid(), "mem").empty());  // address 0 is not mapped
  CHECK(proc_text(::getpid(), "").empty());     // a folder
  CHECK(proc_text(::getpid(), "no such file").empty());
}

// A process may end after its file was opened. Then the read fails.
TEST_CASE("reading processes that end at the same moment") {
  constexpr int rounds = 3000;
  std::array<std::atomic<pid_t>, 4> running{};
  std::atomic<bool> over{false};
  std::atomic<long> read{0};
  std::exception_ptr thrown;
  std::thread reader([&] {
    try {
      while (!over)
        for (const auto& slot : running) {
          const pid_t pid = slot;
          if (pid == 0) continue;
          const auto status = process_status(pid);
          if (status && status->parent == ::getpid()) ++read;
          (void)started_with(pid, "TUTTI_TEST_PROCESS=is here");
          (void)proc_text(pid, "cmdline");
        }
    } catch (...) {
      thrown = std::current_exception();
    }
  });
  int started = 0;
  for (int i = 0; i < rounds; ++i) {
    auto& slot = running[static_cast<std::size_t>(i) % running.size()];
    if (const pid_t before = slot; before != 0) reap(before);
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(0);
    slot = pid > 0 ? pid : 0;
    if (pid < 0) break;
    ++started;
    if (i % 16 == 0) (void)processes_where([](pid_t, const ProcessStatus&) { return true; });
  }
  for (auto& slot : running)
    if (slot != 0) reap(slot);
  over = true;
  reader.join();
  CHECK(started == rounds);
  CHECK(!thrown);
  CHECK(read > 0);
}
