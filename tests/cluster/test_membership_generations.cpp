// SPDX-License-Identifier: MIT
// Tests the arbiter's rules for generations at their limits: reports, joining, leaving, and the roles in the next
// generation. A mutation of a rule that no test detected was the reason for each test.
#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <string>

#include <tutti/cluster/channel/assignment.hpp>
#include "membership_scene.hpp"

using namespace tutti;
using namespace tutti::control;
using namespace std::chrono_literals;

TEST_CASE("a process that was lost in one generation has no effect on the next generation") {
  ArbiterOptions o = options(3, 0, true);
  o.lost_are_replaced = true;
  Scene s = standing(o);
  s.ended(2);
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, Report{1, 5, true, false});
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, GroupReady{2});
  s.enrol(5, Role::worker, 5);
  CHECK(s.last<MembershipChange>(0)->generation == 2);
  CHECK(s.last<MembershipChange>(0)->lost.empty());
  // Leaving members wait for a joining process. If that process is lost, they stop the job.
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, Leave{false});
  s.ended(5);
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, Report{2, 6});
  for (const ConnectionId connection : {0U, 1U}) {
    CHECK(s.last<Stop>(connection).has_value());
    CHECK_FALSE(s.last<LeaveGranted>(connection).has_value());
  }
  CHECK(s.ids() == "0 1");
  CHECK(s.arbiter.generation() == 3);
}

TEST_CASE("the work is done when a worker in a generation reports so, also if it was asked to leave") {
  Scene server = standing(options(2, 1, true));
  server.tell(100, Leave{true});
  CHECK_FALSE(server.arbiter.finished());
  Scene waiting = standing(options(1, 0, true));
  waiting.enrol(5, Role::worker, 5);
  waiting.tell(5, Leave{true});
  CHECK_FALSE(waiting.arbiter.finished());
  Scene leaving = standing(options(2, 0, true));
  leaving.tell(1, Leave{false});
  leaving.tell(1, Leave{true});
  CHECK(leaving.arbiter.finished());
  CHECK(leaving.decisions.back().work_done);
  Scene released = standing(options(2, 0, true));
  released.tell(1, Leave{false});
  released.change_over({{0, 3}, {1, 3}});
  released.tell(1, Leave{true});
  CHECK_FALSE(released.arbiter.finished());
  // A worker that waits for the end of the epoch gets no state from a worker that completes the work.
  ArbiterOptions at_epoch = options(1, 0, true);
  at_epoch.at_epoch = true;
  Scene last = standing(at_epoch);
  last.enrol(5, Role::worker, 5);
  last.arbiter.ask_to_leave(0);
  last.tell(0, Leave{true});
  CHECK(last.arbiter.generation() == 1);
  CHECK(last.last<LeaveGranted>(5).has_value());
  // A process that is done does not begin a generation either.
  ArbiterOptions o = options(2, 0, true);
  o.reports = false;
  Scene each = standing(o);
  each.tell(1, Leave{true});
  CHECK(each.arbiter.generation() == 1);
}

TEST_CASE("a worker joins at the next step or at the end of the epoch, and a server at the next step") {
  Scene s = standing(options(1, 0, true));
  s.enrol(5, Role::worker, 5);
  CHECK_FALSE(s.last<MembershipChange>(0)->at_epoch);
  auto o = options(1, 1, true);
  o.at_epoch = true;
  Scene t = standing(o);
  t.enrol(5, Role::worker, 5);
  CHECK(t.last<MembershipChange>(0)->at_epoch);
  t.enrol(6, Role::server, 1);
  CHECK_FALSE(t.last<MembershipChange>(0)->at_epoch);
}

TEST_CASE("a process that waits to join may leave, without an effect on the others") {
  Scene s = standing(options(1, 0, true));
  s.enrol(5, Role::worker, 5);
  s.tell(0, Leave{false});
  const auto said = s.said.size();
  s.tell(5, Leave{false});
  CHECK(s.last<LeaveGranted>(5).has_value());
  CHECK(s.said.size() == said + 1);
  CHECK_FALSE(s.last<Stop>(0).has_value());
  CHECK_FALSE(s.arbiter.stopping());
}

TEST_CASE("a process asks to leave only once, unless the request becomes more urgent") {
  ArbiterOptions o = options(2, 0, true);
  o.at_epoch = true;
  Scene s = standing(o);
  s.arbiter.ask_to_leave(1);
  s.pass(0s);
  CHECK(s.last<MembershipChange>(0)->at_epoch);
  const auto said = s.said.size();
  s.arbiter.ask_to_leave(1);
  s.pass(0s);
  CHECK(s.said.size() == said);
  s.tell(1, Leave{false});
  CHECK_FALSE(s.last<MembershipChange>(0)->at_epoch);
  const auto more = s.said.size();
  s.tell(1, Leave{false});
  s.arbiter.ask_to_leave(1);
  s.pass(0s);
  CHECK(s.said.size() == more);
  // In a job with fixed members, the last worker that leaves does not stop the job.
  Scene fixed = standing(options(1));
  fixed.tell(0, Leave{false});
  CHECK_FALSE(fixed.last<Stop>(0).has_value());
}

TEST_CASE("reports from another generation, or from a process that is not a member, are ignored") {
  Scene s = standing(options(3, 0, true));
  s.ended(2);
  s.tell(1, Report{0, 99, true, false});
  s.tell(0, Report{1, 4, true, false});
  CHECK(s.arbiter.generation() == 1);
  s.tell(1, Report{1, 4, true, false});
  CHECK(s.arbiter.generation() == 2);
  CHECK(s.arbiter.authority() == 0);

  Scene t = standing(options(2, 0, true));
  t.enrol(9, Role::worker, 9);
  t.tell(9, Report{1, 99, true, false});
  CHECK_FALSE(t.last<MembershipChange>(0)->broken);
}

TEST_CASE("a group that has lost a member is never ready") {
  Scene s(options(3, 0, true));
  s.workers(3);
  s.ended(2);
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, GroupReady{1});
  CHECK_FALSE(s.last<Start>(0).has_value());
  CHECK(s.count(Decision::Kind::standing) == 0);
}

TEST_CASE("a step report before the group is ready breaks the group, even if another process waits to join") {
  for (const bool second : {false, true}) {
    Scene s(options(2, 0, true));
    s.workers(2);
    if (second) {
      for (const ConnectionId connection : {0U, 1U}) s.tell(connection, GroupReady{1});
      for (const ConnectionId connection : {0U, 1U}) s.tell(connection, Report{1, 3, true, false});
    }
    const std::uint64_t now = s.arbiter.generation();
    CHECK(now == (second ? 2 : 1));
    s.enrol(9, Role::worker, 9);
    CHECK_FALSE(s.last<MembershipChange>(1)->broken);
    s.tell(0, Report{now, 3});
    CHECK(s.last<MembershipChange>(1)->broken);
  }
}

TEST_CASE("the trained state comes from a worker, never from a server") {
  Scene s = standing(options(2, 1, true));
  s.tell(100, Report{1, 99, true, false});
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, Report{1, 5, true, false});
  CHECK(s.arbiter.generation() == 2);
  CHECK(s.arbiter.authority() == 0);
  // If each member changes alone, the authority is the oldest of the members with the most steps.
  ArbiterOptions o = options(2, 0, true);
  o.reports = false;
  Scene t = standing(o);
  t.tell(0, Report{1, 0, true, false});
  CHECK(t.arbiter.authority() == 0);
}

TEST_CASE("a process may join within an epoch if the last holder passes the trained state to that process") {
  for (const bool stops : {false, true}) {
    ArbiterOptions o = options(1, 0, true);
    o.at_epoch = true;
    o.min_workers = 0;
    Scene s = standing(o);
    s.enrol(5, Role::worker, 5);
    s.tell(0, Leave{false});
    if (stops) s.arbiter.stop_all();
    s.tell(0, Report{1, 5});
    // If the job stops, the last holder does not leave, and no process needs the state.
    CHECK(s.ids() == (stops ? "0" : "0 1"));
    CHECK(s.arbiter.authority() == 0);
  }
}

TEST_CASE("in each generation a process has a role and a number of that role") {
  const Member w0{3, Role::worker, 0, "a"}, w1{5, Role::worker, 4, "b"}, s0{7, Role::server, 0, "c"},
      s1{9, Role::server, 1, "d"};
  const NewGeneration issued{6, 9, 3, 2500, {w0, w1, s0, s1}};
  const Assignment a = assignment_of(issued);
  CHECK(a.generation == 6);
  CHECK(a.id == 9);
  CHECK(a.authority == 3);
  CHECK(a.role == Role::server);
  CHECK(a.rank == 1);
  CHECK(a.rank_timeout == 2500ms);
  REQUIRE(a.workers.size() == 2);
  REQUIRE(a.servers.size() == 2);
  CHECK(a.workers[1].id == 5);
  CHECK(a.servers[0].id == 7);
  NewGeneration worker = issued;
  worker.you = 5;
  CHECK(assignment_of(worker).role == Role::worker);
  CHECK(assignment_of(worker).rank == 1);
  const Assignment nothing;
  CHECK(nothing.generation + nothing.id + nothing.authority == 0);
  CHECK(nothing.rank == 0);
  CHECK(nothing.rank_timeout == 0ms);
}
