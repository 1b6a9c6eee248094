// SPDX-License-Identifier: MIT
// Tests the arbiter's rules: which processes it admits, their numbers, and which processes it removes. Changes:
// test_membership_changes.cpp; random schedules: test_membership_random.cpp.
#include <doctest/doctest.h>

#include <optional>
#include <string>

#include <tutti/cluster/channel/lease.hpp>
#include "membership_scene.hpp"

using namespace tutti;
using namespace tutti::control;
using namespace std::chrono_literals;

TEST_CASE("the first generation begins when all processes have joined, with the ranks that the launcher assigned") {
  Scene s(options(3, 2));
  s.enrol(7, Role::server, 1);
  s.enrol(5, Role::worker, 2);
  CHECK(s.last<Waiting>(5)->missing == "worker 0, worker 1, server 0");
  s.enrol(3, Role::worker, 0);
  s.enrol(9, Role::server, 0);
  CHECK(s.last<Waiting>(7)->missing == "worker 0, worker 1, worker 2 and 1 more");
  s.send_heartbeat(7);
  CHECK(s.last<Waiting>(7)->missing == "worker 1");
  CHECK_FALSE(s.last<NewGeneration>(5).has_value());
  CHECK(s.arbiter.generation() == 0);
  s.enrol(1, Role::worker, 1);
  const auto issued = s.last<NewGeneration>(9);
  REQUIRE(issued.has_value());
  CHECK(issued->generation == 1);
  CHECK(issued->you == 3);
  CHECK(issued->authority == 0);
  CHECK(issued->rank_timeout_ms == 10000);
  REQUIRE(issued->members.size() == 5);
  const char* names[] = {"worker 0 on h3", "worker 1 on h1", "worker 2 on h5", "server 0 on h9", "server 1 on h7"};
  for (std::size_t i = 0; i < 5; ++i) CHECK(issued->members[i].name() == names[i]);
  CHECK(s.ids() == "0 1 2 3 4");
  CHECK(s.count(Decision::Kind::issued) == 1);

  // The members compute after all have formed their group. The message comes once.
  for (const ConnectionId connection : {3U, 1U, 5U, 9U, 9U}) s.tell(connection, GroupReady{1});
  s.tell(7, GroupReady{2});
  CHECK_FALSE(s.last<Start>(3).has_value());
  s.tell(7, GroupReady{1});
  for (const ConnectionId connection : {3U, 1U, 5U, 9U, 7U}) CHECK(s.last<Start>(connection)->generation == 1);
  CHECK(s.count(Decision::Kind::standing) == 1);
}

TEST_CASE("only the process that differs from the majority is refused, whatever the order of joining") {
  for (int odd = 0; odd < 3; ++odd)
    for (int first = 0; first < 3; ++first) {
      Scene s(options(3, 0, true));
      for (int i = 0; i < 3; ++i) {
        const int place = (first + i) % 3;
        s.enrol(static_cast<ConnectionId>(place), Role::worker, place, place == odd ? "b" : "a");
      }
      const auto refused = s.last<Rejection>(static_cast<ConnectionId>(odd));
      REQUIRE(refused.has_value());
      CHECK(refused->code == 2);
      CHECK(refused->reason == "[worker " + std::to_string(odd) + " on h" + std::to_string(odd) +
                                   "] expected model a, as the others have, got b. hint: start all processes with the "
                                   "same program, options and data.");
      CHECK(s.count(Decision::Kind::refused) == 1);
      CHECK(s.arbiter.members().size() == 2);
      for (const Member& m : s.arbiter.members()) CHECK(m.place != odd);
      // The arbiter compares a later process with the same majority.
      s.enrol(8, Role::worker, 8, "b");
      CHECK(s.last<Rejection>(8)->code == 2);
    }
  // If two processes differ, the facts of the lower number count.
  Scene two(options(2, 1));
  two.enrol(4, Role::server, 0, "a");
  two.enrol(1, Role::worker, 1, "b");
  two.enrol(0, Role::worker, 0, "a");
  CHECK(two.last<Rejection>(1)->code == 2);
  // A job with fixed members does not begin without the refused process, and the other processes do not wait for it.
  for (const ConnectionId connection : {0U, 4U}) {
    CHECK(two.last<Rejection>(connection)->code == 5);
    CHECK(two.last<Rejection>(connection)->reason ==
          "[job] expected all required processes, got worker 1 on h1 was refused.");
  }
  CHECK(two.arbiter.generation() == 0);
  CHECK(two.decisions.back().fatal);
}

TEST_CASE("if a required process is lost before the first generation, the job ends for all waiting processes") {
  for (const bool server : {false, true}) {
    Scene s(options(2, 2));
    s.enrol(10, Role::server, 0);
    s.workers(2);
    s.ended(server ? 10 : 1);
    CHECK(s.decisions.back().fatal);
    CHECK(s.last<Rejection>(0)->code == 5);
    // A process that comes later gets the same reason.
    s.enrol(11, Role::server, 1);
    CHECK(s.last<Rejection>(11)->reason == "[job] expected all required processes, got " +
                                               std::string(server ? "server 0 on h10" : "worker 1 on h1") +
                                               " is gone: SIGKILL.");
    CHECK(s.arbiter.generation() == 0);
  }
}

TEST_CASE("an elastic job may lose all servers except the last, but no server if servers hold the trained state") {
  auto o = options(2, 2, true);
  const auto found = [](Scene& s) {
    s.workers(2);
    for (const int i : {0, 1}) s.enrol(static_cast<ConnectionId>(10 + i), Role::server, i);
    for (const ConnectionId connection : {0U, 1U, 10U, 11U}) s.tell(connection, GroupReady{1});
  };
  Scene free(o);
  found(free);
  free.ended(10);
  CHECK_FALSE(free.decisions.back().fatal);
  free.change_over({{0, 4}, {1, 4}});
  CHECK(free.ids() == "0 1 3");
  free.ended(11);
  CHECK(free.decisions.back().fatal);
  free.change_over({{0, 4}, {1, 4}});
  CHECK(free.arbiter.generation() == 2);
  o.servers_hold = true;
  o.reports = false;
  Scene holding(o);
  found(holding);
  // The servers hold the state: the job survives the loss of all workers, but not of a server.
  holding.ended(0);
  holding.ended(1);
  CHECK_FALSE(holding.decisions.back().fatal);
  holding.enrol(5, Role::worker, 5);
  CHECK(holding.last<NewGeneration>(5).has_value());
  holding.ended(11);
  CHECK(holding.decisions.back().fatal);
  CHECK(holding.last<MembershipChange>(5)->lost.back().name() == "server 1 on h11");
  holding.enrol(6, Role::worker, 6);
  CHECK(holding.last<Rejection>(6)->code == 5);
}

TEST_CASE("a server is compared with other servers, and with workers in the facts that both have") {
  const auto server = [](const std::string& model, const std::string& port) {
    JobFacts f;
    f.add("port", port);  // the workers have no such fact
    f.add("model", model);
    return f.text();
  };
  const auto scene = [&](const std::string& first, const std::string& second) {
    Scene s(options(2, 2));
    s.tell(10, Enrol{Role::server, 0, "h", first});
    s.tell(11, Enrol{Role::server, 1, "h", second});
    s.workers(2);
    std::string refused;
    for (const ConnectionId connection : {0U, 1U, 10U, 11U})
      if (const auto r = s.last<Rejection>(connection); r && r->code == 2)
        refused += std::to_string(connection) + ": " + r->reason.substr(0, r->reason.find(". hint")) + "; ";
    return refused;
  };
  CHECK(scene(server("a", "1"), server("a", "1")).empty());
  CHECK(scene(server("a", "1"), server("a", "2")) ==
        "11: [server 1 on h] expected port 1, as the others have, got 2; ");
  // The workers' value takes precedence, in whichever order the servers connect.
  CHECK(scene(server("b", "1"), server("a", "1")) ==
        "10: [server 0 on h] expected model a, as the workers have, got b; ");
  CHECK(scene(server("b", "1"), server("b", "1")) ==
        "10: [server 0 on h] expected model a, as the workers have, got b; "
        "11: [server 1 on h] expected model a, as the workers have, got b; ");
}

TEST_CASE("a process number that is in use, or that the job does not have, is refused") {
  Scene s(options(2));
  s.enrol(1, Role::worker, 0);
  s.enrol(2, Role::worker, 0);
  CHECK(s.last<Rejection>(2)->reason ==
        "[worker 0 on h2] expected an unused number, got the number of worker 0 on h2, which has joined already.");
  s.enrol(3, Role::worker, 2);
  CHECK(s.last<Rejection>(3)->reason == "[worker 2 on h3] expected a number from 0 to 1, got 2.");
  s.enrol(4, Role::worker, -1);
  CHECK(s.last<Rejection>(4).has_value());
  s.enrol(5, Role::server, 0);
  CHECK(s.last<Rejection>(5).has_value());
  s.enrol(1, Role::worker, 1);  // a repeated request has no effect
  CHECK(s.arbiter.generation() == 0);
  s.enrol(6, Role::worker, 1);
  CHECK(s.arbiter.generation() == 1);
  s.ended(6);
  s.enrol(7, Role::worker, 1);
  CHECK(s.last<Rejection>(7)->reason ==
        "[worker 1 on h7] expected only the processes with which the job began, got an additional process.");
  // A refused process gets no further message, even if it sends one.
  s.tell(7, Heartbeat{1});
  CHECK_FALSE(s.last<HeartbeatAck>(7).has_value());
  s.tell(99, Heartbeat{1});  // a connection that has never asked for admission
  CHECK_FALSE(s.last<HeartbeatAck>(99).has_value());
}

TEST_CASE("a process is lost when the whole time-out has passed since its last heartbeat") {
  Scene s(options(3));
  s.workers(3);
  s.pass(9s);
  s.send_heartbeat(0);
  s.send_heartbeat(2);
  CHECK(s.last<HeartbeatAck>(2)->number == 2);
  s.pass(999ms);
  CHECK(s.count(Decision::Kind::lost) == 0);
  s.pass(1ms);
  REQUIRE(s.count(Decision::Kind::lost) == 1);
  CHECK(s.decisions.back().member.name() == "worker 1 on h1");
  CHECK(s.decisions.back().why == "no message for 10 s");
  CHECK(s.decisions.back().fatal);
  // The members get a report at once, and the lost process at its next message. A job that cannot lose a process has no
  // further generation.
  CHECK(s.last<MembershipChange>(0)->lost.at(0).name() == "worker 1 on h1");
  CHECK_FALSE(s.last<MembershipChange>(1).has_value());
  s.send_heartbeat(1);
  CHECK_FALSE(s.last<HeartbeatAck>(1).has_value());
  CHECK(s.last<Rejection>(1)->code == 5);
  s.change_over({{0, 4}, {2, 4}});
  CHECK(s.arbiter.generation() == 1);
}

TEST_CASE("an arbiter that was unable to receive gives up no process because of that time") {
  Scene s(options(2));
  s.workers(2);
  s.now += 60s;
  s.arbiter.forgive(s.now, 60s);
  s.pass(0s);
  CHECK(s.count(Decision::Kind::lost) == 0);
  s.pass(10s);
  CHECK(s.count(Decision::Kind::lost) == 2);
}

TEST_CASE("only a server can restart with its previous number") {
  ArbiterOptions o = options(2, 2);
  o.servers_restart = true;
  o.reports = false;
  Scene s(o);
  s.workers(2);
  s.enrol(5, Role::server, 0);
  s.enrol(6, Role::server, 1);
  s.ended(5);
  CHECK_FALSE(s.decisions.back().fatal);
  CHECK(s.arbiter.generation() == 1);
  s.enrol(7, Role::server, 2);
  CHECK(s.last<Rejection>(7).has_value());
  s.enrol(8, Role::server, 0, "b");
  CHECK(s.last<Rejection>(8)->code == 2);
  s.enrol(9, Role::server, 0);
  CHECK(s.arbiter.generation() == 2);
  CHECK(s.last<NewGeneration>(0)->generation == 2);
  const auto members = s.last<NewGeneration>(6)->members;
  CHECK(members.at(2).name() == "server 0 on h9");
  CHECK(members.at(2).id > 3);
  CHECK(members.at(3).name() == "server 1 on h6");
  s.ended(1);
  CHECK(s.decisions.back().fatal);
}

TEST_CASE("the lease holds for three quarters of the time-out after the last answered heartbeat was sent") {
  Lease lease(8s);
  CHECK_FALSE(lease.holds(0s));
  const auto first = lease.send_heartbeat(100s);
  const auto second = lease.send_heartbeat(101s);
  CHECK_FALSE(lease.holds(101s));
  lease.acknowledge(first);
  CHECK(lease.holds(105s + 999ms));
  CHECK_FALSE(lease.holds(106s));
  lease.acknowledge(second);
  CHECK(lease.holds(106s + 999ms));
  CHECK_FALSE(lease.holds(107s));
  // Late, repeated or unrequested answers do not extend the lease beyond the time that their own heartbeat allows.
  lease.acknowledge(first);
  lease.acknowledge(second + 5);
  CHECK_FALSE(lease.holds(107s));
  const auto third = lease.send_heartbeat(110s);
  lease.acknowledge(third);
  CHECK(lease.holds(111s));
  lease.end();
  CHECK_FALSE(lease.holds(111s));
}

TEST_CASE("an elastic job begins without a process that never joins, or that joins and dies") {
  Scene s(options(4, 0, true));
  s.enrol(0, Role::worker, 0);
  s.enrol(3, Role::worker, 3);
  s.ended(3);
  s.send_heartbeat(0);
  CHECK(s.last<Waiting>(0)->missing == "worker 1, worker 2");
  s.arbiter.never_comes(Role::worker, 1);
  s.arbiter.never_comes(Role::worker, 7);
  s.arbiter.never_comes(Role::worker, 0);  // has no effect on a process that is present
  CHECK(s.arbiter.generation() == 0);
  s.enrol(2, Role::worker, 2);
  REQUIRE(s.last<NewGeneration>(2).has_value());
  CHECK(s.last<NewGeneration>(2)->generation == 1);
  CHECK(s.ids() == "0 2");
  for (const ConnectionId connection : {0U, 2U}) s.tell(connection, GroupReady{1});
  // No process is missing now. A process that joins may take the place of one that never came.
  s.arbiter.never_comes(Role::worker, 2);
  CHECK(s.ids() == "0 2");
  s.enrol(9, Role::worker, 1);
  s.change_over({{0, 5}, {2, 5}});
  CHECK(s.ids() == "0 2 4");

  // In this job the process that never comes is the last missing one.
  Scene t(options(2, 0, true));
  t.enrol(1, Role::worker, 1);
  t.arbiter.never_comes(Role::worker, 0);
  t.tell(1, Heartbeat{1});
  CHECK(t.last<NewGeneration>(1).has_value());

  // A job with fixed members needs all of them.
  Scene u(options(2));
  u.enrol(1, Role::worker, 1);
  u.arbiter.never_comes(Role::worker, 0);
  CHECK(u.arbiter.generation() == 0);
}
