// SPDX-License-Identifier: MIT
// Tests what a worker of parameter servers waits for: sends that read its memory, and servers that are started again.
#include <doctest/doctest.h>

#include <chrono>
#include <thread>

#include <tutti/strategy/parameter_server/wire/transport.hpp>
#include <tutti/strategy/parameter_server/worker/disconnected_servers.hpp>

using namespace tutti;
using namespace std::chrono_literals;

TEST_CASE("waiting for pending sends ends after the given time") {
  ps::PendingSends sends;
  CHECK(sends.wait(0s));
  sends.begin();
  sends.begin();
  sends.end();
  CHECK(!sends.none());
  // Returns false after a short wait, whatever the time.
  CHECK(!sends.wait(-1s));
  CHECK(!sends.wait(5ms));
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    sends.end();
  });
  CHECK(sends.wait(60s));
  later.join();
  CHECK(sends.none());
}

TEST_CASE("a pause of the worker does not count as time for which a server is disconnected") {
  ps::DisconnectedServers disconnected(3, 2s);
  CHECK_FALSE(disconnected.overdue(10s).has_value());
  disconnected.add(1);
  CHECK(disconnected.count() == 1);
  for (const auto at : {10s, 11s})
    CHECK_FALSE(disconnected.overdue(at).has_value());  // 11s: the process was paused for 1 s
  for (auto at = 11'100ms; at < 12'800ms; at += 100ms) CHECK_FALSE(disconnected.overdue(at).has_value());
  // The second loss of a server does not restart its time.
  disconnected.add(1);
  CHECK_FALSE(disconnected.overdue(3600s).has_value());
  CHECK(disconnected.overdue(3600s + 100ms) == 1);
  disconnected.remove(1);
  CHECK_FALSE(disconnected.overdue(3601s).has_value());
}
