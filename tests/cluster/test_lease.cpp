// SPDX-License-Identifier: MIT
// Tests the lease, which prevents a process that was removed from the job from writing, and its clock.
#include <doctest/doctest.h>
#include <time.h>

#include <chrono>
#include <thread>

#include <tutti/cluster/channel/lease.hpp>
#include <tutti/cluster/elastic_member.hpp>
#include <tutti/comm/deadline.hpp>

using namespace tutti::control;
using namespace std::chrono_literals;

TEST_CASE("a lease stores the heartbeats that can still renew the lease, and counts heartbeats from 1") {
  Lease lease;
  lease.set_timeout(8s);
  CHECK(lease.send_heartbeat(100s) == 1);
  CHECK(lease.send_heartbeat(104s) == 2);
  CHECK(lease.send_heartbeat(108s) == 3);
  // An answer to the first heartbeat would still give a lease after 8 s, but not 1 ns later.
  Lease on_time = lease;
  on_time.acknowledge(1);
  CHECK(on_time.holds(105s));
  CHECK(lease.send_heartbeat(108s + 1ns) == 4);
  lease.acknowledge(1);
  CHECK_FALSE(lease.holds(105s));
  lease.acknowledge(2);
  CHECK(lease.holds(109s));
  lease.acknowledge(4);
  CHECK(lease.holds(114s));
  CHECK_FALSE(lease.holds(114s + 1ns));
  CHECK(lease.send_heartbeat(500s) == 5);
  lease.acknowledge(3);  // was answered together with the fourth
  CHECK_FALSE(lease.holds(114s + 1ns));
  CHECK(heartbeat_interval == 500ms);
}

TEST_CASE("the timer adds up the time between its calls, and counts a pause of the process as one short interval") {
  PauseTolerantTimer p(4s);
  CHECK_FALSE(p.is_over(100s));
  CHECK(p.next_wait() == 100ms);
  CHECK_FALSE(p.is_over(101s));
  // The process did not call for 40 s, so the timer knows that the process was paused.
  for (const auto at : {141s, 142s, 143s}) CHECK_FALSE(p.is_over(at));
  CHECK_FALSE(p.is_over(143s + 899ms));
  CHECK(p.next_wait() == 1ms);
  CHECK(p.is_over(143s + 900ms));
  CHECK(p.is_over(143s + 900ms));
  CHECK(PauseTolerantTimer(0s).is_over(5s));
  // With a limit of 1 s, any time above 250 ms is a pause.
  PauseTolerantTimer shorter(1s);
  for (const auto at : {0ms, 900ms, 1800ms, 2050ms, 2300ms, 2550ms}) CHECK_FALSE(shorter.is_over(100s + at));
  CHECK(shorter.next_wait() == 50ms);
  CHECK(shorter.is_over(100s + 2600ms));
}

TEST_CASE("a wait for an extended deadline counts for the deadline itself") {
  const tutti::Deadline operation(1ms);
  const tutti::Deadline longer = operation.extended(5ms);
  CHECK(longer.left() == 6ms);
  while (!longer.is_over()) std::this_thread::sleep_for(longer.next_wait());
  CHECK(operation.left() == 0ms);
  CHECK(operation.is_over());
  CHECK(tutti::Deadline(0ms).is_over());
  CHECK(tutti::Deadline(0ms).is_nearly_over());
  CHECK_FALSE(tutti::Deadline(100ms).is_nearly_over());
}

TEST_CASE("a round that takes longer than a thread may wait for a processor contains a pause of the process") {
  tutti::PauseMeter m;
  CHECK(m.end_round(100s, 1s) == 0s);  // the first round
  CHECK(m.end_round(100s + 250ms, 1s) == 0s);
  CHECK(m.end_round(100s + 501ms, 1s) == 151ms);
  CHECK(m.end_round(100s + 601ms, 1s) == 0s);
  CHECK(m.end_round(160s + 601ms, 1s) == 60s - 100ms);
  CHECK(m.end_round(170s + 601ms, 10s + 800ms) == 0s);  // it worked for 9.8 of 10 s
  CHECK(m.end_round(180s + 601ms, 10s + 900ms) == 9s + 800ms);
}

TEST_CASE("the clock continues while a machine is suspended") {
  const auto read = [] {
    timespec t{};
    REQUIRE(::clock_gettime(CLOCK_BOOTTIME, &t) == 0);
    return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
  };
  for (int i = 0; i < 100; ++i) {
    const Time before = read(), here = now(), after = read();
    CHECK(before <= here);
    CHECK(here <= after);
  }
}

TEST_CASE("after the end of a channel the flag of each later group is raised") {
  tutti::detail::GroupFlag flags;
  CHECK_FALSE(flags.renew()->raised());
  flags.end("no answer");
  const auto later = flags.renew();
  CHECK(later->raised());
  CHECK(later->why() == "no answer");
}
