// SPDX-License-Identifier: MIT
// Tests the arbiter's decisions and its admission of processes at their limits, with one condition more or fewer. A
// mutation of a rule that no test detected was the reason for each test. test_membership_generations.cpp does the same
// for the rules of generations.
#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <string>

#include "membership_scene.hpp"

using namespace tutti;
using namespace tutti::control;
using namespace std::chrono_literals;

TEST_CASE("before the first process joins, the state is empty") {
  const Scene s(options(2));
  CHECK(s.arbiter.generation() == 0);
  CHECK(s.arbiter.authority() == 0);
  CHECK(s.arbiter.epoch() == 0);
  CHECK_FALSE(s.arbiter.too_few());
  CHECK_FALSE(s.arbiter.finished());
  CHECK_FALSE(s.arbiter.stopping());
}

TEST_CASE("a decision gives its process, and ends the job only if it is marked as fatal") {
  Scene s = standing(options(2, 0, true));
  const auto last = [&](Decision::Kind kind) {
    std::optional<Decision> found;
    for (const Decision& d : s.decisions)
      if (d.kind == kind) found = d;
    return found;
  };
  for (const auto kind : {Decision::Kind::issued, Decision::Kind::standing}) {
    CHECK(last(kind)->connection == 0);
    CHECK_FALSE(last(kind)->fatal);
    CHECK(last(kind)->generation == 1);
  }
  s.enrol(9, Role::worker, 0);
  CHECK(last(Decision::Kind::refused)->connection == 9);
  CHECK(last(Decision::Kind::refused)->member.id == 0);  // the arbiter never gave it a number
  CHECK_FALSE(last(Decision::Kind::refused)->fatal);
  s.tell(1, Leave{true});
  CHECK(last(Decision::Kind::left)->connection == 1);
  CHECK_FALSE(last(Decision::Kind::left)->fatal);
}

TEST_CASE("messages give the duration of a silence in seconds and tenths") {
  for (const auto& [timeout, text] : {std::pair{2500ms, "2.5 s"}, std::pair{1999ms, "1.9 s"},
                                      std::pair{999500ms, "999.5 s"}, std::pair{3000ms, "3 s"}}) {
    ArbiterOptions o = options(1);
    o.rank_timeout = timeout;
    Scene s(o);
    s.workers(1);
    s.pass(timeout);
    CHECK(s.decisions.back().why == "no message for " + std::string(text));
  }
}

TEST_CASE("the number of a connection can be used again when its process has ended") {
  Scene s = standing(options(2, 0, true));
  s.ended(1);
  s.tell(0, Report{1, 4, true, false});
  CHECK(s.ids() == "0");
  s.enrol(1, Role::worker, 9);
  CHECK(s.last<MembershipChange>(0)->joining == 1);
}

TEST_CASE(
    "a host whose process was asked to leave, and ended, may join again; a request before the job began has no "
    "effect") {
  Scene s = standing(options(2, 0, true));
  s.arbiter.ask_to_leave(1);
  s.ended(1);
  s.tell(0, Report{1, 4, true, false});
  s.enrol(1, Role::worker, 9);
  CHECK_FALSE(s.last<LeaveGranted>(1).has_value());
  CHECK(s.last<MembershipChange>(0)->joining == 1);
  Scene t(options(1, 0, true));
  t.arbiter.ask_to_leave(0);
  t.workers(1);
  CHECK(t.ids() == "0");
}

TEST_CASE("a job cannot continue with servers alone") {
  auto o = options(1, 1, true);
  Scene s = standing(o);
  CHECK_FALSE(s.arbiter.can_spare({0}));
  o.min_workers = 0;
  CHECK_FALSE(standing(o).arbiter.can_spare({0}));
}

TEST_CASE("a number outside the initial processes is refused, except for a process that joins an elastic job") {
  Scene none(options(2));
  none.enrol(5, Role::server, 0);
  CHECK(none.last<Rejection>(5)->reason ==
        "[server 0 on h5] expected no number, because the job begins without processes of this role, got 0.");
  Scene one(options(1, 1));
  one.enrol(5, Role::server, 1);
  CHECK(one.last<Rejection>(5)->reason == "[server 1 on h5] expected number 0, got 1.");
  // The next process gets the number after those of the founders, and no process gets it again.
  Scene s(options(2, 0, true));
  s.enrol(7, Role::worker, 2);
  s.enrol(8, Role::worker, 3);
  s.workers(2);
  // They join when the founders have formed a group.
  CHECK(s.ids() == "0 1");
  for (const ConnectionId c : {0, 1}) s.tell(c, GroupReady{1});
  for (const ConnectionId c : {0, 1}) s.tell(c, Report{1, 0});
  CHECK(s.ids() == "0 1 2 3");
}

TEST_CASE("a process that joins again is refused unless it is a server that may restart") {
  auto o = options(2, 2);
  o.servers_restart = true;
  Scene s = standing(o);
  s.ended(1);
  s.enrol(9, Role::worker, 1);
  CHECK(s.last<Rejection>(9)->code == 2);
  o.servers_restart = false;
  Scene t = standing(o);
  t.ended(100);
  CHECK(t.decisions.back().fatal);  // although another server exists
  t.enrol(9, Role::server, 0);
  CHECK(t.last<Rejection>(9)->code == 2);
  // If workers may be lost and servers restart, the loss of the last server is not fatal.
  o = options(2, 1, true);
  o.servers_restart = true;
  Scene u = standing(o);
  u.ended(100);
  CHECK_FALSE(u.decisions.back().fatal);
}

TEST_CASE("servers are released when the last worker is lost, if no other worker can join") {
  for (const bool hold : {false, true})
    for (const char* end : {"stopping", "finished", "lost before the stop", "neither"}) {
      CAPTURE(hold);
      CAPTURE(end);
      const std::string how = end;
      auto o = options(2, 1, true);
      o.servers_hold = hold;
      o.reports = !hold;
      Scene s = standing(o);
      if (how == "stopping") s.arbiter.stop_all();
      if (how == "finished") s.tell(0, Leave{true});
      s.ended(1);
      CHECK(times<LeaveGranted>(s, 100) == (how == "finished" ? 1 : 0));
      if (how != "finished") s.ended(0);
      if (how == "lost before the stop") s.arbiter.stop_all();
      s.send_heartbeat(100);  // shows the messages
      // In the two other cases new workers may come, or the job has ended with a message.
      CHECK(times<LeaveGranted>(s, 100) == (how == "neither" ? 0 : 1));
    }
}

TEST_CASE("servers are released when the work is done, also if a worker waits to join") {
  auto o = options(1, 1, true);
  o.at_epoch = true;
  Scene s = standing(o);
  s.enrol(1, Role::worker, 1);
  s.tell(0, Leave{true});
  CHECK(times<LeaveGranted>(s, 1) == 1);
  CHECK(times<LeaveGranted>(s, 100) == 1);
}

TEST_CASE("a process that joins a job that is over or stopping gets only a message that says so") {
  Scene s(options(3));
  s.enrol(0, Role::worker, 0);
  s.ended(0);
  CHECK(s.decisions.back().fatal);
  const auto said = s.said.size(), decided = s.decisions.size();
  s.enrol(1, Role::worker, 1);
  CHECK(s.said.size() == said + 1);
  CHECK(s.last<Rejection>(1)->code == 5);
  CHECK(s.decisions.size() == decided);
  s.pass(60s);  // the arbiter does not remove it a second time
  CHECK(s.decisions.size() == decided);

  Scene stops = standing(options(1, 0, true));
  stops.arbiter.stop_all();
  stops.enrol(5, Role::worker, 5);
  CHECK(stops.last<Stop>(5).has_value());
}

TEST_CASE(
    "a refused process gets the error again at its next message, but a process that is done or released does not") {
  Scene s = standing(options(2, 0, true));
  s.enrol(9, Role::worker, 0);
  CHECK(times<Rejection>(s, 9) == 1);
  s.send_heartbeat(9);
  CHECK(times<Rejection>(s, 9) == 2);
  s.tell(1, Leave{true});
  s.send_heartbeat(1);
  CHECK(times<Rejection>(s, 1) == 0);
  CHECK(s.count(Decision::Kind::left) == 1);
  s.enrol(8, Role::worker, 8);  // comes after the end of the work
  CHECK(s.last<LeaveGranted>(8).has_value());
  s.send_heartbeat(8);
  CHECK(times<Rejection>(s, 8) == 0);
}

TEST_CASE("when a job is over, processes that wait or have reported get an error, unless the launcher ends the job") {
  for (const bool starter : {false, true}) {
    ArbiterOptions o = options(3);
    o.starter_ends = starter;
    Scene s = standing(o);
    s.ended(2);
    CHECK(s.decisions.back().fatal);
    CHECK_FALSE(s.last<Rejection>(0).has_value());
    s.tell(0, Report{1, 5, true, false});
    CHECK(s.last<Rejection>(0).has_value() == !starter);
    CHECK(s.arbiter.generation() == 1);
  }
}

TEST_CASE("at the end of the job a process that has reported gets the reason, and so does a process that is removed") {
  Scene s = standing(options(3));
  s.tell(0, Report{1, 5, true, false});
  s.ended(2);
  CHECK(s.last<Rejection>(0)->reason == "[job] expected all required processes, got worker 2 on h2 is gone: SIGKILL.");
  CHECK_FALSE(s.last<Rejection>(1).has_value());
  CHECK(s.last<Rejection>(2)->reason ==
        "[worker 2 on h2] expected a process of the job, got one that was removed from the job: SIGKILL.");
}
