// SPDX-License-Identifier: MIT
// The arbiter's rules, one scene each. Random schedules: test_membership_random.cpp.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/job/job_facts.hpp>
#include <tutti/job/lease.hpp>
#include <tutti/job/membership.hpp>

using namespace tutti;
using namespace tutti::control;
using namespace std::chrono_literals;

namespace {

[[nodiscard]] std::string facts(const std::string& model) {
  JobFacts f;
  f.add("tutti", "1");
  f.add("model", model);
  return f.text();
}

// An arbiter with what it has said: seats are numbered as the test likes.
class Scene {
 public:
  explicit Scene(const ArbiterOptions& o) : arbiter(o) {}

  void enrol(Seat seat, Role role, int place, const std::string& model = "a") {
    tell(seat, Enrol{role, place, "h" + std::to_string(seat), facts(model)});
  }
  void workers(int count) {
    for (int i = 0; i < count; ++i) enrol(static_cast<Seat>(i), Role::worker, i);
  }
  void tell(Seat seat, const Message& m) {
    arbiter.receive(seat, m, now);
    take();
  }
  void ended(Seat seat) {
    arbiter.ended(seat, "SIGKILL");
    take();
  }
  void pass(Time time) {
    now += time;
    arbiter.tick(now);
    take();
  }
  void beat(Seat seat) { tell(seat, Beat{++beats}); }
  // All workers of the list report the same step, and stand.
  void change_over(const std::vector<std::pair<Seat, std::uint64_t>>& reports) {
    const std::uint64_t left = arbiter.generation();
    for (const auto& [seat, step] : reports) tell(seat, Report{left, step});
  }

  // The last message of a kind that was sent to a seat.
  template <class M>
  [[nodiscard]] std::optional<M> last(Seat seat) const {
    std::optional<M> found;
    for (const Outgoing& o : said)
      if (const auto* m = std::get_if<M>(&o.message); o.seat == seat && m != nullptr) found = *m;
    return found;
  }
  [[nodiscard]] int count(Decision::Kind kind) const {
    int n = 0;
    for (const Decision& d : decisions) n += d.kind == kind ? 1 : 0;
    return n;
  }
  [[nodiscard]] std::string ids() const {
    std::string text;
    for (const Member& m : arbiter.members()) text += (text.empty() ? "" : " ") + std::to_string(m.id);
    return text;
  }

  Arbiter arbiter;
  Time now = 100s;
  std::vector<Outgoing> said;
  std::vector<Decision> decisions;
  std::uint64_t beats = 0;

 private:
  void take() {
    for (auto& m : arbiter.take_messages()) said.push_back(std::move(m));
    for (auto& d : arbiter.take_decisions()) decisions.push_back(std::move(d));
  }
};

[[nodiscard]] ArbiterOptions options(int workers, int servers = 0, bool elastic = false) {
  ArbiterOptions o;
  o.workers = workers;
  o.servers = servers;
  o.elastic = elastic;
  return o;
}

}  // namespace

TEST_CASE("the first generation begins when all are there, with the ranks that their starter said") {
  Scene s(options(3, 2));
  s.enrol(7, Role::server, 1);
  s.enrol(5, Role::worker, 2);
  CHECK(s.last<Waiting>(5)->missing == "worker 0, worker 1, server 0");
  s.enrol(3, Role::worker, 0);
  s.enrol(9, Role::server, 0);
  CHECK(s.last<Waiting>(7)->missing == "worker 0, worker 1, worker 2 and 1 more");
  s.beat(7);
  CHECK(s.last<Waiting>(7)->missing == "worker 1");
  CHECK_FALSE(s.last<Issued>(5).has_value());
  CHECK(s.arbiter.generation() == 0);
  s.enrol(1, Role::worker, 1);
  const auto issued = s.last<Issued>(9);
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

  // It computes once all have formed their group, and is told so once.
  for (const Seat seat : {3U, 1U, 5U, 9U, 9U}) s.tell(seat, Stands{1});
  s.tell(7, Stands{2});
  CHECK_FALSE(s.last<Go>(3).has_value());
  s.tell(7, Stands{1});
  for (const Seat seat : {3U, 1U, 5U, 9U, 7U}) CHECK(s.last<Go>(seat)->generation == 1);
  CHECK(s.count(Decision::Kind::standing) == 1);
}

TEST_CASE("who differs from most is refused alone, whoever it is and whenever it came") {
  for (int odd = 0; odd < 3; ++odd)
    for (int first = 0; first < 3; ++first) {
      Scene s(options(3, 0, true));
      for (int i = 0; i < 3; ++i) {
        const int place = (first + i) % 3;
        s.enrol(static_cast<Seat>(place), Role::worker, place, place == odd ? "b" : "a");
      }
      const auto refused = s.last<Refused>(static_cast<Seat>(odd));
      REQUIRE(refused.has_value());
      CHECK(refused->code == 2);
      CHECK(refused->reason == "[worker " + std::to_string(odd) + " on h" + std::to_string(odd) +
                                   "] expected model a, as the others have, got b. hint: start all processes with the "
                                   "same program, options and data.");
      CHECK(s.count(Decision::Kind::refused) == 1);
      CHECK(s.arbiter.members().size() == 2);
      for (const Member& m : s.arbiter.members()) CHECK(m.place != odd);
      // One that comes later is measured by the same.
      s.enrol(8, Role::worker, 8, "b");
      CHECK(s.last<Refused>(8)->code == 2);
    }
  // Of two that differ the first number counts.
  Scene two(options(2, 1));
  two.enrol(4, Role::server, 0, "a");
  two.enrol(1, Role::worker, 1, "b");
  two.enrol(0, Role::worker, 0, "a");
  CHECK(two.last<Refused>(1)->code == 2);
  // A job that cannot be without it does not begin, and the others do not wait for that.
  for (const Seat seat : {0U, 4U}) {
    CHECK(two.last<Refused>(seat)->code == 5);
    CHECK(two.last<Refused>(seat)->reason ==
          "[job] expected all processes that it cannot do without, got worker 1 on h1 was refused.");
  }
  CHECK(two.arbiter.generation() == 0);
  CHECK(two.decisions.back().fatal);
}

TEST_CASE("one that is lost before the first generation ends a job that cannot be without it, for all who wait") {
  for (const bool server : {false, true}) {
    Scene s(options(2, 2));
    s.enrol(10, Role::server, 0);
    s.workers(2);
    s.ended(server ? 10 : 1);
    CHECK(s.decisions.back().fatal);
    CHECK(s.last<Refused>(0)->code == 5);
    // And for who comes behind them.
    s.enrol(11, Role::server, 1);
    CHECK(s.last<Refused>(11)->reason == "[job] expected all processes that it cannot do without, got " +
                                             std::string(server ? "server 0 on h10" : "worker 1 on h1") +
                                             " is gone: SIGKILL.");
    CHECK(s.arbiter.generation() == 0);
  }
}

TEST_CASE("of an elastic job servers may go but the last, or none where they have what is trained") {
  auto o = options(2, 2, true);
  const auto found = [](Scene& s) {
    s.workers(2);
    for (const int i : {0, 1}) s.enrol(static_cast<Seat>(10 + i), Role::server, i);
    for (const Seat seat : {0U, 1U, 10U, 11U}) s.tell(seat, Stands{1});
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
  // The last worker takes nothing with it; a server does.
  holding.ended(0);
  holding.ended(1);
  CHECK_FALSE(holding.decisions.back().fatal);
  holding.enrol(5, Role::worker, 5);
  CHECK(holding.last<Issued>(5).has_value());
  holding.ended(11);
  CHECK(holding.decisions.back().fatal);
  CHECK(holding.last<Changing>(5)->lost.back().name() == "server 1 on h11");
  holding.enrol(6, Role::worker, 6);
  CHECK(holding.last<Refused>(6)->code == 5);
}

TEST_CASE("a server is compared with other servers, and with the workers in what both say") {
  const auto server = [](const std::string& model, const std::string& port) {
    JobFacts f;
    f.add("port", port);  // only servers say so
    f.add("model", model);
    return f.text();
  };
  const auto scene = [&](const std::string& first, const std::string& second) {
    Scene s(options(2, 2));
    s.tell(10, Enrol{Role::server, 0, "h", first});
    s.tell(11, Enrol{Role::server, 1, "h", second});
    s.workers(2);
    std::string refused;
    for (const Seat seat : {0U, 1U, 10U, 11U})
      if (const auto r = s.last<Refused>(seat); r && r->code == 2)
        refused += std::to_string(seat) + ": " + r->reason.substr(0, r->reason.find(". hint")) + "; ";
    return refused;
  };
  CHECK(scene(server("a", "1"), server("a", "1")).empty());
  CHECK(scene(server("a", "1"), server("a", "2")) ==
        "11: [server 1 on h] expected port 1, as the others have, got 2; ");
  // The workers are right, whoever comes first among the servers.
  CHECK(scene(server("b", "1"), server("a", "1")) ==
        "10: [server 0 on h] expected model a, as the workers have, got b; ");
  CHECK(scene(server("b", "1"), server("b", "1")) ==
        "10: [server 0 on h] expected model a, as the workers have, got b; "
        "11: [server 1 on h] expected model a, as the workers have, got b; ");
}

TEST_CASE("numbers that are taken, or that the job does not have") {
  Scene s(options(2));
  s.enrol(1, Role::worker, 0);
  s.enrol(2, Role::worker, 0);
  CHECK(s.last<Refused>(2)->reason ==
        "[worker 0 on h2] expected a number of its own, got worker 0 on h2, who is there already.");
  s.enrol(3, Role::worker, 2);
  CHECK(s.last<Refused>(3)->reason == "[worker 2 on h3] expected a number from 0 to 1, got 2.");
  s.enrol(4, Role::worker, -1);
  CHECK(s.last<Refused>(4).has_value());
  s.enrol(5, Role::server, 0);
  CHECK(s.last<Refused>(5).has_value());
  s.enrol(1, Role::worker, 1);  // a second time, which says nothing
  CHECK(s.arbiter.generation() == 0);
  s.enrol(6, Role::worker, 1);
  CHECK(s.arbiter.generation() == 1);
  s.ended(6);
  s.enrol(7, Role::worker, 1);
  CHECK(s.last<Refused>(7)->reason == "[worker 1 on h7] expected the processes that the job began with, got one more.");
  // Who was refused gets nothing else, whatever it says.
  s.tell(7, Beat{1});
  CHECK_FALSE(s.last<Answered>(7).has_value());
  s.tell(99, Beat{1});  // who has never asked
  CHECK_FALSE(s.last<Answered>(99).has_value());
}

TEST_CASE("silence counts from the last beat, for the whole time") {
  Scene s(options(3));
  s.workers(3);
  s.pass(9s);
  s.beat(0);
  s.beat(2);
  CHECK(s.last<Answered>(2)->number == 2);
  s.pass(999ms);
  CHECK(s.count(Decision::Kind::lost) == 0);
  s.pass(1ms);
  REQUIRE(s.count(Decision::Kind::lost) == 1);
  CHECK(s.decisions.back().member.name() == "worker 1 on h1");
  CHECK(s.decisions.back().why == "no sign of life for 10 s");
  CHECK(s.decisions.back().fatal);
  // The others hear of it, the lost one when it speaks again; no further generation of a job that cannot lose one.
  CHECK(s.last<Changing>(0)->lost.at(0).name() == "worker 1 on h1");
  CHECK_FALSE(s.last<Changing>(1).has_value());
  s.beat(1);
  CHECK_FALSE(s.last<Answered>(1).has_value());
  CHECK(s.last<Refused>(1)->code == 5);
  s.change_over({{0, 4}, {2, 4}});
  CHECK(s.arbiter.generation() == 1);
}

TEST_CASE("an arbiter that could not hear gives nobody up for that") {
  Scene s(options(2));
  s.workers(2);
  s.now += 60s;
  s.arbiter.forgive(s.now);
  s.pass(0s);
  CHECK(s.count(Decision::Kind::lost) == 0);
  s.pass(10s);
  CHECK(s.count(Decision::Kind::lost) == 2);
}

TEST_CASE("a loss: survivors report, the one with most steps is the authority, then the oldest") {
  Scene s(options(4, 0, true));
  s.workers(4);
  for (Seat seat = 0; seat < 4; ++seat) s.tell(seat, Stands{1});
  s.ended(0);
  CHECK_FALSE(s.decisions.back().fatal);
  for (const Seat seat : {1U, 2U, 3U}) CHECK(s.last<Changing>(seat)->lost.at(0).id == 0);
  s.tell(1, Report{1, 7});
  s.tell(3, Report{1, 8});
  s.tell(3, Report{0, 99});  // of another generation
  CHECK(s.arbiter.generation() == 1);
  s.tell(2, Report{1, 8});
  CHECK(s.arbiter.generation() == 2);
  CHECK(s.ids() == "1 2 3");
  CHECK(s.arbiter.authority() == 2);
  CHECK(s.last<Issued>(2)->authority == 2);
  CHECK_FALSE(s.last<Issued>(0)->generation == 2);
}

TEST_CASE("a death between reports is part of the same change; one behind them makes one generation more") {
  Scene s(options(4, 0, true));
  s.workers(4);
  s.ended(0);
  s.tell(1, Report{1, 3});
  s.ended(2);
  CHECK(s.arbiter.generation() == 1);
  s.tell(3, Report{1, 3});
  CHECK(s.arbiter.generation() == 2);
  CHECK(s.ids() == "1 3");
  // The next one comes while the group is formed.
  s.tell(1, Stands{2});
  s.ended(3);
  CHECK(s.last<Changing>(1)->generation == 2);
  CHECK_FALSE(s.last<Go>(1).has_value());
  s.tell(1, Stands{2});  // too late
  CHECK_FALSE(s.last<Go>(1).has_value());
  s.tell(1, Report{2, 3});
  CHECK(s.arbiter.generation() == 3);
  s.tell(1, Stands{3});
  CHECK(s.last<Go>(1)->generation == 3);
  // The last death before the last report completes the change.
  Scene t(options(3, 0, true));
  t.workers(3);
  t.ended(0);
  t.tell(1, Report{1, 3});
  t.ended(2);
  CHECK(t.arbiter.generation() == 2);
  CHECK(t.ids() == "1");
}

TEST_CASE("who joins waits until the members have reported, and is the youngest") {
  Scene s(options(2, 0, true));
  s.workers(2);
  for (Seat seat = 0; seat < 2; ++seat) s.tell(seat, Stands{1});
  s.enrol(9, Role::worker, 17);
  CHECK(s.last<Changing>(0)->joining == 1);
  CHECK(s.last<Changing>(0)->lost.empty());
  CHECK_FALSE(s.last<Issued>(9).has_value());
  s.change_over({{0, 5}, {1, 5}});
  CHECK(s.arbiter.generation() == 2);
  CHECK(s.ids() == "0 1 2");
  CHECK(s.last<Issued>(9)->you == 2);
  CHECK(s.arbiter.authority() == 0);
  // Who goes before it came is not waited for, and numbers are not given twice.
  s.enrol(10, Role::worker, 18);
  const auto said = s.said.size();
  s.ended(10);
  CHECK(s.said.size() == said + 1);  // to the one that went
  CHECK_FALSE(s.decisions.back().generation == 3);
  s.enrol(11, Role::worker, 18);
  s.change_over({{0, 6}, {1, 6}, {9, 6}});
  CHECK(s.ids() == "0 1 2 4");
}

TEST_CASE("leaving in order: with the next generation, and then it is let go") {
  Scene s(options(3, 0, true));
  s.workers(3);
  s.tell(0, Leave{false});
  s.tell(0, Leave{false});
  CHECK(s.last<Changing>(2)->leaving == 1);
  s.change_over({{0, 5}, {1, 5}, {2, 5}});
  CHECK(s.ids() == "1 2");
  CHECK(s.last<Released>(0).has_value());
  CHECK(s.last<Issued>(0)->generation == 1);
  CHECK(s.count(Decision::Kind::left) == 1);
  CHECK(s.count(Decision::Kind::lost) == 0);
  s.pass(60s);  // nobody waits for it
  CHECK(s.count(Decision::Kind::lost) == 2);

  // Asked from outside, and all at once.
  Scene t(options(2, 0, true));
  t.workers(2);
  t.arbiter.ask_to_leave(1);
  t.change_over({{0, 1}, {1, 1}});
  CHECK(t.ids() == "0");
}

TEST_CASE("who is done leaves alone; a step that broke calls a change; too few members wait") {
  Scene s(options(2, 1, true));
  s.workers(2);
  s.enrol(5, Role::server, 0);
  s.tell(0, Leave{true});
  CHECK_FALSE(s.last<Changing>(1).has_value());
  CHECK_FALSE(s.last<Released>(5).has_value());
  s.tell(1, Leave{true});
  CHECK(s.last<Released>(5).has_value());
  s.pass(60s);
  CHECK(s.count(Decision::Kind::lost) == 0);

  Scene broke(options(2, 0, true));
  broke.workers(2);
  broke.tell(1, Report{1, 3});
  CHECK(broke.last<Changing>(0)->generation == 1);
  broke.tell(0, Report{1, 3});
  CHECK(broke.ids() == "0 1");
  CHECK(broke.arbiter.generation() == 2);

  // Nor is one waited for that is done meanwhile.
  Scene done(options(3, 0, true));
  done.workers(3);
  done.ended(0);
  done.tell(1, Report{1, 3});
  done.tell(2, Leave{true});
  CHECK(done.ids() == "1");

  ArbiterOptions o = options(3, 0, true);
  o.min_workers = 2;
  Scene few(o);
  few.workers(3);
  few.ended(0);
  few.ended(1);
  few.tell(2, Report{1, 3});
  CHECK(few.arbiter.generation() == 1);
  few.enrol(8, Role::worker, 3);
  CHECK(few.ids() == "2 3");
}

TEST_CASE("a server comes back under its number, and nobody else") {
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
  CHECK(s.last<Refused>(7).has_value());
  s.enrol(8, Role::server, 0, "b");
  CHECK(s.last<Refused>(8)->code == 2);
  s.enrol(9, Role::server, 0);
  CHECK(s.arbiter.generation() == 2);
  CHECK(s.last<Issued>(0)->generation == 2);
  const auto members = s.last<Issued>(6)->members;
  CHECK(members.at(2).name() == "server 0 on h9");
  CHECK(members.at(2).id > 3);
  CHECK(members.at(3).name() == "server 1 on h6");
  s.ended(1);
  CHECK(s.decisions.back().fatal);
}

TEST_CASE("the lease holds for three quarters of the time from the sending of the last answered beat") {
  Lease lease(8s);
  CHECK_FALSE(lease.holds(0s));
  const auto first = lease.beat(100s);
  const auto second = lease.beat(101s);
  CHECK_FALSE(lease.holds(101s));
  lease.answered(first);
  CHECK(lease.holds(105s + 999ms));
  CHECK_FALSE(lease.holds(106s));
  lease.answered(second);
  CHECK(lease.holds(106s + 999ms));
  CHECK_FALSE(lease.holds(107s));
  // Answers that come late, twice or for nothing give no more than what they are for.
  lease.answered(first);
  lease.answered(second + 5);
  CHECK_FALSE(lease.holds(107s));
  const auto third = lease.beat(110s);
  lease.answered(third);
  CHECK(lease.holds(111s));
  lease.end();
  CHECK_FALSE(lease.holds(111s));
}

TEST_CASE("a change in order waits for the step, or the epoch, that all agree on") {
  ArbiterOptions o = options(2, 0, true);
  o.at_epoch = true;
  Scene s(o);
  s.workers(2);
  s.enrol(7, Role::worker, 7);  // while the first group is formed, which goes on
  CHECK(s.last<Changing>(0)->at_epoch);
  CHECK_FALSE(s.last<Changing>(0)->broken);
  for (const Seat seat : {0U, 1U}) s.tell(seat, Stands{1});
  CHECK(s.last<Go>(1)->generation == 1);
  s.tell(0, EpochBegins{1, 3});
  s.tell(0, EpochBegins{0, 9});  // of another generation
  CHECK(s.arbiter.epoch() == 3);
  // A member leaves with the next step, which is none for who joins.
  s.tell(1, Leave{false});
  CHECK_FALSE(s.last<Changing>(0)->at_epoch);
  CHECK(s.last<Changing>(0)->joining == 1);
  CHECK(s.last<Changing>(0)->leaving == 1);
  for (const Seat seat : {0U, 1U}) s.tell(seat, Report{1, 5});
  CHECK(s.ids() == "0");
  CHECK(s.last<Released>(1).has_value());
  CHECK_FALSE(s.last<Issued>(7).has_value());
  // Which is said again, and does not keep the group from standing.
  CHECK(s.last<Changing>(0)->generation == 2);
  CHECK(s.last<Changing>(0)->at_epoch);
  s.tell(0, Stands{2});
  CHECK(s.last<Go>(0)->generation == 2);
  s.tell(0, Report{2, 9, false, true});
  CHECK(s.ids() == "0 2");
  CHECK(s.arbiter.authority() == 0);
  for (const Seat seat : {0U, 7U}) s.tell(seat, Stands{3});
  // From outside: at the end of the epoch, but for a loss, which comes at once.
  s.arbiter.ask_to_leave(7);
  s.enrol(8, Role::worker, 8);
  CHECK(s.last<Changing>(0)->at_epoch);
  s.enrol(9, Role::worker, 9);
  s.tell(0, Report{3, 10, true, false});
  CHECK(s.last<Changing>(7)->broken);
  s.tell(7, Report{3, 10, true, false});
  CHECK(s.ids() == "0 2");
  CHECK(s.last<Changing>(7)->leaving == 1);
  for (const Seat seat : {0U, 7U}) s.tell(seat, Stands{4});
  for (const Seat seat : {0U, 7U}) s.tell(seat, Report{4, 20, false, true});
  CHECK(s.ids() == "0 3 4");
}

TEST_CASE("one that reports what the others cannot know of breaks their step") {
  for (const bool broken : {true, false}) {
    Scene s(options(3, 0, true));
    s.workers(3);
    for (Seat seat = 0; seat < 3; ++seat) s.tell(seat, Stands{1});
    s.tell(2, Report{1, 4, broken, false});
    CHECK(s.last<Changing>(0)->broken);
    CHECK_FALSE(s.last<Changing>(2).has_value());
  }
  // Also where a change in order was pending.
  Scene s(options(3, 0, true));
  s.workers(3);
  for (Seat seat = 0; seat < 3; ++seat) s.tell(seat, Stands{1});
  s.tell(1, Leave{false});
  CHECK_FALSE(s.last<Changing>(0)->broken);
  s.tell(2, Report{1, 4, true, false});
  CHECK(s.last<Changing>(0)->broken);
  CHECK(s.last<Changing>(0)->leaving == 1);
  s.ended(1);
  CHECK(s.last<Changing>(0)->lost.size() == 1);
  s.tell(0, Report{1, 4, true, false});
  CHECK(s.ids() == "0 2");
}

TEST_CASE("what was trained is handed on before its last holder leaves, and lost with it") {
  for (const bool at_epoch : {false, true}) {
    ArbiterOptions o = options(1, 0, true);
    o.at_epoch = at_epoch;
    Scene s(o);
    s.workers(1);
    s.tell(0, Stands{1});
    CHECK_FALSE(s.arbiter.can_spare({0}));
    s.enrol(5, Role::worker, 1);
    CHECK(s.arbiter.can_spare({0}));
    s.tell(0, Leave{false});
    CHECK_FALSE(s.last<Stop>(0).has_value());
    s.tell(0, Report{1, 5, false, at_epoch});
    CHECK(s.ids() == "0 1");
    CHECK(s.arbiter.authority() == 0);
    CHECK_FALSE(s.last<Released>(0).has_value());
    CHECK_FALSE(s.last<Changing>(5)->broken);
    for (const Seat seat : {0U, 5U}) s.tell(seat, Stands{2});
    CHECK(s.last<Go>(5).has_value());
    for (const Seat seat : {0U, 5U}) s.tell(seat, Report{2, 6});
    CHECK(s.ids() == "1");
    CHECK(s.last<Released>(0).has_value());
    // Now it is the last one, and would end the job.
    s.tell(5, Leave{false});
    CHECK(s.last<Stop>(5).has_value());
    s.enrol(6, Role::worker, 2);
    s.ended(5);
    CHECK(s.decisions.back().fatal);
    CHECK(s.arbiter.generation() == 3);
  }
  // Who is not wanted any more before it asks to be let in is let go when it does.
  Scene loads(options(1, 0, true));
  loads.workers(1);
  loads.tell(0, Stands{1});
  loads.arbiter.ask_to_leave(7);
  loads.enrol(7, Role::worker, 1);
  CHECK(loads.last<Released>(7).has_value());
  loads.enrol(8, Role::worker, 1);
  loads.tell(0, Report{1, 2});
  CHECK(loads.ids() == "0 2");
  // Who leaves stays for whoever comes, where those who were to go on are lost; it goes where the job stops.
  for (const bool stops : {false, true}) {
    ArbiterOptions replaced = options(2, 0, true);
    replaced.lost_are_replaced = true;
    Scene s(replaced);
    s.workers(2);
    for (const Seat seat : {0U, 1U}) s.tell(seat, Stands{1});
    s.tell(1, Leave{false});
    s.ended(0);
    s.tell(1, Report{1, 5, true, false});
    CHECK_FALSE(s.last<Released>(1).has_value());
    CHECK(s.arbiter.too_few());
    if (stops) {
      s.arbiter.stop_all();
      s.pass(0s);
      CHECK(s.last<Released>(1).has_value());
      continue;
    }
    s.enrol(5, Role::worker, 2);
    CHECK(s.ids() == "1 2");
    CHECK(s.arbiter.authority() == 1);
    for (const Seat seat : {1U, 5U}) s.tell(seat, Stands{2});
    for (const Seat seat : {1U, 5U}) s.tell(seat, Report{2, 6});
    CHECK(s.ids() == "2");
    CHECK(s.last<Released>(1).has_value());
  }
  // Nor does it stay where nobody starts others.
  Scene alone(options(2, 0, true));
  alone.workers(2);
  for (const Seat seat : {0U, 1U}) alone.tell(seat, Stands{1});
  alone.tell(1, Leave{false});
  alone.ended(0);
  alone.tell(1, Report{1, 5, true, false});
  CHECK(alone.last<Released>(1).has_value());
  // Before anything stood nothing is lost, and servers keep what they have.
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
  for (const Seat seat : {0U, 2U}) served.tell(seat, Stands{1});
  served.ended(0);
  CHECK_FALSE(served.decisions.back().fatal);
}

TEST_CASE("below the least number of members they wait; who joins does not wait for an epoch then") {
  ArbiterOptions o = options(3, 0, true);
  o.at_epoch = true;
  o.min_workers = 3;
  Scene s(o);
  s.workers(3);
  for (Seat seat = 0; seat < 3; ++seat) s.tell(seat, Stands{1});
  CHECK_FALSE(s.arbiter.can_spare({2}));
  s.tell(2, Leave{false});
  for (Seat seat = 0; seat < 3; ++seat) s.tell(seat, Report{1, 5});
  CHECK(s.arbiter.too_few());
  CHECK(s.last<Released>(2).has_value());  // it is not kept
  s.enrol(6, Role::worker, 6);
  CHECK_FALSE(s.arbiter.too_few());
  CHECK(s.ids() == "0 1 3");

  // A job that stops does so with whom it has.
  for (const Seat seat : {0U, 1U, 6U}) s.tell(seat, Stands{2});
  s.ended(1);
  for (const Seat seat : {0U, 6U}) s.tell(seat, Report{2, 6, true, false});
  CHECK(s.arbiter.too_few());
  s.arbiter.stop_all();
  s.pass(0s);
  CHECK(s.last<Stop>(6).has_value());
  CHECK(s.ids() == "0 3");
}

TEST_CASE("who comes when the work is done is let go") {
  Scene s(options(1, 0, true));
  s.workers(1);
  s.tell(0, Stands{1});
  s.enrol(5, Role::worker, 3);
  s.tell(0, Leave{true});
  CHECK(s.arbiter.finished());
  CHECK(s.last<Released>(5).has_value());
  s.enrol(6, Role::worker, 4);
  CHECK(s.last<Released>(6).has_value());
  CHECK(s.arbiter.generation() == 1);
}

TEST_CASE("a job whose members may change begins without who never comes, or comes and dies") {
  Scene s(options(4, 0, true));
  s.enrol(0, Role::worker, 0);
  s.enrol(3, Role::worker, 3);
  s.ended(3);
  s.beat(0);
  CHECK(s.last<Waiting>(0)->missing == "worker 1, worker 2");
  s.arbiter.never_comes(Role::worker, 1);
  s.arbiter.never_comes(Role::worker, 7);
  s.arbiter.never_comes(Role::worker, 0);  // who is there stays
  CHECK(s.arbiter.generation() == 0);
  s.enrol(2, Role::worker, 2);
  REQUIRE(s.last<Issued>(2).has_value());
  CHECK(s.last<Issued>(2)->generation == 1);
  CHECK(s.ids() == "0 2");
  for (const Seat seat : {0U, 2U}) s.tell(seat, Stands{1});
  // Then nobody is missed any more, and the place is free for who joins.
  s.arbiter.never_comes(Role::worker, 2);
  CHECK(s.ids() == "0 2");
  s.enrol(9, Role::worker, 1);
  s.change_over({{0, 5}, {2, 5}});
  CHECK(s.ids() == "0 2 4");

  // The last who is missed is.
  Scene t(options(2, 0, true));
  t.enrol(1, Role::worker, 1);
  t.arbiter.never_comes(Role::worker, 0);
  t.tell(1, Beat{1});
  CHECK(t.last<Issued>(1).has_value());

  // Where members stay, all must come.
  Scene u(options(2));
  u.enrol(1, Role::worker, 1);
  u.arbiter.never_comes(Role::worker, 0);
  CHECK(u.arbiter.generation() == 0);
}
