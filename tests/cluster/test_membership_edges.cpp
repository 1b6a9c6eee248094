// SPDX-License-Identifier: MIT
// The arbiter's rules at their limits, one condition more or less. A mutation of the rule showed the need for each
// test.
#include <doctest/doctest.h>

#include <cstddef>
#include <optional>
#include <string>

#include <tutti/cluster/channel/assignment.hpp>
#include "membership_scene.hpp"

using namespace tutti;
using namespace tutti::control;
using namespace std::chrono_literals;

namespace {

// A job with this number of workers, whose group is ready.
Scene standing(const ArbiterOptions& o) {
  Scene s(o);
  s.workers(o.workers);
  for (int i = 0; i < o.servers; ++i) s.enrol(static_cast<ConnectionId>(100 + i), Role::server, i);
  for (int i = 0; i < o.workers; ++i) s.tell(static_cast<ConnectionId>(i), GroupReady{1});
  for (int i = 0; i < o.servers; ++i) s.tell(static_cast<ConnectionId>(100 + i), GroupReady{1});
  return s;
}
// Returns how often a connection was sent a message of this kind.
template <class M>
int times(const Scene& s, ConnectionId connection) {
  int n = 0;
  for (const Outgoing& o : s.said) n += o.connection == connection && std::holds_alternative<M>(o.message) ? 1 : 0;
  return n;
}

}  // namespace

TEST_CASE("before the first process comes the state is empty") {
  const Scene s(options(2));
  CHECK(s.arbiter.generation() == 0);
  CHECK(s.arbiter.authority() == 0);
  CHECK(s.arbiter.epoch() == 0);
  CHECK_FALSE(s.arbiter.too_few());
  CHECK_FALSE(s.arbiter.finished());
  CHECK_FALSE(s.arbiter.stopping());
}

TEST_CASE("decisions name their process, and end the job only if they say so") {
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
  CHECK(last(Decision::Kind::refused)->member.id == 0);  // it never had a number
  CHECK_FALSE(last(Decision::Kind::refused)->fatal);
  s.tell(1, Leave{true});
  CHECK(last(Decision::Kind::left)->connection == 1);
  CHECK_FALSE(last(Decision::Kind::left)->fatal);
}

TEST_CASE("the duration of a silence is given in seconds and tenths") {
  for (const auto& [timeout, text] : {std::pair{2500ms, "2.5 s"}, std::pair{1999ms, "1.9 s"},
                                      std::pair{999500ms, "999.5 s"}, std::pair{3000ms, "3 s"}}) {
    ArbiterOptions o = options(1);
    o.rank_timeout = timeout;
    Scene s(o);
    s.workers(1);
    s.pass(timeout);
    CHECK(s.decisions.back().why == "no sign of life for " + std::string(text));
  }
}

TEST_CASE("a connection is free when its process has ended") {
  Scene s = standing(options(2, 0, true));
  s.ended(1);
  s.tell(0, Report{1, 4, true, false});
  CHECK(s.ids() == "0");
  s.enrol(1, Role::worker, 9);
  CHECK(s.last<MembershipChange>(0)->joining == 1);
}

TEST_CASE("a host that was asked to leave while present, or before the job began, may join") {
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

TEST_CASE("servers are no workers with which a job could continue") {
  auto o = options(1, 1, true);
  Scene s = standing(o);
  CHECK_FALSE(s.arbiter.can_spare({0}));
  o.min_workers = 0;
  CHECK_FALSE(standing(o).arbiter.can_spare({0}));
}

TEST_CASE("a place that the job does not begin with is only given to a joining process") {
  Scene none(options(2));
  none.enrol(5, Role::server, 0);
  CHECK(none.last<Rejection>(5)->reason == "[server 0 on h5] expected a job that begins with some of its kind, got 0.");
  Scene one(options(1, 1));
  one.enrol(5, Role::server, 1);
  CHECK(one.last<Rejection>(5)->reason == "[server 1 on h5] expected number 0, got 1.");
  // The next process gets the first number after those of the founders, once.
  Scene s(options(2, 0, true));
  s.enrol(7, Role::worker, 2);
  s.enrol(8, Role::worker, 3);
  s.workers(2);
  CHECK(s.ids() == "0 1 2 3");
}

TEST_CASE("a returning process is refused unless it is a server that may restart") {
  auto o = options(2, 2);
  o.servers_restart = true;
  Scene s = standing(o);
  s.ended(1);
  s.enrol(9, Role::worker, 1);
  CHECK(s.last<Rejection>(9)->code == 2);
  o.servers_restart = false;
  Scene t = standing(o);
  t.ended(100);
  CHECK(t.decisions.back().fatal);  // although there is another one
  t.enrol(9, Role::server, 0);
  CHECK(t.last<Rejection>(9)->code == 2);
  // A job that may lose workers, and whose server comes back, loses no state with its last server.
  o = options(2, 1, true);
  o.servers_restart = true;
  Scene u = standing(o);
  u.ended(100);
  CHECK_FALSE(u.decisions.back().fatal);
}

TEST_CASE("servers are released when the last worker is lost, if no other one can come") {
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
      s.send_heartbeat(100);  // takes the messages
      // Otherwise other workers may come, or the job is over and they are told so.
      CHECK(times<LeaveGranted>(s, 100) == (how == "neither" ? 0 : 1));
    }
}

TEST_CASE("a process that comes to a job that is over, or stops, gets that message only") {
  Scene s(options(3));
  s.enrol(0, Role::worker, 0);
  s.ended(0);
  CHECK(s.decisions.back().fatal);
  const auto said = s.said.size(), decided = s.decisions.size();
  s.enrol(1, Role::worker, 1);
  CHECK(s.said.size() == said + 1);
  CHECK(s.last<Rejection>(1)->code == 5);
  CHECK(s.decisions.size() == decided);
  s.pass(60s);  // it is not lost a second time
  CHECK(s.decisions.size() == decided);

  Scene stops = standing(options(1, 0, true));
  stops.arbiter.stop_all();
  stops.enrol(5, Role::worker, 5);
  CHECK(stops.last<Stop>(5).has_value());
}

TEST_CASE("a refused process is told again at its next message, but not one that is done or released") {
  Scene s = standing(options(2, 0, true));
  s.enrol(9, Role::worker, 0);
  CHECK(times<Rejection>(s, 9) == 1);
  s.send_heartbeat(9);
  CHECK(times<Rejection>(s, 9) == 2);
  s.tell(1, Leave{true});
  s.send_heartbeat(1);
  CHECK(times<Rejection>(s, 1) == 0);
  CHECK(s.count(Decision::Kind::left) == 1);
  s.enrol(8, Role::worker, 8);  // the work is done
  CHECK(s.last<LeaveGranted>(8).has_value());
  s.send_heartbeat(8);
  CHECK(times<Rejection>(s, 8) == 0);
}

TEST_CASE("a job is over for waiting and reported processes, unless its starter ends it") {
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

TEST_CASE("a reported process learns of the end of its job, and one that is given up learns why") {
  Scene s = standing(options(3));
  s.tell(0, Report{1, 5, true, false});
  s.ended(2);
  CHECK(s.last<Rejection>(0)->reason ==
        "[job] expected all processes that it cannot do without, got worker 2 on h2 is gone: SIGKILL.");
  CHECK_FALSE(s.last<Rejection>(1).has_value());
  CHECK(s.last<Rejection>(2)->reason ==
        "[worker 2 on h2] expected a process of the job, got one that was given up: SIGKILL.");
}

TEST_CASE("a process that one generation has lost has no effect on the next") {
  ArbiterOptions o = options(3, 0, true);
  o.lost_are_replaced = true;
  Scene s = standing(o);
  s.ended(2);
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, Report{1, 5, true, false});
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, GroupReady{2});
  s.enrol(5, Role::worker, 5);
  CHECK(s.last<MembershipChange>(0)->generation == 2);
  CHECK(s.last<MembershipChange>(0)->lost.empty());
  // No process is waited for in place of one that was lost before.
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, Leave{false});
  s.ended(5);
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, Report{2, 6});
  for (const ConnectionId connection : {0U, 1U}) CHECK(s.last<LeaveGranted>(connection).has_value());
}

TEST_CASE("the work is done when a worker that is in the group and stays reports it") {
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
  CHECK_FALSE(leaving.arbiter.finished());
  leaving.tell(0, Leave{true});
  CHECK(leaving.arbiter.finished());
  // It does not make a generation either.
  ArbiterOptions o = options(2, 0, true);
  o.reports = false;
  Scene each = standing(o);
  each.tell(1, Leave{true});
  CHECK(each.arbiter.generation() == 1);
}

TEST_CASE("a worker joins with the next step or at the epoch's end, and a server with the next step") {
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

TEST_CASE("a waiting process may go again, without an effect on the others") {
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

TEST_CASE("a leaving process reports it once, unless it becomes more urgent") {
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
  // The last worker of a job with fixed members does not stop the job by leaving.
  Scene fixed = standing(options(1));
  fixed.tell(0, Leave{false});
  CHECK_FALSE(fixed.last<Stop>(0).has_value());
}

TEST_CASE("reports of another generation, or of a process that is no member, are ignored") {
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

TEST_CASE("a report before the group was ready breaks it, even if a process waits to join") {
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

TEST_CASE("the state comes from a worker") {
  Scene s = standing(options(2, 1, true));
  s.tell(100, Report{1, 99, true, false});
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, Report{1, 5, true, false});
  CHECK(s.arbiter.generation() == 2);
  CHECK(s.arbiter.authority() == 0);
  // If each member changes on its own, it comes from the oldest of those with the most steps.
  ArbiterOptions o = options(2, 0, true);
  o.reports = false;
  Scene t = standing(o);
  t.tell(0, Report{1, 0, true, false});
  CHECK(t.arbiter.authority() == 0);
}

TEST_CASE("a process may join within an epoch if the last holder hands the trained state on to it") {
  for (const bool stops : {false, true}) {
    ArbiterOptions o = options(1, 0, true);
    o.at_epoch = true;
    o.min_workers = 0;
    Scene s = standing(o);
    s.enrol(5, Role::worker, 5);
    s.tell(0, Leave{false});
    if (stops) s.arbiter.stop_all();
    s.tell(0, Report{1, 5});
    CHECK(s.ids() == "0 1");
    CHECK(s.arbiter.authority() == 0);
  }
}

TEST_CASE("a process has a role and a number in each generation") {
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
