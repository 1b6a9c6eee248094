// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tutti/train/signals.hpp>

using namespace tutti;

namespace {

int times_called = 0;
void count(int) { ++times_called; }

// Runs f in a child process and returns its wait status.
template <class F>
int in_child(F&& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(STDERR_FILENO);
    f();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("each signal requests a stop, with its exit code") {
  for (const int number : {SIGINT, SIGTERM}) {
    StopSignals signals;
    CHECK_FALSE(StopSignals::stop_requested());
    CHECK(StopSignals::exit_code() == 0);
    ::raise(number);
    CHECK(StopSignals::stop_requested());
    CHECK(StopSignals::signal_number() == number);
    CHECK(StopSignals::exit_code() == (number == SIGINT ? 130 : 143));
  }
}

TEST_CASE("the first signal decides, and a second SIGTERM has no effect") {
  StopSignals signals;
  ::raise(SIGTERM);
  ::raise(SIGTERM);
  CHECK(StopSignals::exit_code() == 143);
}

TEST_CASE("a second SIGINT ends the process at once") {
  const int status = in_child([] {
    StopSignals signals;
    ::raise(SIGINT);
    ::raise(SIGINT);
  });
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 130);
  const int after_term = in_child([] {
    StopSignals signals;
    ::raise(SIGTERM);
    ::raise(SIGINT);
  });
  CHECK(WEXITSTATUS(after_term) == 130);
}

TEST_CASE("the earlier handlers are restored") {
  struct sigaction mine {};
  struct sigaction before {};
  mine.sa_handler = &count;
  ::sigemptyset(&mine.sa_mask);
  ::sigaction(SIGTERM, &mine, &before);
  {
    StopSignals signals;
    ::raise(SIGTERM);
    CHECK(times_called == 0);
  }
  ::raise(SIGTERM);
  CHECK(times_called == 1);
  ::sigaction(SIGTERM, &before, nullptr);
  const int status = in_child([] {
    ::signal(SIGINT, SIG_DFL);
    { StopSignals signals; }
    ::raise(SIGINT);
  });
  CHECK(WIFSIGNALED(status));
}

TEST_CASE("signals work if a shell started the process with SIGINT ignored") {
  const int status = in_child([] {
    ::signal(SIGINT, SIG_IGN);
    StopSignals signals;
    ::raise(SIGINT);
    ::_exit(StopSignals::stop_requested() ? 7 : 0);
  });
  CHECK(WEXITSTATUS(status) == 7);
}

TEST_CASE("only one StopSignals object can exist at a time") {
  StopSignals signals;
  CHECK_THROWS_AS(StopSignals{}, UsageError);
  ::raise(SIGINT);
  CHECK(StopSignals::stop_requested());
}
