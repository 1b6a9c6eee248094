// SPDX-License-Identifier: MIT
// Tests the rule that selects one of two members that cannot reach each other, and the arbiter that applies it.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/arbiter/unreachable.hpp>
#include "membership_scene.hpp"

using namespace tutti;
using namespace tutti::control;
using namespace std::chrono_literals;

namespace {

// Returns workers 0, 1, ... and servers 100, 101, ... All wait in operation 7, and report the peers in `cuts`.
std::vector<BlockedMember> waiting(int workers, int servers, const std::vector<CutPair>& cuts) {
  std::vector<BlockedMember> all;
  for (int i = 0; i < workers; ++i) all.push_back({static_cast<ProcessId>(i), Role::worker, true, 7, {}});
  for (int i = 0; i < servers; ++i) all.push_back({static_cast<ProcessId>(100 + i), Role::server, servers > 1, 0, {}});
  for (const auto& [a, b] : cuts)
    for (BlockedMember& w : all)
      if (w.id == a || w.id == b)
        if (w.role == Role::worker) w.unreachable.push_back(w.id == a ? b : a);
  return all;
}
// Returns the members that the rule removes, in this order. The last server is never spare.
std::string gone(std::vector<BlockedMember> all) {
  std::string text;
  while (const auto g = choose_evicted(all)) {
    text += (text.empty() ? "" : ", ") + std::to_string(g->id) + " for " + std::to_string(g->other);
    std::erase_if(all, [&](const BlockedMember& w) { return w.id == g->id; });
    const auto servers =
        std::count_if(all.begin(), all.end(), [](const BlockedMember& w) { return w.role == Role::server; });
    for (BlockedMember& w : all) w.spare = w.spare && (w.role == Role::worker || servers > 1);
  }
  return text;
}

}  // namespace

TEST_CASE(
    "of two members without a connection, the one that fewer members reach is removed; if equal, the younger one") {
  struct Row {
    const char* what;
    int workers, servers;
    std::vector<CutPair> cuts;
    const char* gone;
  };
  const Row table[] = {
      {"nothing is cut", 3, 0, {}, ""},
      {"two of two", 2, 0, {{0, 1}}, "1 for 0"},
      {"two of three", 3, 0, {{0, 2}}, "2 for 0"},
      {"the younger, also if it is named first", 3, 0, {{2, 1}}, "2 for 1"},
      {"the oldest reaches no other one", 3, 0, {{0, 1}, {0, 2}}, "0 for 1"},
      {"the middle one reaches no other one", 3, 0, {{0, 1}, {1, 2}}, "1 for 0"},
      {"all three are apart", 3, 0, {{0, 1}, {0, 2}, {1, 2}}, "2 for 0, 1 for 0"},
      {"two hosts with two workers each", 4, 0, {{0, 2}, {0, 3}, {1, 2}, {1, 3}}, "3 for 0, 2 for 0"},
      {"two hosts, of which the larger one stays", 3, 0, {{0, 1}, {0, 2}}, "0 for 1"},
      {"two pairs", 4, 0, {{0, 1}, {2, 3}}, "3 for 2, 1 for 0"},
      {"a worker and one of two servers", 3, 2, {{1, 101}}, "101 for 1"},
      {"a worker and both servers", 3, 2, {{1, 100}, {1, 101}}, "1 for 100"},
      {"a server that no worker reaches", 2, 2, {{0, 100}, {1, 100}}, "100 for 0"},
      {"a worker and the only server", 3, 1, {{1, 100}}, "1 for 100"},
      {"two hosts with a worker and a server each", 2, 2, {{0, 101}, {1, 100}}, "101 for 0, 1 for 100"},
  };
  for (const Row& row : table) {
    CAPTURE(row.what);
    CHECK(gone(waiting(row.workers, row.servers, row.cuts)) == row.gone);
  }
}

TEST_CASE("a slow member is not removed: both members must wait and not reach each other") {
  auto all = waiting(3, 0, {{1, 2}});
  all[2].operation = 0;  // it computes, so it reports nothing
  CHECK(gone(all).empty());
  all[2].operation = 7;
  CHECK(gone(all) == "2 for 1");
  all[2].unreachable.clear();  // it reaches the other member
  CHECK(gone(all).empty());
  // If the job can lose neither member, the rule removes the younger one, which ends the job.
  all = waiting(2, 0, {{0, 1}});
  for (BlockedMember& w : all) w.spare = false;
  CHECK(gone(all) == "1 for 0");
  all[1].spare = true;
  std::swap(all[0].spare, all[1].spare);
  CHECK(gone(all) == "0 for 1");
}

TEST_CASE("two members without a connection are detected even if they wait in different operations") {
  // The last message of operation 7 to worker 2 was lost. Worker 0 had received all its messages of that operation, so
  // it waits in the next one. A root of broadcasts can be several operations further.
  for (const std::uint64_t ahead : {1U, 2U, 5U}) {
    CAPTURE(ahead);
    auto all = waiting(3, 0, {{0, 2}});
    all[0].operation += ahead;
    CHECK(gone(all) == "2 for 0");
    all = waiting(3, 0, {{0, 2}});
    all[2].operation += ahead;
    CHECK(gone(all) == "2 for 0");
    all[2].unreachable.clear();
    CHECK(gone(all).empty());
  }
  Scene s(options(3, 0, true));
  s.workers(3);
  for (const ConnectionId connection : {0U, 1U, 2U}) s.tell(connection, GroupReady{1});
  s.tell(2, UnreachablePeers{1, 20, {0}});
  s.tell(0, UnreachablePeers{1, 21, {2}});
  s.pass(600ms);
  REQUIRE(s.count(Decision::Kind::lost) == 1);
  CHECK(s.decisions.back().why == "it and worker 0 on h0 cannot reach each other");
  CHECK(s.decisions.back().member.name() == "worker 2 on h2");
}

TEST_CASE("the arbiter gives up one of two members without a connection after all members had time to report") {
  Scene s(options(3, 0, true));
  s.workers(3);
  for (const ConnectionId connection : {0U, 1U, 2U}) s.tell(connection, GroupReady{1});
  s.tell(1, UnreachablePeers{1, 4, {2}});
  s.pass(600ms);  // worker 2 has not reported: it may be slow
  CHECK(s.count(Decision::Kind::lost) == 0);
  s.tell(1, UnreachablePeers{1, 4, {2}});
  s.tell(2, UnreachablePeers{1, 4, {1, 0}});
  s.pass(400ms);
  CHECK(s.count(Decision::Kind::lost) == 0);
  s.tell(0, UnreachablePeers{1, 4, {2}});
  s.pass(200ms);
  REQUIRE(s.count(Decision::Kind::lost) == 1);
  const Decision& lost = s.decisions.back();
  CHECK(lost.member.name() == "worker 2 on h2");
  CHECK(lost.why == "it and worker 0 on h0 cannot reach each other");
  CHECK(lost.unreachable);
  CHECK_FALSE(lost.fatal);
  CHECK(s.last<Rejection>(2)->code == 5);
  CHECK(reason_of_end(*s.last<MembershipChange>(0)) == "the loss of worker 2 on h2");
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, Report{1, 3, true});
  CHECK(s.ids() == "0 1");
  // Reports about an old generation do not count, whether they arrive before or after its end.
  s.tell(0, UnreachablePeers{1, 4, {1}});
  s.tell(1, UnreachablePeers{2, 1, {0}});
  s.pass(1s);
  CHECK(s.count(Decision::Kind::lost) == 1);
  // A report does not count after its sender has withdrawn it.
  s.tell(0, UnreachablePeers{2, 1, {1}});
  s.tell(1, UnreachablePeers{2, 1, {}});
  s.pass(1s);
  CHECK(s.count(Decision::Kind::lost) == 1);
}

TEST_CASE("two members without a connection end a job that can lose no member") {
  Scene s(options(2));
  s.workers(2);
  s.tell(0, UnreachablePeers{1, 1, {1}});
  s.tell(1, UnreachablePeers{1, 1, {0}});
  s.pass(500ms);
  REQUIRE(s.count(Decision::Kind::lost) == 1);
  CHECK(s.decisions.back().fatal);
  // If the arbiter itself was paused, it waits for further reports.
  Scene paused(options(2));
  paused.workers(2);
  paused.tell(0, UnreachablePeers{1, 1, {1}});
  paused.tell(1, UnreachablePeers{1, 1, {0}});
  paused.now += 40s;
  paused.arbiter.forgive(paused.now, 40s);
  paused.pass(0s);
  CHECK(paused.count(Decision::Kind::lost) == 0);
  paused.tell(1, UnreachablePeers{1, 1, {}});
  paused.pass(500ms);
  CHECK(paused.count(Decision::Kind::lost) == 0);
}

TEST_CASE("one report is enough if the other member has left the generation before a change") {
  Scene s(options(3, 0, true));
  s.workers(3);
  for (const ConnectionId connection : {0U, 1U, 2U}) s.tell(connection, GroupReady{1});
  s.tell(0, Leave{false});
  // Workers 0 and 1 have done the last step, in which worker 2 still lacks a message of worker 1.
  for (const ConnectionId connection : {0U, 1U}) s.tell(connection, Report{1, 3});
  s.tell(2, UnreachablePeers{1, 4, {1}});
  CHECK(s.ids() == "0 1 2");
  s.pass(600ms);
  REQUIRE(s.count(Decision::Kind::lost) == 1);
  const auto lost = std::find_if(s.decisions.begin(), s.decisions.end(),
                                 [](const Decision& d) { return d.kind == Decision::Kind::lost; });
  CHECK(lost->member.name() == "worker 2 on h2");
  CHECK(lost->unreachable);
  CHECK(s.ids() == "1");
}

TEST_CASE("the rule is applied again when a member leaves the generation after another one has named it") {
  Scene s(options(3, 0, true));
  s.workers(3);
  for (const ConnectionId connection : {0U, 1U, 2U}) s.tell(connection, GroupReady{1});
  s.tell(0, Leave{false});
  // Worker 2 lacks the last message of worker 1, which has not reported yet. Its report is not repeated.
  s.tell(2, UnreachablePeers{1, 4, {1}});
  s.pass(600ms);
  CHECK(s.count(Decision::Kind::lost) == 0);
  s.tell(0, Report{1, 3});
  s.pass(600ms);
  CHECK(s.count(Decision::Kind::lost) == 0);
  s.tell(1, Report{1, 3});
  CHECK(s.count(Decision::Kind::lost) == 0);  // worker 2 may still withdraw its report
  s.pass(600ms);
  REQUIRE(s.count(Decision::Kind::lost) == 1);
  const auto lost = std::find_if(s.decisions.begin(), s.decisions.end(),
                                 [](const Decision& d) { return d.kind == Decision::Kind::lost; });
  CHECK(lost->member.name() == "worker 2 on h2");
  CHECK(s.ids() == "1");
}

TEST_CASE("the members repeat a step if one of them lacks the last message of a worker that is done and has left") {
  for (const bool reports_first : {false, true}) {
    CAPTURE(reports_first);
    Scene s = standing(options(3, 0, true));
    if (reports_first) s.tell(2, UnreachablePeers{1, 4, {0}});
    s.pass(600ms);
    CHECK_FALSE(s.last<MembershipChange>(2).has_value());
    s.tell(0, Leave{true});
    s.ended(0);
    if (!reports_first) s.tell(2, UnreachablePeers{1, 4, {0}});
    CHECK_FALSE(s.last<MembershipChange>(2).has_value());  // worker 2 may still withdraw its report
    s.pass(600ms);
    REQUIRE(s.last<MembershipChange>(2).has_value());
    CHECK(s.last<MembershipChange>(2)->broken);
    for (const ConnectionId connection : {1U, 2U}) s.tell(connection, Report{1, 3, true});
    CHECK(s.ids() == "1 2");
    CHECK(s.count(Decision::Kind::lost) == 0);
  }
  // A report that was withdrawn does not count. A job that cannot repeat the step waits for its own deadline.
  for (const bool elastic : {true, false}) {
    CAPTURE(elastic);
    Scene s = standing(options(3, 0, elastic));
    s.tell(2, UnreachablePeers{1, 4, {0}});
    s.tell(0, Leave{true});
    if (elastic) s.tell(2, UnreachablePeers{1, 4, {}});
    s.pass(600ms);
    CHECK_FALSE(s.last<MembershipChange>(2).has_value());
  }
}
