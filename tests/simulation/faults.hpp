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
    slow,
    jump,
    join,
    leave,
    stop
  };
  std::size_t number = 0;
  Nanos at = 0;
  Kind kind = Kind::kill;
  Random random;
};

// A time in which a worker, or every worker if `process` is null, may be lost because of a fault.
struct Excuse {
  const Process* process = nullptr;
  Nanos begin = 0, end = 0;
};

// The faults of a schedule: which ones happen, and when.
class Faults {
 public:
  Faults(Simulation& simulation, Launcher& launcher, Network& network, Nanos rank_timeout, Nanos latest)
      : simulation_(simulation), launcher_(launcher), network_(network), timeout_(rank_timeout) {
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
                                     Kind::leave};
    Random plan(simulation.options.seed, 3);
    const std::size_t count = plan.below(9);
    const bool crowded = plan.one_in(3);  // all of them happen within a second
    const Nanos begin = plan.between(0, latest);
    for (std::size_t i = 0; i < count; ++i) {
      const Kind kind = plan.one_in(15) ? Kind::stop : kinds[plan.below(std::size(kinds))];
      const Nanos at = crowded ? begin + plan.between(0, second) : plan.between(0, latest);
      faults_.push_back({i, at, kind, Random(simulation.options.seed, 1000 + i)});
    }
    std::stable_sort(faults_.begin(), faults_.end(), [](const Fault& a, const Fault& b) { return a.at < b.at; });
  }

  // Lets the faults happen. The world's thread calls it. Returns when all have begun, or when the job has ended.
  void run() {
    Scheduler& s = simulation_.scheduler;
    for (Fault& f : faults_) {
      if (launcher_.is_over()) return;
      if (f.at > s.now()) s.sleep(f.at - s.now());
      if (!simulation_.options.without.contains(f.number) && !launcher_.is_over()) happen(f);
    }
  }
  // Returns when the last fault ends.
  [[nodiscard]] Nanos quiet_at() const noexcept { return quiet_at_; }
  // Returns whether a fault explains that the process is lost now.
  [[nodiscard]] bool excuses(const Process& p, Nanos now) const {
    return std::any_of(excuses_.begin(), excuses_.end(), [&](const Excuse& e) {
      return (e.process == nullptr || e.process == &p) && e.begin <= now && now <= e.end + 4 * timeout_ + 10 * second;
    });
  }

 private:
  void happen(Fault& f) {
    using Kind = Fault::Kind;
    Random& r = f.random;
    Scheduler& s = simulation_.scheduler;
    const std::string name = "fault " + std::to_string(f.number) + ": ";
    Worker* const w = pick(r);
    // Half of the times are shorter than the time-out.
    const Nanos time = r.one_in(2) ? r.between(ms, timeout_ * 9 / 10) : r.between(timeout_, 4 * timeout_);
    // The job does not wait for the end of such a cut.
    const bool stays_cut = f.kind == Kind::cut_workers && r.one_in(3);
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
      case Kind::cut_workers: {
        Worker* const other = pick(r);
        if (other == nullptr || other == w) return;
        s.note(name + p.name + " and " + other->process->name + " are cut, ways " + std::to_string(ways) +
               (stays_cut ? " for ever" : span));
        const Nanos lasting = stays_cut ? 600 * second : time;
        if (lasting > timeout_ / 2)
          for (const Process* of : std::initializer_list<const Process*>{&p, other->process}) excuse(of, lasting);
        return cut(p, *other->process, ways, lasting);
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
      case Kind::leave:
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
  void excuse(const Process* p, Nanos time) {
    const Nanos now = simulation_.scheduler.now();
    excuses_.push_back({p, now, now + time});
  }
  void pause(Process& p, Nanos time, Nanos suspended) {
    p.paused_until = std::max(p.paused_until, simulation_.scheduler.now() + time);
    p.clocks.suspend(suspended);
  }
  void cut(Process& a, Process& b, std::uint64_t ways, Nanos time) {
    if (ways != 1) network_.cut(a, b, time);
    if (ways != 2) network_.cut(b, a, time);
  }

  Simulation& simulation_;
  Launcher& launcher_;
  Network& network_;
  Nanos timeout_, quiet_at_ = 0;
  std::vector<Fault> faults_;
  std::vector<Excuse> excuses_;
};

}  // namespace tutti::simulation
