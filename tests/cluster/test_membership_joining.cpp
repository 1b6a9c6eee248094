// SPDX-License-Identifier: MIT
// Tests the arbiter's rules for processes that join, and for too few members, which wait for further processes.
#include <doctest/doctest.h>

#include "membership_scene.hpp"

using namespace tutti;
using namespace tutti::control;
using namespace std::chrono_literals;

TEST_CASE("a joining process waits until the members have reported, and is the youngest") {
  Scene s(options(2, 0, true));
  s.workers(2);
  for (ConnectionId connection = 0; connection < 2; ++connection) s.tell(connection, GroupReady{1});
  s.enrol(9, Role::worker, 17);
  CHECK(s.last<MembershipChange>(0)->joining == 1);
  CHECK(s.last<MembershipChange>(0)->lost.empty());
  CHECK_FALSE(s.last<NewGeneration>(9).has_value());
  s.change_over({{0, 5}, {1, 5}});
  CHECK(s.arbiter.generation() == 2);
  CHECK(s.ids() == "0 1 2");
  CHECK(s.last<NewGeneration>(9)->you == 2);
  CHECK(s.arbiter.authority() == 0);
  // The arbiter does not wait for a process that ends before it has joined, and never assigns a process number twice.
  s.enrol(10, Role::worker, 18);
  const auto said = s.said.size();
  s.ended(10);
  CHECK(s.said.size() == said + 1);  // one message, to the process that ended
  CHECK_FALSE(s.decisions.back().generation == 3);
  s.enrol(11, Role::worker, 18);
  s.change_over({{0, 6}, {1, 6}, {9, 6}});
  CHECK(s.ids() == "0 1 2 4");
}

TEST_CASE("below the minimum size, members wait, and a joining process does not wait for the end of an epoch") {
  ArbiterOptions o = options(3, 0, true);
  o.at_epoch = true;
  o.min_workers = 3;
  Scene s(o);
  s.workers(3);
  for (ConnectionId connection = 0; connection < 3; ++connection) s.tell(connection, GroupReady{1});
  CHECK_FALSE(s.arbiter.can_spare({2}));
  s.tell(2, Leave{false});
  for (ConnectionId connection = 0; connection < 3; ++connection) s.tell(connection, Report{1, 5});
  CHECK(s.arbiter.too_few());
  CHECK(s.last<LeaveGranted>(2).has_value());  // a leaving member may leave even then
  s.enrol(6, Role::worker, 6);
  CHECK_FALSE(s.arbiter.too_few());
  CHECK(s.ids() == "0 1 3");

  // A job that stops does not wait for further processes.
  for (const ConnectionId connection : {0U, 1U, 6U}) s.tell(connection, GroupReady{2});
  s.ended(1);
  for (const ConnectionId connection : {0U, 6U}) s.tell(connection, Report{2, 6, true, false});
  CHECK(s.arbiter.too_few());
  s.arbiter.stop_all();
  s.pass(0s);
  CHECK(s.last<Stop>(6).has_value());
  CHECK(s.ids() == "0 3");
}

TEST_CASE("a process that joins after the work is done is released") {
  Scene s(options(1, 0, true));
  s.workers(1);
  s.tell(0, GroupReady{1});
  s.enrol(5, Role::worker, 3);
  s.tell(0, Leave{true});
  CHECK(s.arbiter.finished());
  CHECK(s.last<LeaveGranted>(5).has_value());
  s.enrol(6, Role::worker, 4);
  CHECK(s.last<LeaveGranted>(6).has_value());
  CHECK(s.arbiter.generation() == 1);
}

TEST_CASE("no process joins while the members prepare the trained state") {
  // One of three members is lost before the first step, while another process waits to join.
  const auto make_ready = [](Scene& s) {
    s.workers(3);
    for (ConnectionId connection = 0; connection < 3; ++connection) s.tell(connection, GroupReady{1});
    s.enrol(7, Role::worker, 7);
    s.ended(0);
    for (const ConnectionId connection : {1U, 2U}) s.tell(connection, Report{1, 0, true, false, true});
  };
  Scene s(options(3, 0, true));
  make_ready(s);
  CHECK(s.ids() == "1 2");
  for (const ConnectionId connection : {1U, 2U}) s.tell(connection, GroupReady{2});
  CHECK(s.last<MembershipChange>(1)->joining == 1);  // it joins after the first step
  for (const ConnectionId connection : {1U, 2U}) s.tell(connection, Report{2, 1});
  CHECK(s.ids() == "1 2 3");

  // The waiting process already counts towards the minimum.
  ArbiterOptions o = options(3, 0, true);
  o.min_workers = 3;
  Scene enough(o);
  make_ready(enough);
  CHECK_FALSE(enough.arbiter.too_few());
  CHECK(enough.ids() == "1 2");
  Scene few(o);
  few.workers(3);
  for (ConnectionId connection = 0; connection < 3; ++connection) few.tell(connection, GroupReady{1});
  few.ended(0);
  for (const ConnectionId connection : {1U, 2U}) few.tell(connection, Report{1, 0, true, false, true});
  CHECK(few.arbiter.too_few());
  few.enrol(8, Role::worker, 8);
  CHECK(few.ids() == "1 2");

  // The members with the state cannot all leave either, while another process waits to join.
  Scene leave(options(1, 0, true));
  leave.workers(1);
  leave.tell(0, GroupReady{1});
  leave.enrol(7, Role::worker, 7);
  leave.tell(0, Leave{false});
  leave.tell(0, Report{1, 0, true, false, true});
  CHECK(leave.ids() == "0");
  leave.tell(0, GroupReady{2});
  leave.tell(0, Report{2, 1});
  CHECK(leave.ids() == "0 1");
  for (const ConnectionId connection : {0U, 7U}) leave.tell(connection, GroupReady{3});
  for (const ConnectionId connection : {0U, 7U}) leave.tell(connection, Report{3, 2});
  CHECK(leave.ids() == "1");
}

TEST_CASE("founders that have not formed a group do not wait for a process that waits for them") {
  // A founder is lost before their group has formed, and the job needs as many workers as it had founders.
  ArbiterOptions o = options(2, 0, true);
  o.min_workers = 2;
  Scene few(o);
  few.workers(2);
  few.ended(0);
  few.enrol(8, Role::worker, 2);
  few.tell(1, Report{1, 0, true});
  CHECK(few.ids() == "1");
  few.tell(1, GroupReady{2});
  few.tell(1, Report{2, 0});
  CHECK(few.ids() == "1 2");
  // The only founder that is left was asked to leave.
  Scene leaves(options(2, 0, true));
  leaves.workers(2);
  leaves.ended(0);
  leaves.enrol(8, Role::worker, 2);
  leaves.tell(1, Leave{false});
  leaves.tell(1, Report{1, 0, true});
  CHECK(leaves.ids() == "1");
}
