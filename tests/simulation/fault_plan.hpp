// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "membership_checks.hpp"
#include "random.hpp"
#include "simulation.hpp"

namespace tutti::simulation {

// A fault, or a change of members that a user asks for. Its numbers come from a random stream of its own, so the others
// stay the same if one is left out.
struct Fault {
  enum class Kind : std::uint8_t {
    kill,
    lose_machine,
    pause,
    pause_all,
    pause_launcher,
    cut_from_launcher,
    cut_workers,
    isolate,
    reset,
    slow,
    jump,
    join,
    leave,
    signal,
    stop,
    // Combined faults, which meet rare moments.
    pause_twice,
    cut_unevenly,
    stall,
    join_and_leave,
    leave_alone,
    lose_founders,
    at_event,
    // Messages that arrive at once after a pause, and pauses of processes that wait for a generation.
    enter_late,
    break_entering,
    pause_waiting
  };
  using Event = MembershipChecks::Event;
  std::size_t number = 0;
  Nanos at = 0;  // after the beginning of the faults
  Kind kind = Kind::kill;
  Random random;
  std::uint64_t after_sends = 0;  // it happens after so many messages of its process
  int victim = -1;                // place of the worker; -1: random
  Event event = Event::none;
  std::uint64_t events = 1;  // it happens at the n-th such event
};

// All lists of one or two faults within a change: a worker joins, the oldest leaves, or the youngest leaves, and one or
// two of five faults happen to one of three workers, each after one of the first messages that the worker sends after
// the request for the change.
class FaultLists {
 public:
  [[nodiscard]] static constexpr std::uint64_t count() { return 3 * of_a_change; }
  [[nodiscard]] static int founders(std::uint64_t seed) { return seed <= of_a_change ? 2 : 3; }
  [[nodiscard]] static std::vector<Fault> list(std::uint64_t seed) {
    using Kind = Fault::Kind;
    static constexpr Kind kinds[] = {Kind::kill, Kind::lose_machine, Kind::pause, Kind::cut_from_launcher,
                                     Kind::isolate};
    const std::uint64_t number = seed - 1, change = number / of_a_change;
    std::uint64_t of_change = number % of_a_change, first = 0;
    for (; of_change > first; ++first) of_change -= first + 1;
    std::vector<Fault> list{
        {0, 0, change == 0 ? Kind::join : Kind::leave, Random(number, 1000), 0, change == 1 ? 0 : 2}};
    for (const std::uint64_t single : {first, of_change}) {
      const std::uint64_t of_kind = single % (3 * most_sends);
      list.push_back({list.size(), 1, kinds[single / (3 * most_sends)], Random(number, 1000 + list.size()),
                      1 + of_kind / 3, static_cast<int>(of_kind % 3)});
      if (first == of_change) break;
    }
    return list;
  }

 private:
  static constexpr std::uint64_t most_sends = 16, singles = 5 * 3 * most_sends;
  static constexpr std::uint64_t of_a_change = singles * (singles + 1) / 2;
};

inline constexpr std::size_t most_faults = 8;  // of a schedule

// Adds combined faults: several at once, or right after an event of the job.
inline void add_combined(std::vector<Fault>& faults, std::uint64_t seed, std::int64_t steps, std::int64_t& begin_step) {
  using Kind = Fault::Kind;
  using Event = Fault::Event;
  static constexpr Kind kinds[] = {Kind::pause_twice,    Kind::cut_unevenly,  Kind::stall,       Kind::stall,
                                   Kind::stall,          Kind::stall,         Kind::isolate,     Kind::isolate,
                                   Kind::at_event,       Kind::at_event,      Kind::at_event,    Kind::at_event,
                                   Kind::join_and_leave, Kind::lose_founders, Kind::leave_alone, Kind::leave_alone};
  static constexpr Event events[] = {Event::issued, Event::issued, Event::issued,
                                     Event::stands, Event::report, Event::unreachable};
  Random plan(seed, 11);
  if (plan.one_in(2)) faults.clear();
  for (std::uint64_t i = 1 + plan.below(3); i > 0 && faults.size() < most_faults; --i) {
    const Kind kind = kinds[plan.below(std::size(kinds))];
    // A worker is also to work for long at the end of the job.
    const bool late = kind == Kind::stall && plan.one_in(2);
    if (late) begin_step = steps - plan.between(1, 3);
    const Nanos at = late || plan.one_in(3) ? 0 : plan.between(0, 2 * second);
    const bool founders = kind == Kind::lose_founders;
    const Event event = founders ? Event::issued : events[plan.below(std::size(events))];
    const bool alone = late || kind == Kind::isolate;  // its check needs a job without other faults
    if (alone) faults.clear();
    faults.push_back(
        {faults.size(), at, kind, Random(seed, 1100 + faults.size()), 0, -1, event, founders ? 1 : 1 + plan.below(3)});
    if (alone) return;
  }
}

// Returns one kind of fault, several times: the moment that it needs is short.
[[nodiscard]] inline std::vector<Fault> rare_faults(std::uint64_t seed) {
  using Kind = Fault::Kind;
  static constexpr Kind kinds[] = {Kind::break_entering, Kind::break_entering, Kind::break_entering,
                                   Kind::enter_late,     Kind::pause_waiting,  Kind::cut_unevenly};
  Random plan(seed, 12);
  const Kind kind = kinds[plan.below(std::size(kinds))];
  const bool entering = kind == Kind::break_entering, late = kind == Kind::enter_late;
  std::vector<Fault> faults;
  Nanos at = entering && plan.one_in(2) ? 0 : plan.between(1, 500 * ms);
  for (std::uint64_t i = 0, n = entering ? 6 : late ? 3 : 1; i < n; ++i) {
    faults.push_back({i, at, kind, Random(seed, 1100 + i), 0, -1, Fault::Event::issued, entering ? i + 1 : 1});
    if (late) at += plan.between(0, second);
  }
  return faults;
}

// Returns the faults of a schedule in their order. steps: those of the job, or 0 if its workers do not call
// Job::reached(). begin_step: they begin after this step.
[[nodiscard]] inline std::vector<Fault> faults_of(const ScheduleOptions& o, std::int64_t steps,
                                                  std::int64_t& begin_step) {
  using Kind = Fault::Kind;
  if (o.exhaustive) {
    begin_step = 4;
    return FaultLists::list(o.seed);
  }
  // A kind that is listed twice is twice as frequent.
  static constexpr Kind kinds[] = {Kind::kill,
                                   Kind::kill,
                                   Kind::lose_machine,
                                   Kind::pause,
                                   Kind::pause,
                                   Kind::pause_all,
                                   Kind::pause_launcher,
                                   Kind::cut_from_launcher,
                                   Kind::cut_from_launcher,
                                   Kind::cut_workers,
                                   Kind::cut_workers,
                                   Kind::slow,
                                   Kind::jump,
                                   Kind::join,
                                   Kind::join,
                                   Kind::join,
                                   Kind::leave,
                                   Kind::leave,
                                   Kind::signal,
                                   Kind::isolate,
                                   Kind::reset};
  const std::size_t all = std::size(kinds) - (steps > 0 ? 0 : 3);  // workers must take part in the last three
  Random plan(o.seed, 3);
  const std::size_t count = plan.below(most_faults + 1);
  // All of them happen in six seconds, in one, or within a change of members, which may be at the beginning or end.
  const std::uint64_t how = steps > 0 ? plan.below(3) : plan.one_in(3) ? 1 : 0;
  const Nanos time = how == 0 ? 6 * second : how == 1 ? second : 100 * ms;
  const Nanos begin = steps > 0 ? 0 : plan.between(0, 6 * second);
  if (how > 0 && steps > 0)
    begin_step = plan.one_in(3) ? 0 : plan.one_in(2) ? steps - plan.between(1, 4) : plan.between(0, steps);
  const std::uint64_t stops = steps == 0 ? 15 : plan.one_in(3) ? 4 : 30;
  std::vector<Fault> faults;
  for (std::size_t i = 0; i < count; ++i) {
    const Kind kind = plan.one_in(stops) ? Kind::stop : kinds[plan.below(all)];
    const Nanos at = (how == 1 ? begin : 0) + plan.between(0, time);
    const std::uint64_t sends = how == 2 && plan.one_in(2) ? 1 + plan.below(30) : 0;
    faults.push_back({i, at, kind, Random(o.seed, 1000 + i), sends});
  }
  if (steps > 0 && o.seed % 3 == 0) {
    add_combined(faults, o.seed, steps, begin_step);
  } else if (steps > 0 && (o.seed % 5 == 1 || o.seed % 5 == 2)) {
    begin_step = 0;
    return rare_faults(o.seed);
  }
  std::stable_sort(faults.begin(), faults.end(), [](const Fault& a, const Fault& b) { return a.at < b.at; });
  return faults;
}

}  // namespace tutti::simulation
