// SPDX-License-Identifier: MIT
// Simulates elastic jobs that train a small net: fit() with its generations, logs, audits and checkpoints, and all that
// the scenario of members.cpp runs. The disk of the run's folder has faults, too. The audit is on another disk.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/cluster/channel/assignment.hpp>
#include <tutti/cluster/channel/control_channel.hpp>
#include <tutti/comm/interrupt_flag.hpp>
#include <tutti/core/error.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/strategy/elastic.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/train/trainer.hpp>

#include "disk.hpp"
#include "fault_plan.hpp"
#include "interposed_files.hpp"
#include "interposed_threads.hpp"
#include "job.hpp"
#include "random.hpp"
#include "simulation.hpp"
#include "tests/strategy/job_images.hpp"
#include "training_checks.hpp"
#include "training_net.hpp"

namespace tutti::simulation {
namespace {

// Waits until the job has announced something for the n-th time from now on.
void await_announcement(Job& job, std::int64_t n) {
  Scheduler& s = job.scheduler();
  const std::int64_t last = training.announced + n;
  while (training.announced < last && !job.launcher().is_over())
    (void)s.block(&training.announced, "announcement", Network::moment(s.process(), s.now() + 500 * ms));
}
// Lets the faults of the disk happen, in a thread of the world. Their numbers begin with 100. Half of them begin with
// an announcement of the job, because another write follows soon.
void disturb(Job& job, Disk& disk) {
  Scheduler& s = job.scheduler();
  Random plan(job.simulation().options.seed, 6);
  const std::uint64_t count = plan.below(4);
  const bool loses_power = plan.one_in(3);
  std::vector<Nanos> times;
  for (std::uint64_t i = 0; i < count + (loses_power ? 1 : 0); ++i) times.push_back(plan.between(0, 6 * second));
  std::sort(times.begin(), times.end());
  for (std::size_t i = 0; i < times.size(); ++i) {
    Nanos time = plan.between(ms, 3 * second);
    std::uint64_t kind = plan.below(3);
    const Nanos slowest = plan.between(ms, 60 * ms);
    const bool at_event = plan.one_in(2);
    const auto events = static_cast<std::int64_t>(1 + plan.below(4));
    const Nanos after = plan.between(0, 3 * ms);
    if (at_event) {
      await_announcement(job, events);
      s.sleep(after);
    } else if (times[i] > s.now()) {
      s.sleep(times[i] - s.now());
    }
    if (job.launcher().is_over()) return;
    if (job.simulation().options.without.contains(100 + i)) continue;
    const std::string name = "fault " + std::to_string(100 + i) + ": ";
    // Before a power cut, the disk often does not sync.
    if (loses_power && i + 1 == count && plan.one_in(3)) {
      kind = 1;
      time = 6 * second;
    }
    const std::string span = lasting(time);
    if (i == count) {
      s.note(name + "all machines lose their power");
      return job.cut_power();
    }
    if (kind == 0) {
      training.was_full = true;
      s.note(name + "the disk is full" + span);
      disk.full_until = s.now() + time;
    } else if (kind == 1) {
      training.was_broken = true;
      disk.fails_once_in = plan.one_in(2) ? 1 : 3;
      s.note(name + "the disk " + (disk.fails_once_in == 1 ? "does not sync" : "often does not sync") + span);
      disk.broken_until = s.now() + time;
    } else {
      s.note(name + "the disk is slow" + span);
      disk.slow_until = s.now() + time;
      disk.slowest = slowest;
    }
  }
}

// Asks for changes of members, and kills a worker soon: while the members do the common work after a step that
// announces the change. The numbers of these faults begin with 120.
void disturb_changes(Job& job) {
  Scheduler& s = job.scheduler();
  Random plan(job.simulation().options.seed, 8);
  for (std::size_t i = 0, n = 1 + plan.below(2); i < n; ++i) {
    const auto first = static_cast<std::int64_t>(1 + plan.below(10)), then = static_cast<std::int64_t>(plan.below(4));
    const bool joins = plan.one_in(2);
    const std::uint64_t leaver = plan.below(8), victim = plan.below(8);
    const Nanos after = plan.between(0, plan.one_in(2) ? 300'000 : 30 * ms);
    await_announcement(job, first);
    if (job.launcher().is_over() || job.simulation().options.without.contains(120 + i)) return;
    const std::string name = "fault " + std::to_string(120 + i) + ": ";
    if (joins && job.launcher().workers().size() < 8) {
      s.note(name + "a worker joins");
      job.launcher().request([](Launcher& l) { l.add(control::Role::worker, true); });
    } else {
      Worker& w = job.launcher().workers()[leaver % job.launcher().workers().size()];
      s.note(name + w.process->name + " is asked to leave");
      job.launcher().request([&w](Launcher& l) { l.ask_to_leave(w); });
    }
    // The last step of an epoch has the most common work: the epoch is evaluated after the step was reported.
    if (Random at_end(job.simulation().options.seed, 300 + i); at_end.one_in(2)) {
      do await_announcement(job, 1);
      while (training.reported % steps_an_epoch != 0 && !job.launcher().is_over());
      s.sleep(at_end.between(0, 4 * ms));
    } else {
      await_announcement(job, then);
      s.sleep(after);
    }
    Worker& w = job.launcher().workers()[victim % job.launcher().workers().size()];
    if (job.launcher().is_over() || !w.process->runs()) continue;
    job.excuse(*w.process);
    job.simulation().kill(*w.process, name);
  }
}
// Stops all processes while the job reports something. The numbers of these faults begin with 130.
void disturb_writer(Job& job) {
  Random plan(job.simulation().options.seed, 13);
  for (std::size_t i = 0, n = 1 + plan.below(3); i < n; ++i) {
    await_announcement(job, static_cast<std::int64_t>(1 + plan.below(8)));
    job.scheduler().sleep(plan.between(0, plan.one_in(2) ? 100'000 : 3 * ms));
    if (job.launcher().is_over()) return;
    if (!job.simulation().options.without.contains(130 + i))
      job.pause_all("fault " + std::to_string(130 + i) + ": ", plan);
  }
}
// Asks a worker to leave, and stops it when it has left its generation. Its release arrives while it is stopped, and
// its lease ends. The number of this fault is 140.
void disturb_leaver(Job& job) {
  Scheduler& s = job.scheduler();
  Random plan(job.simulation().options.seed, 15);
  await_announcement(job, static_cast<std::int64_t>(1 + plan.below(8)));
  if (job.launcher().is_over() || job.simulation().options.without.contains(140)) return;
  Worker& leaver = job.launcher().workers()[plan.below(job.launcher().workers().size())];
  s.note("fault 140: " + leaver.process->name + " is asked to leave");
  job.launcher().request([&leaver](Launcher& l) { l.ask_to_leave(leaver); });
  MembershipChecks& checks = job.launcher().checks();
  checks.at_event = [&job, &s, &leaver, before = checks.at_event](MembershipChecks::Event e, const Worker* w) {
    before(e, w);
    if (e != MembershipChecks::Event::report || w != &leaver || !leaver.asked_to_leave) return;
    // Shorter than the time-out, so the arbiter does not remove it.
    const Nanos time = job.timeout() / 100 * 76;
    job.launcher().checks().disturb(s.now() + time);
    job.simulation().stop(*leaver.process, time, "fault 140: ");
  };
}
// Chooses the faults of the members that belong to this scenario, and what the others promise.
void plan_changes(Job& job) {
  using Kind = Fault::Kind;
  Random plan(job.simulation().options.seed, 9);
  std::int64_t begin = 0;
  const std::vector<Fault> faults = faults_of(job.simulation().options, steps, begin);
  const auto all = [&](auto... kinds) {
    return std::all_of(faults.begin(), faults.end(), [&](const Fault& f) { return ((f.kind == kinds) || ...); });
  };
  // Some faults are checked in jobs without others.
  const bool alone = std::any_of(faults.begin(), faults.end(),
                                 [](const Fault& f) { return f.kind == Kind::isolate || f.kind == Kind::stall; });
  if (!alone && plan.one_in(3))
    job.scheduler().start_thread(job.scheduler().process(), [&job] { disturb_changes(job); });
  else if (all(Kind::pause_all, Kind::pause_twice, Kind::slow, Kind::jump, Kind::join, Kind::leave, Kind::signal,
               Kind::join_and_leave)) {
    job.launcher().checks().expect_whole_groups();
    // With a short time-out, the arbiter may remove a worker that is stopped right before a heartbeat.
    const bool stops_one =
        job.timeout() > second && all(Kind::jump, Kind::join, Kind::leave, Kind::signal, Kind::join_and_leave);
    if (plan.one_in(3)) return;
    const auto fault = stops_one && plan.one_in(2) ? disturb_leaver : disturb_writer;
    job.scheduler().start_thread(job.scheduler().process(), [&job, fault] { fault(job); });
  }
}

// The strategy of one generation. It tells the job when this process begins with its group.
class TrainingMember : public MeshMember {
 public:
  TrainingMember(Job& job, Worker& me, const Assignment& a, ControlChannel& channel, InterruptFlag& flag)
      : MeshMember(job.meeting(), a, channel, flag, [&job] { job.compute(); }),
        job_(job),
        me_(me),
        generation_(a.generation) {}
  void attach(const ArenaLayout& layout, const JobFacts& facts) {
    job_.entered(me_, generation_);
    MeshMember::attach(layout, facts);
  }

 private:
  Job& job_;
  Worker& me_;
  std::uint64_t generation_;
};
struct TrainingFactory {
  Job* job;
  Worker* me;
  [[nodiscard]] std::unique_ptr<TrainingMember> operator()(const Assignment& a, ControlChannel& channel,
                                                           InterruptFlag& flag) const {
    return std::make_unique<TrainingMember>(*job, *me, a, channel, flag);
  }
};

FitResult train(Job& job, Worker& me, Trainer& trainer, int rank, int size) {
  const int logical = training.logical_ranks;
  Loader train(images.images(samples), placed(images.train_options(rank, size), logical));
  Loader test(images.images(testing::JobImages::tests), placed(images.test_options(rank, size), logical));
  Checkpoints checkpoints("run");
  CoordinatorOptions duties;
  duties.checkpoints = &checkpoints;
  duties.audit = "audit";
  Announcements announcements(job, trainer, checkpoints, me);
  duties.listeners = {&announcements};
  duties.open = [&](bool) {
    std::vector<std::unique_ptr<FitListener>> logs;
    logs.push_back(std::make_unique<RunLog>(
        "run", 5, [](const std::string&) { training.complained = true; }, trainer.counters().generation));
    return logs;
  };
  Coordinator coordinator(trainer, duties);
  FitOptions f = fit_options(training.first_is_best);
  f.leave_requested = [&me] { return me.signalled; };
  f.after_step = [&](const FitStep&) {
    me.holds = true;
    const Counters at = trainer.counters();
    job.scheduler().note(me.process->name + " is at step " + std::to_string(at.step) + " of generation " +
                         std::to_string(at.generation));
    check_weights(job, trainer, me.process->name);
    job.reached(at.step);
    job.compute_step(me);
  };
  return fit(trainer, train, &test, coordinator, f);
}

// Runs in the process of each worker. Returns the exit code.
int work(Job& job, Worker& me) {
  Elastic<TrainingFactory> strategy(Job::channel(me), Job::elastic_options(me), TrainingFactory{&job, &me});
  ReferenceBackend backend;
  Trainer trainer(backend, strategy, net(), trainer_options(training.logical_ranks));
  if (me.joins) job.load();
  FitResult result;
  try {
    result = train(job, me, trainer, strategy.rank(), strategy.size());
  } catch (const CommunicationError& e) {
    if (std::string(e.what()).find("a member with the state") != std::string::npos) job.fail_without_state(me);
    throw;
  }
  if (result.left) return 0;
  check_weights(job, trainer, me.process->name);
  if (result.lost && !training.was_full && !training.was_broken)
    job.scheduler().fail(me.process->name + " has not saved the last state");
  if (strategy.rank() == 0 && !result.lost) training.saved_step = std::max(training.saved_step, result.counters.step);
  if (result.interrupted) return static_cast<int>(ExitCode::terminated);
  if (result.counters.step != steps)
    job.scheduler().fail(me.process->name + " has done " + std::to_string(result.counters.step) + " steps");
  return 0;
}

}  // namespace
}  // namespace tutti::simulation

int main(int argc, char** argv) {
  using namespace tutti::simulation;
  // Before the schedules, so that each has them.
  for (const int logical : {0, 4}) quiet[logical] = train_alone(logical);
  return run_schedules(argc, argv, [](Simulation& s) {
    Random plan(s.options.seed, 5);
    training.logical_ranks = plan.one_in(2) ? 4 : 0;
    training.first_is_best = plan.one_in(2);
    Disk disk("run", Random(s.options.seed, 7));
    std::filesystem::create_directory("audit");
    // The disk has space when the job begins.
    (void)::close(::open("run/log.jsonl", O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    Job job(s, false, work, steps, steps_an_epoch);
    s.scheduler.start_thread(s.scheduler.process(), [&] { disturb(job, disk); });
    plan_changes(job);
    const bool done = job.run();
    if (job.power_was_cut()) disk.lose_power();
    disk.full_until = disk.broken_until = disk.slow_until = 0;
    if (done) check_audit_files(s.scheduler, epochs, samples);
    if (done && !training.complained) check_log(job);
    check_checkpoints(job, done);
  });
}
