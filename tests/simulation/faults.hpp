// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "launcher.hpp"
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
    stop
  };
  std::size_t number = 0;
  Nanos at = 0;  // after the beginning of the faults
  Kind kind = Kind::kill;
  Random random;
  std::uint64_t after_sends = 0;  // it happens after so many messages of its process
  int victim = -1;                // place of the worker; -1: random
};

// A time in which a worker, or every worker if `process` is null, may be lost because of a fault.
struct Excuse {
  const Process* process = nullptr;
  Nanos begin = 0, end = 0;
};

// The faults of a schedule: which ones happen, and when.
class Faults {
 public:
  // steps: those of the job, or 0 if its workers do not call Job::reached().
  Faults(Simulation& simulation, Launcher& launcher, Network& network, Meeting& meeting, Nanos rank_timeout,
         std::int64_t steps)
      : simulation_(simulation), launcher_(launcher), network_(network), meeting_(meeting), timeout_(rank_timeout) {
    if (simulation.options.exhaustive) {
      list(simulation.options.seed - 1);
      return;
    }
    using Kind = Fault::Kind;
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
    Random plan(simulation.options.seed, 3);
    const std::size_t count = plan.below(9);
    // All of them happen in six seconds, in one, or within a change of members, which may be at the beginning or end.
    const std::uint64_t how = steps > 0 ? plan.below(3) : plan.one_in(3) ? 1 : 0;
    const Nanos time = how == 0 ? 6 * second : how == 1 ? second : 100 * ms;
    const Nanos begin = steps > 0 ? 0 : plan.between(0, 6 * second);
    if (how > 0 && steps > 0)
      begin_step_ = plan.one_in(3) ? 0 : plan.one_in(2) ? steps - plan.between(1, 4) : plan.between(0, steps);
    const std::uint64_t stops = steps == 0 ? 15 : plan.one_in(3) ? 4 : 30;
    for (std::size_t i = 0; i < count; ++i) {
      const Kind kind = plan.one_in(stops) ? Kind::stop : kinds[plan.below(all)];
      const Nanos at = (how == 1 ? begin : 0) + plan.between(0, time);
      const std::uint64_t sends = how == 2 && plan.one_in(2) ? 1 + plan.below(30) : 0;
      faults_.push_back({i, at, kind, Random(simulation.options.seed, 1000 + i), sends});
    }
    std::stable_sort(faults_.begin(), faults_.end(), [](const Fault& a, const Fault& b) { return a.at < b.at; });
  }

  // ---- all lists of one or two faults within a change ----
  // Returns the number of these lists: one of three changes (a worker joins, the oldest leaves, the youngest leaves),
  // and one or two of five faults of one of three workers, each after one of the first messages that the worker sends
  // after the request for the change.
  [[nodiscard]] static constexpr std::uint64_t lists() { return 3 * lists_of_a_change; }
  [[nodiscard]] static int founders(std::uint64_t seed) { return seed <= lists_of_a_change ? 2 : 3; }

  // Lets the faults happen. The world's thread calls it. Returns when all have begun, or when the job has ended.
  void run() {
    Scheduler& s = simulation_.scheduler;
    const std::int64_t& newest = launcher_.checks().newest_step();
    while (newest < begin_step_ && !launcher_.is_over())
      (void)s.block(&newest, "step", Network::moment(s.process(), s.now() + 200 * ms));
    const Nanos begin = s.now();
    for (Fault& f : faults_) {
      if (launcher_.is_over()) return;
      if (begin + f.at > s.now()) s.sleep(begin + f.at - s.now());
      if (!simulation_.options.without.contains(f.number) && !launcher_.is_over()) begin_fault(f);
    }
  }
  // Notes that a process may be lost from now on.
  void excuse(const Process& p) { excuse(&p, 0); }
  // Returns when the last fault ends.
  [[nodiscard]] Nanos quiet_at() const noexcept { return quiet_at_; }
  // Returns whether a fault explains that the process is lost now.
  [[nodiscard]] bool excuses(const Process& p, Nanos now) const {
    return std::any_of(excuses_.begin(), excuses_.end(), [&](const Excuse& e) {
      return (e.process == nullptr || e.process == &p) && e.begin <= now && now <= e.end + 4 * timeout_ + 10 * second;
    });
  }

 private:
  // The bounds of the lists.
  static constexpr std::uint64_t most_sends = 16, singles = 5 * 3 * most_sends;
  static constexpr std::uint64_t lists_of_a_change = singles * (singles + 1) / 2;

  void list(std::uint64_t number) {
    using Kind = Fault::Kind;
    static constexpr Kind kinds[] = {Kind::kill, Kind::lose_machine, Kind::pause, Kind::cut_from_launcher,
                                     Kind::isolate};
    begin_step_ = 4;
    const std::uint64_t change = number / lists_of_a_change;
    std::uint64_t of_change = number % lists_of_a_change, first = 0;
    for (; of_change > first; ++first) of_change -= first + 1;
    faults_.push_back({0, 0, change == 0 ? Kind::join : Kind::leave, Random(number, 1000), 0, change == 1 ? 0 : 2});
    for (const std::uint64_t single : {first, of_change}) {
      const std::uint64_t of_kind = single % (3 * most_sends);
      faults_.push_back({faults_.size(), 1, kinds[single / (3 * most_sends)], Random(number, 1000 + faults_.size()),
                         1 + of_kind / 3, static_cast<int>(of_kind % 3)});
      if (first == of_change) return;
    }
  }
  void begin_fault(Fault& f) {
    // The launcher starts a worker that joins in its next round.
    while (f.victim >= 0 && find(f.victim) == nullptr && !launcher_.is_over()) simulation_.scheduler.sleep(ms);
    Worker* const w = f.victim < 0 ? pick(f.random) : find(f.victim);
    if (f.after_sends == 0 || w == nullptr) return happen(f, w);
    w->process->after_sends.emplace(w->process->sends + f.after_sends, [this, &f, w] { happen(f, w); });
  }
  void happen(Fault& f, Worker* const w) {
    using Kind = Fault::Kind;
    Random& r = f.random;
    Scheduler& s = simulation_.scheduler;
    if (launcher_.is_over()) return;
    const std::string name = "fault " + std::to_string(f.number) + ": ";
    // Half of the times are shorter than the time-out.
    const Nanos random = r.one_in(2) ? r.between(ms, timeout_ * 9 / 10) : r.between(timeout_, 4 * timeout_);
    const Nanos time = f.victim < 0 ? random : 2 * timeout_;
    // The job does not wait for the end of such a cut.
    const bool stays_cut = (f.kind == Kind::cut_workers || f.kind == Kind::isolate) && f.victim < 0 && r.one_in(3);
    if (!stays_cut) quiet_at_ = std::max(quiet_at_, s.now() + time);
    const std::string span = " for " + std::to_string(time / ms) + " ms";
    if (f.kind == Kind::join) {
      if (launcher_.workers().size() >= 8) return;
      s.note(name + "a worker joins");
      return launcher_.request([](Launcher& l) { l.add(control::Role::worker, true); });
    }
    if (f.kind == Kind::stop) {
      s.note(name + "the job is to stop");
      return launcher_.request([](Launcher& l) { l.stop_job(); });
    }
    if (f.kind == Kind::pause_all) {
      const bool suspended = r.one_in(2);
      s.note(name + "all processes are " + (suspended ? "suspended" : "stopped") + span);
      for (Process& p : s.processes())
        if (p.number != 0) pause(p, time + r.between(0, 100 * ms), suspended ? time : 0);
      return;
    }
    if (f.kind == Kind::pause_launcher) {
      s.note(name + "the launcher is stopped" + span);
      if (time > timeout_ / 2) excuse(nullptr, time);
      return pause(launcher_.process(), time, 0);
    }
    if (w == nullptr) return;
    Process& p = *w->process;
    Process& launcher = launcher_.process();
    const std::uint64_t ways = r.below(3);  // both, only one, only the other
    switch (f.kind) {
      case Kind::lose_machine:
        simulation_.silent.insert(&p);
        [[fallthrough]];
      case Kind::kill:
        excuse(&p, 0);
        s.note(name + (f.kind == Kind::kill ? "SIGKILL of " : "the machine loses its power: ") + p.name);
        return s.kill(p, SIGKILL);
      case Kind::pause:
        s.note(name + p.name + " is stopped" + span);
        if (time > timeout_ / 2) excuse(&p, time);
        return pause(p, time, r.one_in(4) ? time : 0);
      case Kind::cut_from_launcher:
        s.note(name + p.name + " and the launcher are cut, ways " + std::to_string(ways) + span);
        if (time > timeout_ / 2) excuse(&p, time);
        return cut(p, launcher, ways, time);
      case Kind::cut_workers:
      case Kind::isolate: {
        Worker* const only = f.kind == Kind::cut_workers ? pick(r) : nullptr;
        if (only == w || (only == nullptr && f.kind == Kind::cut_workers)) return;
        s.note(name + p.name + " and " + (only != nullptr ? only->process->name : "all others") + " are cut, ways " +
               std::to_string(ways) + (stays_cut ? " for ever" : span));
        const Nanos lasting = stays_cut ? 600 * second : time;
        for (const Worker& other : launcher_.workers()) {
          if (&other == w || (only != nullptr && &other != only) || !other.process->runs()) continue;
          if (lasting > timeout_ / 2)
            for (const Process* of : std::initializer_list<const Process*>{&p, other.process}) excuse(of, lasting);
          cut(p, *other.process, ways, lasting);
        }
        return;
      }
      case Kind::reset: {
        Worker* const other = pick(r);
        // ZeroMQ connects to a server again, and sends what was lost.
        if (other == nullptr || other == w || other->role != control::Role::worker || w->role != other->role) return;
        s.note(name + "the connection of " + p.name + " and " + other->process->name + " is reset");
        return meeting_.reset(p, *other->process, r.one_in(2));
      }
      case Kind::slow: {
        const Nanos most = r.between(5 * ms, 150 * ms);
        s.note(name + p.name + " and the launcher get slow: " + std::to_string(most / ms) + " ms");
        network_.slow(p, launcher, most);
        return network_.slow(launcher, p, most);
      }
      case Kind::jump:
        s.note(name + "the wall clock of " + p.name + " jumps");
        return p.clocks.jump(r.between(-3600, 3600) * second);
      case Kind::signal:
        if (w->role != control::Role::worker || !w->holds) return;
        s.note(name + p.name + " receives SIGTERM");
        w->asked_to_leave = w->signalled = true;
        return;
      case Kind::leave:
        if (w->role == control::Role::server && launcher_.checks().follows()) return;  // servers stay
        s.note(name + p.name + " is asked to leave");
        return launcher_.request([w](Launcher& l) { l.ask_to_leave(*w); });
      default:
        return;
    }
  }
  [[nodiscard]] Worker* pick(Random& r) {
    std::vector<Worker*> running;
    for (Worker& w : launcher_.workers())
      if (w.process->runs()) running.push_back(&w);
    return running.empty() ? nullptr : running[r.below(running.size())];
  }
  [[nodiscard]] Worker* find(int place) {
    for (Worker& w : launcher_.workers())
      if (w.role == control::Role::worker && w.place == place) return &w;
    return nullptr;
  }
  // Notes that messages are late for some time.
  void disturb(Nanos time) { launcher_.checks().disturb(simulation_.scheduler.now() + time); }
  void excuse(const Process* p, Nanos time) {
    const Nanos now = simulation_.scheduler.now();
    excuses_.push_back({p, now, now + time});
  }
  void pause(Process& p, Nanos time, Nanos suspended) {
    disturb(time);
    // Clocks stand still once, even if two faults suspend the machine at the same time.
    const Nanos now = simulation_.scheduler.now(), before = std::max(now, p.paused_until);
    p.paused_until = std::max(before, now + time);
    p.clocks.suspend(std::min(suspended, p.paused_until - before));
  }
  void cut(Process& a, Process& b, std::uint64_t ways, Nanos time) {
    disturb(time);
    if (ways != 1) network_.cut(a, b, time);
    if (ways != 2) network_.cut(b, a, time);
  }

  Simulation& simulation_;
  Launcher& launcher_;
  Network& network_;
  Meeting& meeting_;
  Nanos timeout_, quiet_at_ = 0;
  std::int64_t begin_step_ = 0;
  std::vector<Fault> faults_;
  std::vector<Excuse> excuses_;
};

}  // namespace tutti::simulation
