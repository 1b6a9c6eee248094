// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <tutti/cluster/arbiter/arbiter_options.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/cluster/channel/control_link.hpp>
#include <tutti/cluster/elastic_member.hpp>
#include <tutti/core/error.hpp>
#include <tutti/io/file.hpp>

#include "faults.hpp"
#include "launcher.hpp"
#include "mesh.hpp"
#include "simulation.hpp"

namespace tutti::simulation {

// An elastic job with random options and faults. A scenario gives the program that each worker runs; the job checks
// what holds for all scenarios.
class Job {
 public:
  using Program = std::function<int(Job&, Worker&)>;  // returns the exit code; its errors give theirs

  // serves: the program can also be that of a server. steps: those of the job, if its workers call reached().
  Job(Simulation& simulation, bool serves, Program program, std::int64_t steps = 0, std::int64_t steps_an_epoch = 1)
      : simulation_(simulation),
        serves_(serves),
        plan_(simulation.options.seed, 4),
        timeout_(timeout_of(simulation.options, plan_.below(4))),
        replaces_(plan_.one_in(2)),
        slow_start_(steps > 0 && !simulation.options.exhaustive && Random(simulation.options.seed, 10).one_in(4)),
        meeting_(simulation.network),
        launcher_(simulation.scheduler, simulation.network, meeting_, options(), replaces_,
                  [this, program = std::move(program)](Worker& w) { return run_worker(w, program); }),
        faults_(simulation, launcher_, simulation.network, meeting_, timeout_, steps) {
    if (steps == 0) return;
    launcher_.checks().follow(steps_an_epoch);
    simulation.network.loses_messages = true;
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  [[nodiscard]] Simulation& simulation() noexcept { return simulation_; }
  [[nodiscard]] Scheduler& scheduler() noexcept { return simulation_.scheduler; }
  [[nodiscard]] Meeting& meeting() noexcept { return meeting_; }
  [[nodiscard]] Launcher& launcher() noexcept { return launcher_; }
  [[nodiscard]] Nanos timeout() const noexcept { return timeout_; }

  // ---- for the program of a worker ----
  // Returns the channel of this worker, which it takes once.
  [[nodiscard]] static std::shared_ptr<ControlChannel> channel(Worker& w) {
    return std::make_shared<ControlChannel>(std::make_unique<control::SocketLink>(io::Descriptor(w.channel)));
  }
  [[nodiscard]] static ElasticOptions elastic_options(const Worker& w) {
    ElasticOptions o;
    o.start.rank = w.place;
    o.start.host = "h" + w.process->name;
    o.start.new_worker = w.joins;
    return o;
  }
  // Takes the time of some computation, and `more`.
  void compute(Nanos more = 0) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(more + scheduler().noise().between(ms, 60 * ms)));
  }
  // The same for a step of a worker that a fault may have made longer.
  void compute_step(Worker& w) {
    const Nanos more = std::exchange(w.busy, 0);
    if (more > 0) w.works_until = scheduler().now() + more;
    compute(more);
  }
  // Takes the time in which a worker reads its data.
  void load() {
    Random& r = scheduler().noise();
    scheduler().sleep(r.one_in(2) ? 0 : r.between(0, second));
  }
  // Call it before a write to files that other processes read, with the time before the worker asked for its right.
  void check_write(const Worker& w, Nanos asked) {
    if (w.lost_at <= asked && !w.unreachable)
      scheduler().fail(w.process->name + " may write, but the arbiter removed it before");
  }

  // Call it when a worker has entered a generation.
  void entered(Worker& w, std::uint64_t generation) { launcher_.checks().entered(w, generation); }
  // Call it if a worker that joins would have the authority and has no state. Throws if all workers that had it were
  // lost while they sent it, or all founders before they had it.
  void fail_without_state(const Worker& w) {
    const auto founded = [](const Worker& o) { return o.role == control::Role::worker && !o.joins && o.stood > 0; };
    const auto& all = launcher_.workers();
    if (w.stood < 2 && std::any_of(all.begin(), all.end(), founded))
      scheduler().fail(w.process->name + " has the authority and no state");
    state_lost_ = true;
    tutti::fail<CommunicationError>("members", "a member with the state of the run", "no such member");
  }
  [[nodiscard]] bool state_is_lost() const noexcept { return state_lost_; }
  // Call it after each complete step.
  void reached(std::int64_t step) { launcher_.checks().reached(step, launcher_.stopping()); }

  // ---- the schedule ----
  // Cuts the power of all machines. The job ends with it.
  void cut_power() {
    power_cut_ = true;
    for (Process& p : scheduler().processes())
      if (p.number != 0) scheduler().kill(p, SIGKILL);
  }
  [[nodiscard]] bool power_was_cut() const noexcept { return power_cut_; }
  // Notes that a worker is lost now because of a fault of the scenario.
  void excuse(const Process& p) { faults_.excuse(p); }
  // Stops all processes for longer than the lease of a worker.
  void pause_all(const std::string& name, Random& r) { faults_.pause_all(name, r, r.between(timeout_, 2 * timeout_)); }
  // Runs the job to its end, with its faults, and checks it. Returns whether the work of the job was done.
  bool run() {
    Scheduler& s = scheduler();
    for (Process& p : s.processes()) p.clocks.drift(s.noise());
    faults_.run();
    const Nanos bound = simulation_.options.bound, begun = s.now();
    while (!launcher_.is_over()) {
      if (s.now() > std::max(faults_.quiet_at(), begun) + bound)
        s.fail("the job has not ended " + std::to_string(bound / second) +
               " s after the last fault: " + s.threads_text());
      s.sleep(200 * ms);
      check_losses();
      check_progress();
    }
    if (power_cut_) return false;
    check_losses();
    return check_end();
  }

 private:
  [[nodiscard]] static Nanos timeout_of(const ScheduleOptions& o, std::uint64_t random) {
    return o.rank_timeout > 0 ? o.rank_timeout : second * (1 + static_cast<Nanos>(random));
  }
  [[nodiscard]] control::ArbiterOptions options() {
    control::ArbiterOptions o;
    o.elastic = true;
    o.workers = 1 + static_cast<int>(plan_.below(4));
    o.rank_timeout = std::chrono::nanoseconds(timeout_);
    o.at_epoch = plan_.one_in(3);
    if (serves_ && plan_.one_in(3)) o.servers = 1 + static_cast<int>(plan_.below(2));
    if (serves_ && o.workers > 1 && plan_.one_in(4))
      o.min_workers = 2 + static_cast<int>(plan_.below(static_cast<std::uint64_t>(o.workers - 1)));
    if (simulation_.options.exhaustive) {
      o = {};
      o.elastic = true;
      o.workers = FaultLists::founders(simulation_.options.seed);
      timeout_ = second;
      replaces_ = false;
      o.rank_timeout = std::chrono::nanoseconds(timeout_);
    }
    o.lost_are_replaced = replaces_;
    simulation_.scheduler.note(std::to_string(o.workers) + " workers, " + std::to_string(o.servers) +
                               " servers, time-out " + std::to_string(timeout_ / second) + " s" +
                               (o.at_epoch ? ", changes after an epoch" : ""));
    return o;
  }
  [[nodiscard]] int run_worker(Worker& w, const Program& program) {
    if (slow_start_) scheduler().sleep(Random(simulation_.options.seed, 2000 + w.connection).between(0, second));
    return code_of([&] { return program(*this, w); });
  }
  // A worker is lost only because of a fault, or because the job fails.
  void check_losses() {
    for (const Worker& w : launcher_.workers()) {
      check_silence(w);
      if (w.lost_at == never || w.lost_at > launcher_.failed_at() || state_lost_) continue;
      // It hears of its removal as soon as it can hear anything.
      const bool calm = launcher_.checks().calm_since(w.lost_at);
      const Nanos since = scheduler().now() - (calm ? w.lost_at : std::max(w.lost_at, faults_.quiet_at()));
      if (w.process->runs() && since > timeout_ / 2 + second)
        scheduler().fail(w.process->name + " still runs " + std::to_string(since / ms) +
                         " ms after its removal: " + scheduler().threads_text());
      if (!faults_.excuses(*w.process, w.lost_at))
        scheduler().fail(w.process->name + " is lost without a fault: " + w.process->error);
    }
  }
  // The arbiter removes a machine that lost its power after the time-out. The clocks differ by less than a hundredth.
  void check_silence(const Worker& w) {
    const Process& p = *w.process;
    if (!w.in_job() || p.runs() || !simulation_.silent.contains(&p) || launcher_.failed()) return;
    const Nanos silent = scheduler().now() - std::max(p.ended_at, launcher_.checks().last_event());
    if (silent > timeout_ + second) scheduler().fail(p.name + " is silent and is not removed");
  }
  // Something happens in a job within the longest wait, that of the launcher for a machine that does not answer, after
  // the last long step of a worker.
  void check_progress() {
    Nanos last = launcher_.checks().last_event();
    for (const Worker& w : launcher_.workers())
      if (w.process->runs()) last = std::max(last, w.works_until);
    const Nanos since = scheduler().now() - last;
    if (!launcher_.checks().follows() || launcher_.failed() || since < timeout_ + 25 * second) return;
    scheduler().fail("nothing has happened for " + std::to_string(since / second) +
                     " s: " + scheduler().threads_text());
  }
  [[nodiscard]] bool check_end() {
    Scheduler& s = scheduler();
    bool done = false, killed_after_work = false, begun = false, holder = false, servers = false, server = false,
         killed = false;
    for (const Worker& w : launcher_.workers()) {
      const Process& p = *w.process;
      if (p.runs()) s.fail(p.name + " still runs");
      const bool exited = p.state == Process::State::exited;
      const bool stopped = launcher_.stopping() && p.code == static_cast<int>(ExitCode::terminated);
      if (exited && p.code != 0 && p.code != static_cast<int>(ExitCode::communication) && !stopped)
        s.fail(p.name + " exited with " + std::to_string(p.code) + ": " + p.error);
      killed = killed || !exited;
      begun = begun || w.stood > 0;
      servers = servers || w.role == control::Role::server;
      server = server || (w.role == control::Role::server && w.lost_at == never && exited && !w.asked_to_leave);
      done = done || (exited && p.code == 0 && w.did_work);
      killed_after_work = killed_after_work || (!exited && w.did_work);
      holder = holder || (w.holds && exited && w.lost_at == never && !w.left);
      if (!exited || w.lost_at != never || launcher_.failed() || state_lost_) continue;
      // A fault may have kept the arbiter's answer from a worker that it let go.
      if (w.left && w.asked_to_leave && faults_.excuses(p, p.ended_at)) continue;
      if (p.code != 0 && !stopped) s.fail(p.name + " exited with " + std::to_string(p.code) + ": " + p.error);
    }
    // The job may have lost all its founders before it began.
    const bool failed = launcher_.failed() || !begun || state_lost_ || (killed_after_work && !done);
    const int code = launcher_.process().code;
    if (done && code != 0 && launcher_.failed() && !launcher_.had_too_few())
      s.fail("the work is done, and the job exits with " + std::to_string(code));
    if (failed && holder && (server || !servers) && !launcher_.had_too_few())
      s.fail("the job failed although a worker had the state");
    if (!failed && !launcher_.stopping() && !done) s.fail("no worker has done the work of the job");
    // A job that is done may lose what its last workers need.
    if (!launcher_.stopping() && !(failed && done) && failed == (code == 0))
      s.fail("the job exits with " + std::to_string(code));
    // A job that was stopped exits with 143, or with 5 if a process was killed meanwhile.
    const bool as_stopped = code == static_cast<int>(ExitCode::terminated) || (killed && code != 0);
    if (launcher_.stopping() && !failed && !done && !as_stopped)
      s.fail("the job was stopped and exits with " + std::to_string(code));
    return done;
  }

  Simulation& simulation_;
  bool serves_;
  Random plan_;
  Nanos timeout_;
  bool replaces_, slow_start_, power_cut_ = false, state_lost_ = false;
  Meeting meeting_;
  Launcher launcher_;
  Faults faults_;
};

}  // namespace tutti::simulation
