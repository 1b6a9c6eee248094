// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include <tutti/strategy/parameter_server/wire/transport.hpp>

using namespace tutti;
using namespace std::chrono_literals;

TEST_CASE("waiting for pending sends ends at the deadline") {
  ps::PendingSends sends;
  const auto now = std::chrono::steady_clock::now();
  CHECK(sends.wait(now));
  sends.begin();
  sends.begin();
  sends.end();
  CHECK(!sends.none());
  // Returns false after a short wait, whatever the deadline.
  CHECK(!sends.wait(now - 1s));
  CHECK(!sends.wait(std::chrono::steady_clock::now() + 5ms));
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    sends.end();
  });
  CHECK(sends.wait(std::chrono::steady_clock::now() + 60s));
  later.join();
  CHECK(sends.none());
}
