// SPDX-License-Identifier: MIT
// Tests the arbiter's rules for the transition from one generation to the next.
#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <utility>

#include "membership_scene.hpp"

using namespace tutti;
using namespace tutti::control;
using namespace std::chrono_literals;

namespace {

// Returns a job in which worker 0 has died, worker 1 has reported, and then worker 2 has died.
Scene after_two_deaths(int workers) {
  Scene s(options(workers, 0, true));
  s.workers(workers);
  s.ended(0);
  s.tell(1, Report{1, 3});
  s.ended(2);
  return s;
}

}  // namespace

TEST_CASE("after a loss the survivors report, and the state comes from the oldest of those with the most steps") {
  Scene s(options(4, 0, true));
  s.workers(4);
  for (ConnectionId connection = 0; connection < 4; ++connection) s.tell(connection, GroupReady{1});
  s.ended(0);
  CHECK_FALSE(s.decisions.back().fatal);
  for (const ConnectionId connection : {1U, 2U, 3U}) CHECK(s.last<MembershipChange>(connection)->lost.at(0).id == 0);
  s.tell(1, Report{1, 7});
  s.tell(3, Report{1, 8});
  s.tell(3, Report{0, 99});  // the report of another generation
  CHECK(s.arbiter.generation() == 1);
  s.tell(2, Report{1, 8});
  CHECK(s.arbiter.generation() == 2);
  CHECK(s.ids() == "1 2 3");
  CHECK(s.arbiter.authority() == 2);
  CHECK(s.last<NewGeneration>(2)->authority == 2);
  CHECK_FALSE(s.last<NewGeneration>(0)->generation == 2);
}

TEST_CASE("a death between reports is part of the same change, and a later death starts another generation") {
  Scene s = after_two_deaths(4);
  CHECK(s.arbiter.generation() == 1);
  s.tell(3, Report{1, 3});
  CHECK(s.arbiter.generation() == 2);
  CHECK(s.ids() == "1 3");
  // Worker 3 is lost while the group forms.
  s.tell(1, GroupReady{2});
  s.ended(3);
  CHECK(s.last<MembershipChange>(1)->generation == 2);
  CHECK_FALSE(s.last<Start>(1).has_value());
  s.tell(1, GroupReady{2});  // too late: the generation has already ended
  CHECK_FALSE(s.last<Start>(1).has_value());
  s.tell(1, Report{2, 3});
  CHECK(s.arbiter.generation() == 3);
  s.tell(1, GroupReady{3});
  CHECK(s.last<Start>(1)->generation == 3);
  // The death of the last worker that had not reported completes the change.
  Scene t = after_two_deaths(3);
  CHECK(t.arbiter.generation() == 2);
  CHECK(t.ids() == "1");
}

TEST_CASE("a process that asks to leave does so with the next generation, and is then released") {
  Scene s(options(3, 0, true));
  s.workers(3);
  s.tell(0, Leave{false});
  s.tell(0, Leave{false});
  CHECK(s.last<MembershipChange>(2)->leaving == 1);
  s.change_over({{0, 5}, {1, 5}, {2, 5}});
  CHECK(s.ids() == "1 2");
  CHECK(s.last<LeaveGranted>(0).has_value());
  CHECK(s.last<NewGeneration>(0)->generation == 1);
  CHECK(s.count(Decision::Kind::left) == 1);
  CHECK(s.count(Decision::Kind::lost) == 0);
  s.pass(60s);  // no process waits for the worker that left
  CHECK(s.count(Decision::Kind::lost) == 2);

  // Here the request to leave comes from the launcher, and for all members at once.
  Scene t(options(2, 0, true));
  t.workers(2);
  t.arbiter.ask_to_leave(1);
  t.change_over({{0, 1}, {1, 1}});
  CHECK(t.ids() == "0");
}

TEST_CASE("a finished process leaves without a change, a failed step starts a change, and too few members wait") {
  Scene s(options(2, 1, true));
  s.workers(2);
  s.enrol(5, Role::server, 0);
  s.tell(0, Leave{true});
  CHECK_FALSE(s.last<MembershipChange>(1).has_value());
  CHECK_FALSE(s.last<LeaveGranted>(5).has_value());
  s.tell(1, Leave{true});
  CHECK(s.last<LeaveGranted>(5).has_value());
  s.pass(60s);
  CHECK(s.count(Decision::Kind::lost) == 0);

  Scene broke(options(2, 0, true));
  broke.workers(2);
  broke.tell(1, Report{1, 3});
  CHECK(broke.last<MembershipChange>(0)->generation == 1);
  broke.tell(0, Report{1, 3});
  CHECK(broke.ids() == "0 1");
  CHECK(broke.arbiter.generation() == 2);

  // The arbiter does not wait for a process that finishes during the change either.
  Scene done(options(3, 0, true));
  done.workers(3);
  done.ended(0);
  done.tell(1, Report{1, 3});
  done.tell(2, Leave{true});
  CHECK(done.ids() == "1");

  ArbiterOptions o = options(3, 0, true);
  o.min_workers = 2;
  Scene few = standing(o);
  few.ended(0);
  few.ended(1);
  few.tell(2, Report{1, 3});
  CHECK(few.arbiter.generation() == 1);
  few.enrol(8, Role::worker, 3);
  CHECK(few.ids() == "2 3");
}

TEST_CASE("a change without a loss waits for the step or the epoch end that all members agree on") {
  ArbiterOptions o = options(2, 0, true);
  o.at_epoch = true;
  Scene s(o);
  s.workers(2);
  s.enrol(7, Role::worker, 7);  // asks while the first group forms, which continues
  CHECK(s.last<MembershipChange>(0)->at_epoch);
  CHECK_FALSE(s.last<MembershipChange>(0)->broken);
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, GroupReady{1});
  CHECK(s.last<Start>(1)->generation == 1);
  s.tell(0, EpochStart{1, 3});
  s.tell(0, EpochStart{0, 9});  // the message of another generation
  CHECK(s.arbiter.epoch() == 3);
  // A member leaves after the next step. A worker that joins waits for the end of the epoch.
  s.tell(1, Leave{false});
  CHECK_FALSE(s.last<MembershipChange>(0)->at_epoch);
  CHECK(s.last<MembershipChange>(0)->joining == 1);
  CHECK(s.last<MembershipChange>(0)->leaving == 1);
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, Report{1, 5});
  CHECK(s.ids() == "0");
  CHECK(s.last<LeaveGranted>(1).has_value());
  CHECK_FALSE(s.last<NewGeneration>(7).has_value());
  // The arbiter repeats the request in the new generation, and the group can still form.
  CHECK(s.last<MembershipChange>(0)->generation == 2);
  CHECK(s.last<MembershipChange>(0)->at_epoch);
  s.tell(0, GroupReady{2});
  CHECK(s.last<Start>(0)->generation == 2);
  s.tell(0, Report{2, 9, false, true});
  CHECK(s.ids() == "0 2");
  CHECK(s.arbiter.authority() == 0);
  for (const ConnectionId connection : {0U, 7U}) s.tell(connection, GroupReady{3});
  // The launcher's request to leave waits for the end of the epoch. A loss takes effect at once.
  s.arbiter.ask_to_leave(7);
  s.enrol(8, Role::worker, 8);
  CHECK(s.last<MembershipChange>(0)->at_epoch);
  s.enrol(9, Role::worker, 9);
  s.tell(0, Report{3, 10, true, false});
  CHECK(s.last<MembershipChange>(7)->broken);
  s.tell(7, Report{3, 10, true, false});
  CHECK(s.ids() == "0 2");
  CHECK(s.last<MembershipChange>(7)->leaving == 1);
  for (const ConnectionId connection : {0U, 7U}) s.tell(connection, GroupReady{4});
  for (const ConnectionId connection : {0U, 7U}) s.tell(connection, Report{4, 20, false, true});
  CHECK(s.ids() == "0 3 4");
}

TEST_CASE("if one member reports a failed step or a change that the others do not know, their step is interrupted") {
  for (const bool broken : {true, false}) {
    Scene s(options(3, 0, true));
    s.workers(3);
    for (ConnectionId connection = 0; connection < 3; ++connection) s.tell(connection, GroupReady{1});
    s.tell(2, Report{1, 4, broken, false});
    CHECK(s.last<MembershipChange>(0)->broken);
    CHECK_FALSE(s.last<MembershipChange>(2).has_value());
  }
  // The same if members wait for an orderly change.
  Scene s(options(3, 0, true));
  s.workers(3);
  for (ConnectionId connection = 0; connection < 3; ++connection) s.tell(connection, GroupReady{1});
  s.tell(1, Leave{false});
  CHECK_FALSE(s.last<MembershipChange>(0)->broken);
  s.tell(2, Report{1, 4, true, false});
  CHECK(s.last<MembershipChange>(0)->broken);
  CHECK(s.last<MembershipChange>(0)->leaving == 1);
  s.ended(1);
  CHECK(s.last<MembershipChange>(0)->lost.size() == 1);
  s.tell(0, Report{1, 4, true, false});
  CHECK(s.ids() == "0 2");
}

TEST_CASE("the trained state is passed on before its last holder leaves, and is lost if the holder dies") {
  for (const bool at_epoch : {false, true}) {
    ArbiterOptions o = options(1, 0, true);
    o.at_epoch = at_epoch;
    Scene s(o);
    s.workers(1);
    s.tell(0, GroupReady{1});
    CHECK_FALSE(s.arbiter.can_spare({0}));
    s.enrol(5, Role::worker, 1);
    CHECK(s.arbiter.can_spare({0}));
    s.tell(0, Leave{false});
    CHECK_FALSE(s.last<Stop>(0).has_value());
    s.tell(0, Report{1, 5, false, at_epoch});
    CHECK(s.ids() == "0 1");
    CHECK(s.arbiter.authority() == 0);
    CHECK_FALSE(s.last<LeaveGranted>(0).has_value());
    CHECK_FALSE(s.last<MembershipChange>(5)->broken);
    for (const ConnectionId connection : {0U, 5U}) s.tell(connection, GroupReady{2});
    CHECK(s.last<Start>(5).has_value());
    for (const ConnectionId connection : {0U, 5U}) s.tell(connection, Report{2, 6});
    CHECK(s.ids() == "1");
    CHECK(s.last<LeaveGranted>(0).has_value());
    // Worker 5 is now the last member, so its leave ends the job.
    s.tell(5, Leave{false});
    CHECK(s.last<Stop>(5).has_value());
    s.enrol(6, Role::worker, 2);
    s.ended(5);
    CHECK(s.decisions.back().fatal);
    CHECK(s.arbiter.generation() == 3);
  }
  // A process that was told to leave before it asks for admission is released when it asks.
  Scene loads(options(1, 0, true));
  loads.workers(1);
  loads.tell(0, GroupReady{1});
  loads.arbiter.ask_to_leave(7);
  loads.enrol(7, Role::worker, 1);
  CHECK(loads.last<LeaveGranted>(7).has_value());
  loads.enrol(8, Role::worker, 1);
  loads.tell(0, Report{1, 2});
  CHECK(loads.ids() == "0 2");
  // If the other members are lost, a leaving process stays until a joining process has the state. If the job stops, it
  // stops with it, in a generation of its own, and can save a checkpoint.
  for (const bool stops : {false, true}) {
    ArbiterOptions replaced = options(2, 0, true);
    replaced.lost_are_replaced = true;
    Scene s(replaced);
    s.workers(2);
    for (const ConnectionId connection : {0U, 1U}) s.tell(connection, GroupReady{1});
    s.tell(1, Leave{false});
    s.ended(0);
    s.tell(1, Report{1, 5, true, false});
    CHECK_FALSE(s.last<LeaveGranted>(1).has_value());
    CHECK(s.arbiter.too_few());
    if (stops) {
      s.arbiter.stop_all();
      s.pass(0s);
      CHECK_FALSE(s.last<LeaveGranted>(1).has_value());
      CHECK(s.last<Stop>(1).has_value());
      CHECK(s.ids() == "1");
      continue;
    }
    s.enrol(5, Role::worker, 2);
    CHECK(s.ids() == "1 2");
    CHECK(s.arbiter.authority() == 1);
    for (const ConnectionId connection : {1U, 5U}) s.tell(connection, GroupReady{2});
    for (const ConnectionId connection : {1U, 5U}) s.tell(connection, Report{2, 6});
    CHECK(s.ids() == "2");
    CHECK(s.last<LeaveGranted>(1).has_value());
  }
  // A process that has joined has the state only after its group has formed.
  Scene forms = standing(options(2, 0, true));
  forms.enrol(5, Role::worker, 2);
  forms.change_over({{0, 3}, {1, 3}});
  CHECK(forms.ids() == "0 1 2");
  forms.tell(1, Leave{false});
  forms.ended(0);
  forms.change_over({{1, 3}, {5, 0}});
  CHECK(forms.ids() == "1 2");
  for (const ConnectionId connection : {1U, 5U}) forms.tell(connection, GroupReady{3});
  forms.change_over({{1, 4}, {5, 4}});
  CHECK(forms.ids() == "2");
  // Servers that do not have the state do not keep it.
  ArbiterOptions with_server = options(2, 1, true);
  with_server.lost_are_replaced = true;
  Scene waits = standing(with_server);
  waits.tell(1, Leave{false});
  waits.ended(0);
  waits.tell(1, Report{1, 5, true, false});
  CHECK_FALSE(waits.last<LeaveGranted>(1).has_value());
  // If the launcher can start no other process, the job stops.
  Scene alone(options(2, 0, true));
  alone.workers(2);
  for (const ConnectionId connection : {0U, 1U}) alone.tell(connection, GroupReady{1});
  alone.tell(1, Leave{false});
  alone.ended(0);
  alone.tell(1, Report{1, 5, true, false});
  CHECK_FALSE(alone.last<LeaveGranted>(1).has_value());
  CHECK(alone.last<Stop>(1).has_value());
  CHECK(alone.ids() == "1");
  CHECK(alone.arbiter.generation() == 2);
  // Before a group has formed, there is no state to lose. Servers keep the state that they have.
  Scene begin(options(1, 0, true));
  begin.workers(1);
  begin.ended(0);
  CHECK_FALSE(begin.decisions.back().fatal);
  begin.enrol(3, Role::worker, 1);
  CHECK(begin.ids() == "1");
  auto held = options(1, 1, true);
  held.servers_hold = true;
  Scene served(held);
  served.workers(1);
  served.enrol(2, Role::server, 0);
  for (const ConnectionId connection : {0U, 2U}) served.tell(connection, GroupReady{1});
  served.ended(0);
  CHECK_FALSE(served.decisions.back().fatal);
}
