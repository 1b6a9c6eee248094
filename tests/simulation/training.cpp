// SPDX-License-Identifier: MIT
// Simulates elastic jobs that train a small net: fit() with its generations, logs, audits and checkpoints, and all that
// the scenario of members.cpp runs. The disk of the run's folder has faults, too. The audit is on another disk.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/check_audit.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/engine/reference/reference.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/elastic.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/run_log.hpp>
#include <tutti/train/trainer.hpp>

#include "disk.hpp"
#include "interposed_files.hpp"
#include "interposed_threads.hpp"
#include "job.hpp"
#include "random.hpp"
#include "simulation.hpp"
#include "tests/strategy/job_images.hpp"

namespace tutti::simulation {
namespace {

constexpr std::int64_t batch = 12, steps_an_epoch = 8, samples = batch * steps_an_epoch - 5, epochs = 3;
constexpr std::int64_t steps = epochs * steps_an_epoch;
const testing::JobImages images{samples, batch, 4};

// A net of about 100 parameters.
Graph net() {
  Builder b(3, 4, 4);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = b.relu("relu1", nn::conv(b, "conv1", x, {.out = 3, .stride = 2}));
  b.softmax_cross_entropy(nn::linear(b, "fc", b.global_avg_pool("pool", x), 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}
// logical: number of logical ranks, or 0.
TrainerOptions trainer_options(int logical) {
  TrainerOptions o;
  o.compute = logical > 0 ? DType::f32 : DType::f64;
  o.optimizer = Sgd{0.9, true};
  o.first_bucket_bytes = 1 << 8;
  o.bucket_bytes = 1 << 9;
  o.micro_batch = 5;
  o.logical_ranks = logical;
  return o;
}
LoaderOptions placed(LoaderOptions o, int logical) {
  o.placement.logical_ranks = logical;
  return o;
}
FitOptions fit_options() {
  FitOptions f = images.fit_options(epochs);
  f.save_every_steps = 5;
  f.save_last = true;
  return f;
}
std::vector<double> weights_of(Trainer& t) {
  const std::size_t count = t.executor().parameters().count;
  if (t.options().compute == DType::f64) {
    const auto* v = static_cast<const double*>(t.executor().parameter_data());
    return {v, v + count};
  }
  const auto* v = static_cast<const float*>(t.executor().parameter_data());
  return {v, v + count};
}

// What a training in one process has: its weights after each step, and its numbers after each epoch.
struct Quiet {
  std::vector<std::vector<double>> weights;
  std::vector<EpochReport> reports;
};
class Reports : public FitListener {
 public:
  explicit Reports(std::vector<EpochReport>& to) : to_(to) {}
  void epoch(const EpochReport& r) override { to_.push_back(r); }

 private:
  std::vector<EpochReport>& to_;
};
Quiet train_alone(int logical) {
  ReferenceBackend backend;
  Solo solo;
  Trainer trainer(backend, solo, net(), trainer_options(logical));
  Loader train(images.images(samples), placed(images.train_options(0, 1), logical));
  Loader test(images.images(testing::JobImages::tests), placed(images.test_options(0, 1), logical));
  FitOptions f = fit_options();
  f.save_every = f.save_every_steps = 0;
  f.save_last = f.save_best = false;
  Quiet found{{weights_of(trainer)}, {}};
  Reports reports(found.reports);
  CoordinatorOptions duties;
  duties.listeners = {&reports};
  Coordinator coordinator(trainer, duties);
  f.after_step = [&](const FitStep&) { found.weights.push_back(weights_of(trainer)); };
  (void)fit(trainer, train, &test, coordinator, f);
  return found;
}
// Those of a quiet training, by its number of logical ranks.
std::map<int, Quiet> quiet;

// Fails unless the trainer has the weights that the quiet training had after the same step. With logical ranks they
// have the same bits. Otherwise the order of the sums depends on the number of ranks.
void check_weights(Job& job, Trainer& t, const std::string& whose) {
  const std::int64_t step = t.counters().step;
  const int logical = t.options().logical_ranks;
  if (step < 0 || step > steps) job.scheduler().fail(whose + " is that of step " + std::to_string(step));
  const auto& right = quiet.at(logical).weights.at(static_cast<std::size_t>(step));
  const auto weights = weights_of(t);
  double most = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) most = std::max(most, std::abs(weights[i] - right[i]));
  if (!(most <= (logical > 0 ? 0 : 1e-9)))
    job.scheduler().fail(whose + " has weights after step " + std::to_string(step) + " that differ by " +
                         std::to_string(most * 1e9) + "e-9");
}

// The job of this schedule: how it trains, the newest step that it has announced as saved and as the best, and whether
// the disk was full or did not sync.
int logical_ranks = 0;
std::int64_t saved_step = 0, best_step = 0;
bool was_full = false, was_broken = false;

// Checks what rank 0 reports, and notes which checkpoints the job announces.
class Announcements : public FitListener {
 public:
  Announcements(Job& job, Trainer& trainer, const Checkpoints& checkpoints, const Worker& me)
      : job_(job), trainer_(trainer), checkpoints_(checkpoints), me_(me) {}
  void saved(const std::string&) override {
    check_right();
    const std::int64_t step = trainer_.counters().step;
    job_.scheduler().note(me_.process->name + " has saved step " + std::to_string(step));
    saved_step = std::max(saved_step, step);
  }
  // The numbers are those of the quiet training. The metrics of a rank that is lost are lost with it, unless each rank
  // has the sums of all.
  void epoch(const EpochReport& r) override {
    check_right();
    if (r.best && !was_full && !was_broken) best_step = r.step;
    const auto& all = quiet.at(logical_ranks).reports;
    if (r.epoch < 1 || r.epoch > static_cast<std::int64_t>(all.size())) fail(r, "does not exist");
    const EpochReport& right = all[static_cast<std::size_t>(r.epoch - 1)];
    if (r.step != right.step) fail(r, "ends with step " + std::to_string(r.step));
    const auto differs = [](double a, double b) { return !(std::abs(a - b) <= 1e-5); };
    if (!r.test || differs(r.test->loss, right.test->loss) || differs(r.test->top1, right.test->top1))
      fail(r, "has a wrong evaluation");
    const auto& workers = job_.launcher().workers();
    const bool losses = std::any_of(workers.begin(), workers.end(),
                                    [](const Worker& w) { return w.lost_at != never || !w.process->runs(); });
    if (losses && logical_ranks == 0) return;
    if (differs(r.train_loss, right.train_loss) || differs(r.train_top1, right.train_top1))
      fail(r, "has a loss of " + std::to_string(r.train_loss) + ", not of " + std::to_string(right.train_loss));
  }
  // Checkpoints of removed writers do not count, because the folder records that the generation has begun.
  void members(const MembersReport& m) override {
    check_right();
    if (checkpoints_.latest_generation() < m.generation && !was_full)
      job_.scheduler().fail("generation " + std::to_string(m.generation) + " is not recorded");
  }
  void warning(const std::string&) override { check_right(); }
  void step(const StepReport&) override { check_right(); }
  void finished(double) override { check_right(); }

 private:
  // Another process reports after the release of this one has arrived.
  void check_right() const {
    if (job_.launcher().left_since(me_) > 20 * ms && job_.launcher().checks().calm_since(me_.asked_at))
      job_.scheduler().fail(me_.process->name + " reports after its release");
  }
  [[noreturn]] void fail(const EpochReport& r, const std::string& why) const {
    job_.scheduler().fail("epoch " + std::to_string(r.epoch) + " of " + me_.process->name + " " + why);
  }

  Job& job_;
  Trainer& trainer_;
  const Checkpoints& checkpoints_;
  const Worker& me_;
};

// Lets the faults of the disk happen, in a thread of the world. Their numbers begin with 100.
void disturb(Job& job, Disk& disk) {
  Scheduler& s = job.scheduler();
  Random plan(job.simulation().options.seed, 6);
  const std::uint64_t count = plan.below(4);
  const bool loses_power = plan.one_in(4);
  std::vector<Nanos> times;
  for (std::uint64_t i = 0; i < count + (loses_power ? 1 : 0); ++i) times.push_back(plan.between(0, 6 * second));
  std::sort(times.begin(), times.end());
  for (std::size_t i = 0; i < times.size(); ++i) {
    Nanos time = plan.between(ms, 3 * second);
    std::uint64_t kind = plan.below(3);
    const Nanos slowest = plan.between(ms, 60 * ms);
    if (times[i] > s.now()) s.sleep(times[i] - s.now());
    if (job.launcher().is_over()) return;
    if (job.simulation().options.without.contains(100 + i)) continue;
    const std::string name = "fault " + std::to_string(100 + i) + ": ";
    const std::string span = " for " + std::to_string(time / ms) + " ms";
    // Before a power cut, the disk often does not sync.
    if (loses_power && i + 1 == count && plan.one_in(2)) {
      kind = 1;
      time = 6 * second;
    }
    if (i == count) {
      s.note(name + "all machines lose their power");
      return job.cut_power();
    }
    if (kind == 0) {
      was_full = true;
      s.note(name + "the disk is full" + span);
      disk.full_until = s.now() + time;
    } else if (kind == 1) {
      was_broken = true;
      s.note(name + "the disk does not sync" + span);
      disk.broken_until = s.now() + time;
    } else {
      s.note(name + "the disk is slow" + span);
      disk.slow_until = s.now() + time;
      disk.slowest = slowest;
    }
  }
}

// Runs in the process of each worker. Returns the exit code.
int work(Job& job, Worker& me) {
  MeshFactory factory{&job.meeting(), [&] { job.compute(); }};
  Elastic<MeshFactory> strategy(Job::channel(me), Job::elastic_options(me), factory);
  ReferenceBackend backend;
  Trainer trainer(backend, strategy, net(), trainer_options(logical_ranks));
  const int rank = strategy.rank(), size = strategy.size();
  Loader train(images.images(samples), placed(images.train_options(rank, size), logical_ranks));
  Loader test(images.images(testing::JobImages::tests), placed(images.test_options(rank, size), logical_ranks));
  Checkpoints checkpoints("run");
  CoordinatorOptions duties;
  duties.checkpoints = &checkpoints;
  duties.audit = "audit";
  Announcements announcements(job, trainer, checkpoints, me);
  duties.listeners = {&announcements};
  duties.open = [&](bool) {
    std::vector<std::unique_ptr<FitListener>> logs;
    logs.push_back(std::make_unique<RunLog>(
        "run", 5, [](const std::string&) {}, trainer.counters().generation));
    return logs;
  };
  Coordinator coordinator(trainer, duties);
  FitOptions f = fit_options();
  f.after_step = [&](const FitStep&) {
    me.holds = true;
    const Counters at = trainer.counters();
    job.scheduler().note(me.process->name + " is at step " + std::to_string(at.step) + " of generation " +
                         std::to_string(at.generation));
    job.compute();
  };
  const FitResult result = fit(trainer, train, &test, coordinator, f);
  if (result.left) return 0;
  check_weights(job, trainer, me.process->name);
  if (result.lost && !was_full && !was_broken) job.scheduler().fail(me.process->name + " has not saved the last state");
  if (strategy.rank() == 0 && !result.lost) saved_step = std::max(saved_step, result.counters.step);
  if (result.interrupted) return static_cast<int>(ExitCode::terminated);
  if (result.counters.step != steps)
    job.scheduler().fail(me.process->name + " has done " + std::to_string(result.counters.step) + " steps");
  return 0;
}

void check_audit_files(Job& job) {
  std::vector<std::string> files;
  for (const auto& e : std::filesystem::directory_iterator("audit")) files.push_back(e.path().string());
  std::sort(files.begin(), files.end());
  for (std::int64_t e = 0; e < epochs; ++e) {
    const AuditResult r = check_audit(files, e, samples);
    if (!r.exactly_once())
      job.scheduler().fail("epoch " + std::to_string(e) + ": " + std::to_string(r.missing) + " samples missing, " +
                           std::to_string(r.repeated) + " repeated; " + r.where);
  }
}
// Checks that each epoch has its line. Later lines of an earlier generation do not count. A rank 0 that is lost between
// the work of an epoch and its line does not write it.
void check_log(Job& job) {
  std::set<std::int64_t> reported;
  std::int64_t generation = 0;
  std::ifstream in("run/log.jsonl");
  for (std::string line; std::getline(in, line);) {
    const io::Json j = io::parse_json(line, "log.jsonl");
    const std::int64_t of = j.at("generation", "log.jsonl").as_integer("log.jsonl");
    if (of < generation) continue;
    generation = of;
    if (j.at("event", "log.jsonl").as_string("log.jsonl") == "epoch")
      reported.insert(j.at("epoch", "log.jsonl").as_integer("log.jsonl"));
  }
  const auto& workers = job.launcher().workers();
  const auto lost = std::count_if(workers.begin(), workers.end(), [](const Worker& w) { return w.lost_at != never; });
  if (static_cast<std::int64_t>(reported.size()) + lost < epochs)
    job.scheduler().fail("the log has the lines of " + std::to_string(reported.size()) + " epochs");
}
// Checks that the best checkpoint exists, has the weights of its step, and is not older than the last one announced.
void check_best(Job& job, Checkpoints& checkpoints) {
  const auto best = checkpoints.best_step();
  if (best.value_or(0) < best_step)
    job.scheduler().fail("the best checkpoint is that of step " + std::to_string(best.value_or(0)) + ", not of step " +
                         std::to_string(best_step));
  if (!best) return;
  ReferenceBackend backend;
  Solo solo;
  Trainer trainer(backend, solo, net(), trainer_options(logical_ranks));
  checkpoints.resume_best(trainer);
  check_weights(job, trainer, "the best checkpoint");
}
// Checks the newest checkpoint of a job that may have failed or stopped.
void check_checkpoints(Job& job, bool done) {
  ReferenceBackend backend;
  Solo solo;
  Trainer trainer(backend, solo, net(), trainer_options(logical_ranks));
  Checkpoints checkpoints("run");
  std::string complaints;
  const bool any = checkpoints.resume_latest(trainer, [&](const std::string& c) { complaints += c; });
  if (!complaints.empty()) job.scheduler().fail("a checkpoint is not valid: " + complaints);
  const std::int64_t least = done && !was_full && !was_broken ? steps : saved_step;
  if (!any && least > 0) job.scheduler().fail("there is no checkpoint");
  if (!any) return;
  if (trainer.counters().step < least)
    job.scheduler().fail("the newest checkpoint is that of step " + std::to_string(trainer.counters().step) +
                         ", not of step " + std::to_string(least));
  check_weights(job, trainer, "the newest checkpoint");
  check_best(job, checkpoints);
  // Another run can continue from it.
  Loader train(images.images(samples), placed(images.train_options(0, 1), logical_ranks));
  Loader test(images.images(testing::JobImages::tests), placed(images.test_options(0, 1), logical_ranks));
  FitOptions f = fit_options();
  f.save_every = f.save_every_steps = 0;
  f.save_last = f.save_best = false;
  if (fit(trainer, train, &test, f).counters.step != steps) job.scheduler().fail("the resumed run is not complete");
  check_weights(job, trainer, "the resumed run");
}

}  // namespace
}  // namespace tutti::simulation

int main(int argc, char** argv) {
  using namespace tutti::simulation;
  // Before the schedules, so that each has them.
  for (const int logical : {0, 4}) quiet[logical] = train_alone(logical);
  return run_schedules(argc, argv, [](Simulation& s) {
    logical_ranks = Random(s.options.seed, 5).one_in(2) ? 4 : 0;
    Disk disk("run", Random(s.options.seed, 7));
    std::filesystem::create_directory("audit");
    // The disk has space when the job begins.
    (void)::close(::open("run/log.jsonl", O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    Job job(s, false, work);
    s.scheduler.start_thread(s.scheduler.process(), [&] { disturb(job, disk); });
    const bool done = job.run();
    if (job.power_was_cut()) disk.lose_power();
    if (done) check_audit_files(job);
    if (done && !was_full && !was_broken) check_log(job);
    check_checkpoints(job, done);
  });
}
