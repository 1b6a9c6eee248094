// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "fault_plan.hpp"
#include "launcher.hpp"
#include "random.hpp"
#include "simulation.hpp"

namespace tutti::simulation {

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
      : simulation_(simulation),
        s_(simulation.scheduler),
        launcher_(launcher),
        network_(network),
        meeting_(meeting),
        timeout_(rank_timeout) {
    faults_ = faults_of(simulation.options, steps, begin_step_);
    for (Fault& f : faults_)
      if (f.kind == Fault::Kind::lose_founders) armed_.push_back(&f);
    launcher_.checks().at_event = [this](Event e, const Worker* w) { happen_at(e, w); };
  }

  // Lets the faults happen. The world's thread calls it. Returns when all have begun, or when the job has ended.
  void run() {
    const std::int64_t& newest = launcher_.checks().newest_step();
    while (newest < begin_step_ && !launcher_.is_over())
      (void)s_.block(&newest, "step", Network::moment(s_.process(), s_.now() + 200 * ms));
    const Nanos begin = s_.now();
    for (Fault& f : faults_) {
      if (launcher_.is_over()) return;
      if (begin + f.at > s_.now()) s_.sleep(begin + f.at - s_.now());
      if (!simulation_.options.without.contains(f.number) && !launcher_.is_over()) begin_fault(f);
    }
  }
  // Notes that a process may be lost from now on.
  void excuse(const Process& p) { excuse(&p, 0); }
  // Stops or suspends all processes.
  void pause_all(const std::string& name, Random& r, Nanos time) {
    const bool suspended = r.one_in(2);
    s_.note(name + "all processes are " + (suspended ? "suspended" : "stopped") + lasting(time));
    quiet_after(time);
    for (Process& p : s_.processes())
      if (p.number != 0) pause(p, time + r.between(0, 100 * ms), suspended ? time : 0);
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
  using Event = MembershipChecks::Event;

  void happen_at(Event e, const Worker* w) {
    for (Fault*& f : armed_)
      if (f != nullptr && f->event == e && --f->events == 0 && !simulation_.options.without.contains(f->number))
        surprise(*std::exchange(f, nullptr), w);
    std::erase(armed_, nullptr);
  }
  // Happens while the launcher handles an event of worker `of`, or of all workers if that is null.
  void surprise(Fault& f, const Worker* of) {
    Random& r = f.random;
    const std::string name = "fault " + std::to_string(f.number) + ": ";
    launcher_.checks().isolated(nullptr);
    if (f.kind == Fault::Kind::lose_founders) {
      kill_workers(nullptr, r.one_in(2), name);
      return later(r.between(0, 10 * second), [this] { launcher_.request([](Launcher& l) { l.stop_job(); }); });
    }
    if (f.kind == Fault::Kind::break_entering) return break_entering(f, name);
    if (f.kind == Fault::Kind::enter_late) {
      Worker* const late = pick(r);
      if (late == nullptr || !late->member) return;
      const Nanos time = r.between(timeout_ * 11 / 10, 2 * timeout_);
      return stop(*late->process, time, name);
    }
    Worker* held = of == nullptr && !r.one_in(4) ? pick(r) : nullptr;
    if (held != nullptr && !held->member) held = nullptr;
    if (held != nullptr) {
      const Nanos time = r.one_in(2) ? r.between(5 * ms, timeout_ / 3) : r.between(timeout_, 2 * timeout_);
      stop(*held->process, time, name);
    }
    if (held != nullptr && r.one_in(3)) return;
    if (held != nullptr && r.one_in(3)) return kill_workers(held, true, name);
    Worker* const lost = pick(r);
    if (lost != nullptr && lost != held && (lost != of || r.one_in(2))) kill(*lost, r.one_in(2), name);
  }
  // A process gets the news of a generation and of its end at once: a server, while the workers begin several
  // generations, or the only worker that is left.
  void break_entering(Fault& f, const std::string& name) {
    Random& r = f.random;
    meeting_.checks_flags = true;
    std::vector<Worker*> trains;
    bool servers = false;
    for (Worker& w : launcher_.workers()) {
      if (!w.process->runs()) continue;
      servers = servers || w.role == control::Role::server;
      if (w.trains()) trains.push_back(&w);
    }
    if (trains.size() < 2 || (!servers && f.number > 0)) return;
    const Nanos time = r.between(100 * ms, timeout_ / 3);
    s_.note(name + (servers ? "the servers are" : "a worker is") + " stopped for " + std::to_string(time / ms) + " ms");
    quiet_after(time);
    if (!servers) {
      pause(*trains.front()->process, time, 0);
      for (std::size_t i = 1; i < trains.size(); ++i) kill(*trains[i], false, name);
      return;
    }
    for (const Worker& w : launcher_.workers())
      if (w.process->runs() && w.role == control::Role::server) pause(*w.process, time, 0);
    Process &one = *trains[0]->process, &other = *trains[1]->process;
    // The arbiter announces the end of the generation again when the last worker that remains has left it.
    if (r.one_in(3)) {
      pause(one, time + 50 * ms, 0);
      return kill(*trains[1], false, name);
    }
    // They notice it if they have not got the first messages of each other.
    later(r.between(ms, 6 * ms), [this, &one, &other] { meeting_.reset(one, other, true); });
  }
  void kill(const Worker& w, bool silent, const std::string& name) {
    if (silent) simulation_.silent.insert(w.process);
    excuse(w.process, 0);
    s_.note(name + (silent ? "the machine loses its power: " : "SIGKILL of ") + w.process->name);
    s_.kill(*w.process, SIGKILL);
  }
  void kill_workers(const Worker* except, bool silent, const std::string& name) {
    for (const Worker& w : launcher_.workers())
      if (w.role == control::Role::worker && w.process->runs() && &w != except) kill(w, silent, name);
  }
  // Does something after a time, in a thread of its own.
  void later(Nanos time, std::function<void()> what) {
    s_.start_thread(s_.processes().front(), [this, time, what = std::move(what)] {
      s_.sleep(time);
      what();
    });
  }
  // Returns a worker that runs and is not w, or null.
  [[nodiscard]] Worker* another(Random& r, const Worker& w) {
    Worker* const other = pick(r);
    return other == &w || (other != nullptr && other->role != control::Role::worker) ? nullptr : other;
  }
  void pause_twice(const std::string& name, Random& r) {
    const Nanos first = r.between(timeout_, 2 * timeout_);
    pause_all(name, r, first);
    later(first + r.between(5 * ms, 90 * ms),
          [this, name, &r] { pause_all(name, r, r.between(timeout_ * 11 / 10, 3 * timeout_)); });
  }
  void join(const std::string& name) {
    if (launcher_.workers().size() >= 8) return;
    s_.note(name + "a worker joins");
    launcher_.request([](Launcher& l) { l.add(control::Role::worker, true); });
  }

  void begin_fault(Fault& f) {
    if (f.kind == Fault::Kind::at_event) return armed_.push_back(&f);
    if (f.kind == Fault::Kind::enter_late || f.kind == Fault::Kind::break_entering) {
      armed_.push_back(&f);
      if (f.kind == Fault::Kind::enter_late || (f.number == 0 && f.at > 0))
        join("fault " + std::to_string(f.number) + ": ");
      return;
    }
    if (f.kind == Fault::Kind::lose_founders) return;  // it was armed before
    // The launcher starts a worker that joins in its next round.
    while (f.victim >= 0 && find(f.victim) == nullptr && !launcher_.is_over()) s_.sleep(ms);
    Worker* const w = f.victim < 0 ? pick(f.random) : find(f.victim);
    if (f.after_sends == 0 || w == nullptr) return happen(f, w);
    w->process->after_sends.emplace(w->process->sends + f.after_sends, [this, &f, w] { happen(f, w); });
  }
  void happen(Fault& f, Worker* const w) {
    using Kind = Fault::Kind;
    Random& r = f.random;
    if (launcher_.is_over()) return;
    const std::string name = "fault " + std::to_string(f.number) + ": ";
    // Half of the times are shorter than the time-out.
    const Nanos random = r.one_in(2) ? r.between(ms, timeout_ * 9 / 10) : r.between(timeout_, 4 * timeout_);
    const Nanos time = f.victim < 0 ? random : 2 * timeout_;
    // The job does not wait for the end of such a cut.
    const bool stays_cut = (f.kind == Kind::cut_workers || f.kind == Kind::isolate) && f.victim < 0 && r.one_in(3);
    if (!stays_cut) quiet_after(time);
    const std::string span = lasting(time);
    if (f.kind == Kind::join) return join(name);
    if (f.kind == Kind::stop) {
      s_.note(name + "the job is to stop");
      return launcher_.request([](Launcher& l) { l.stop_job(); });
    }
    if (f.kind == Kind::join_and_leave) {
      s_.note(name + "a worker joins, and is asked to leave before it is there");
      return launcher_.request([](Launcher& l) {
        l.add(control::Role::worker, true);
        l.ask_to_leave(l.workers().back());
      });
    }
    if (f.kind == Kind::pause_all) return pause_all(name, r, time);
    if (f.kind == Kind::pause_twice) return pause_twice(name, r);
    if (f.kind == Kind::pause_launcher) {
      s_.note(name + "the launcher is stopped" + span);
      if (time > timeout_ / 2) excuse(nullptr, time);
      return pause(launcher_.process(), time, 0);
    }
    if (w == nullptr) return;
    Process& p = *w->process;
    Process& launcher = launcher_.process();
    const std::uint64_t ways = r.below(3);  // both, only one, only the other
    switch (f.kind) {
      case Kind::lose_machine:
      case Kind::kill:
        return kill(*w, f.kind != Kind::kill, name);
      case Kind::pause:
        return stop(p, time, name, r.one_in(4));
      case Kind::cut_from_launcher:
        s_.note(name + p.name + " and the launcher are cut, ways " + std::to_string(ways) + span);
        if (time > timeout_ / 2) excuse(&p, time);
        return cut(p, launcher, ways, time);
      case Kind::cut_workers:
      case Kind::isolate: {
        Worker* const only = f.kind == Kind::cut_workers ? pick(r) : nullptr;
        if (only == w || (only == nullptr && f.kind == Kind::cut_workers)) return;
        s_.note(name + p.name + " and " + (only != nullptr ? only->process->name : "all others") + " are cut, ways " +
                std::to_string(ways) + (stays_cut ? " for ever" : span));
        const Nanos lasting = stays_cut ? 600 * second : time;
        launcher_.checks().isolated(
            only == nullptr && faults_.size() == 1 && timeout_ > second && lasting > timeout_ * 3 / 2 ? w : nullptr);
        for (const Worker& other : launcher_.workers()) {
          if (&other == w || (only != nullptr && &other != only) || !other.process->runs()) continue;
          if (lasting > timeout_ / 2)
            for (const Process* of : std::initializer_list<const Process*>{&p, other.process}) excuse(of, lasting);
          cut(p, *other.process, ways, lasting);
        }
        return;
      }
      case Kind::reset: {
        Worker* const other = another(r, *w);
        // ZeroMQ connects to a server again, and sends what was lost.
        if (other == nullptr || w->role != control::Role::worker) return;
        s_.note(name + "the connection of " + p.name + " and " + other->process->name + " is reset");
        return meeting_.reset(p, *other->process, r.one_in(2));
      }
      case Kind::slow: {
        const Nanos most = r.between(5 * ms, 150 * ms);
        s_.note(name + p.name + " and the launcher get slow: " + std::to_string(most / ms) + " ms");
        network_.slow(p, launcher, most);
        return network_.slow(launcher, p, most);
      }
      case Kind::jump:
        return simulation_.jump(p, r, name);
      case Kind::signal:
        if (w->role != control::Role::worker || !w->holds) return;
        s_.note(name + p.name + " receives SIGTERM");
        w->asked_to_leave = w->signalled = true;
        return;
      case Kind::leave:
        if (w->role == control::Role::server && launcher_.checks().follows()) return;  // servers stay
        s_.note(name + p.name + " is asked to leave");
        return launcher_.request([w](Launcher& l) { l.ask_to_leave(*w); });
      case Kind::leave_alone: {
        if (w->role != control::Role::worker) return;
        s_.note(name + p.name + " is asked to leave, and all other workers are killed soon");
        return launcher_.request([this, w, &r, name](Launcher& l) {
          l.ask_to_leave(*w);
          later(r.between(0, 50 * ms), [this, w, name] { kill_workers(w, false, name); });
        });
      }
      case Kind::cut_unevenly: {
        // Answers to heartbeats arrive when later heartbeats cannot reach the launcher any more.
        const Nanos begin = r.between(timeout_ / 10, timeout_ / 2), end = begin + r.between(timeout_ / 3, timeout_),
                    again = end + r.between(5 * ms, 50 * ms);
        s_.note(name + p.name + " and the launcher are cut at different times");
        quiet_after(5 * timeout_);
        excuse(&p, 5 * timeout_);
        w->asks = 5 * timeout_;
        cut(p, launcher, 1, end);
        later(begin, [this, &p, &launcher] { cut(p, launcher, 2, 3 * timeout_); });
        return later(again, [this, &p, &launcher] { cut(p, launcher, 1, 3 * timeout_); });
      }
      case Kind::pause_waiting: {
        // A worker works for long, and another one waits for the next generation.
        Worker* const other = another(r, *w);
        if (other == nullptr || w->role != control::Role::worker || !w->trains() || !other->trains()) return;
        w->busy = 8 * timeout_;
        s_.note(name + p.name + " works for " + std::to_string(w->busy / ms) + " ms, and its connection to " +
                other->process->name + " is reset");
        quiet_after(9 * timeout_);
        return later(r.between(60 * ms, 200 * ms), [this, name, &r, &p, other] {
          meeting_.reset(*other->process, p, false);
          later(r.between(50 * ms, 300 * ms), [this, name, &r] { pause_twice(name, r); });
        });
      }
      case Kind::stall: {
        // A worker works for long, and another one does not get its next messages.
        Worker* const other = another(r, *w);
        if (other == nullptr || w->role != control::Role::worker) return;
        w->busy = r.between(timeout_ / 2, 3 * timeout_);
        s_.note(name + p.name + " works for " + std::to_string(w->busy / ms) + " ms, and is cut from " +
                other->process->name);
        quiet_after(4 * timeout_);
        for (const Process* of : {&p, other->process}) excuse(of, 600 * second);
        cut(p, *other->process, r.one_in(4) ? 0 : 2, 600 * second);
        if (r.one_in(2) && launcher_.workers().size() < 8)
          launcher_.request([](Launcher& l) { l.add(control::Role::worker, true); });
        f.event = Event::unreachable;  // another worker may be lost while the arbiter waits for all reports
        f.events = 1;
        if (r.one_in(2)) armed_.push_back(&f);
        return;
      }
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
  void disturb(Nanos time) { launcher_.checks().disturb(s_.now() + time); }
  void excuse(const Process* p, Nanos time) {
    const Nanos now = s_.now();
    excuses_.push_back({p, now, now + time});
  }
  // Stops a process, or suspends its machine.
  void stop(Process& p, Nanos time, const std::string& name, bool suspended = false) {
    s_.note(name + p.name + " is stopped" + lasting(time));
    quiet_after(time);
    if (time > timeout_ / 2) excuse(&p, time);
    pause(p, time, suspended ? time : 0);
  }
  void quiet_after(Nanos time) { quiet_at_ = std::max(quiet_at_, s_.now() + time); }
  void pause(Process& p, Nanos time, Nanos suspended) {
    disturb(time);
    // Clocks stand still once, even if two faults suspend the machine at the same time.
    const Nanos now = s_.now(), before = std::max(now, p.paused_until);
    p.paused_until = std::max(before, now + time);
    p.clocks.suspend(std::min(suspended, p.paused_until - before));
  }
  void cut(Process& a, Process& b, std::uint64_t ways, Nanos time) {
    disturb(time);
    if (ways != 1) network_.cut(a, b, time);
    if (ways != 2) network_.cut(b, a, time);
  }

  Simulation& simulation_;
  Scheduler& s_;
  Launcher& launcher_;
  Network& network_;
  Meeting& meeting_;
  Nanos timeout_, quiet_at_ = 0;
  std::int64_t begin_step_ = 0;
  std::vector<Fault> faults_;
  std::vector<Fault*> armed_;  // they happen at a moment of the job
  std::vector<Excuse> excuses_;
};

}  // namespace tutti::simulation
