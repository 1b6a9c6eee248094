// SPDX-License-Identifier: MIT
// Tests the exit code and the signals of a process that serves workers.
#include <doctest/doctest.h>

#include <csignal>

#include <tutti/cluster/launch/server_process.hpp>
#include <tutti/core/error.hpp>

using namespace tutti;

TEST_CASE("a server whose workers have ended it exits with code 0") {
  bool served = false;
  CHECK(run_server_process([&](const auto& stop_requested) { served = !stop_requested(); }) == 0);
  CHECK(served);
}

TEST_CASE("if a server fails without a signal, the caller gets its error") {
  CHECK_THROWS_AS((void)run_server_process([](const auto&) { fail<CommunicationError>("server", "workers", "none"); }),
                  CommunicationError);
}

TEST_CASE("a signal ends a server that has no workers, with the exit code of the signal") {
  for (const int number : {SIGTERM, SIGINT}) {
    CAPTURE(number);
    detail::server_signal = 0;
    const int code = run_server_process([&](const auto& stop_requested) {
      CHECK_FALSE(stop_requested());
      std::raise(number);
      REQUIRE(stop_requested());
      fail<CommunicationError>("server", "workers", "none");
    });
    CHECK(code == 128 + number);
    // A second signal would end the process at once.
    const bool ends_at_once = std::signal(number, SIG_DFL) == SIG_DFL;
    CHECK(ends_at_once);
  }
}
