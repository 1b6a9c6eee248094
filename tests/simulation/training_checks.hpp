// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/coordinator.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/trainer.hpp>

#include "audit_files.hpp"
#include "job.hpp"
#include "training_net.hpp"

// The checks of training.cpp: weights, reports, log, audit and checkpoints.
namespace tutti::simulation {

// The job of a schedule: how it trains, what it has announced, and which faults its disk had.
struct Training {
  int logical_ranks = 0;
  bool first_is_best = false;                  // by the metric that selects the best checkpoint
  std::int64_t saved_step = 0, best_step = 0;  // the newest step that was announced as saved, and as the best
  bool was_full = false, was_broken = false;   // the disk was full, or did not sync
  bool complained = false;                     // a process could not write its log
  std::int64_t announced = 0;                  // announcements so far
  std::int64_t reported = 0;                   // the newest step that was reported
};
inline Training training;

// Fails unless the trainer has the weights that the quiet training had after the same step. With logical ranks they
// have the same bits. Otherwise the order of the sums depends on the number of ranks.
inline void check_weights(Job& job, Trainer& t, const std::string& whose) {
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
[[nodiscard]] inline bool differs(double a, double b) { return !(std::abs(a - b) <= 1e-5); }
// Returns what is wrong with the report of an epoch, or an empty text. losses: whether it has the numbers of all
// samples.
[[nodiscard]] inline std::string error_of(const EpochReport& r, bool losses) {
  const auto& all = quiet.at(training.logical_ranks).reports.epochs;
  if (r.epoch < 1 || r.epoch > static_cast<std::int64_t>(all.size())) return "does not exist";
  const EpochReport& right = all[static_cast<std::size_t>(r.epoch - 1)];
  if (r.step != right.step) return "ends with step " + std::to_string(r.step);
  if (!r.test || differs(r.test->loss, right.test->loss) || differs(r.test->top1, right.test->top1))
    return "has a wrong evaluation";
  if (training.first_is_best && differs(*r.test->metric, *right.test->metric)) return "has a wrong metric";
  if (losses && (differs(r.train_loss, right.train_loss) || differs(r.train_top1, right.train_top1)))
    return "has a loss of " + std::to_string(r.train_loss) + ", not of " + std::to_string(right.train_loss);
  return {};
}

// Checks what rank 0 reports, and notes which checkpoints the job announces.
class Announcements : public FitListener {
 public:
  Announcements(Job& job, Trainer& trainer, const Checkpoints& checkpoints, const Worker& me)
      : job_(job), trainer_(trainer), checkpoints_(checkpoints), me_(me) {}
  void saved(const std::string&) override {
    check_right();
    const std::int64_t step = trainer_.counters().step;
    job_.scheduler().note(me_.process->name + " has saved step " + std::to_string(step));
    training.saved_step = std::max(training.saved_step, step);
    announce();
  }
  // The numbers are those of the quiet training. The metrics of a rank that is lost are lost with it, unless each rank
  // has the sums of all.
  void epoch(const EpochReport& r) override {
    check_right();
    if (r.best && !training.was_full && !training.was_broken) training.best_step = r.step;
    const auto& workers = job_.launcher().workers();
    const bool losses = std::any_of(workers.begin(), workers.end(),
                                    [](const Worker& w) { return w.lost_at != never || !w.process->runs(); });
    if (const std::string error = error_of(r, !losses || training.logical_ranks > 0); !error.empty())
      job_.scheduler().fail("epoch " + std::to_string(r.epoch) + " of " + me_.process->name + " " + error);
    announce();
  }
  // Checkpoints of removed writers do not count, because the folder records that the generation has begun.
  void members(const MembersReport& m) override {
    check_right();
    if (checkpoints_.latest_generation() < m.generation && !training.was_full)
      job_.scheduler().fail("generation " + std::to_string(m.generation) + " is not recorded");
    announce();
  }
  void warning(const std::string&) override { check_right(); }
  // With logical ranks each rank has the sums of all since the last report.
  void step(const StepReport& r) override {
    check_right();
    const auto& all = quiet.at(training.logical_ranks).reports.steps;
    const auto right = all.find(r.step);
    if (right == all.end()) job_.scheduler().fail("step " + std::to_string(r.step) + " is reported");
    training.reported = r.step;
    announce();
    if (training.logical_ranks == 0) return;
    if (differs(r.train_loss, right->second.train_loss) || differs(r.train_top1, right->second.train_top1))
      job_.scheduler().fail("the report of step " + std::to_string(r.step) + " has a loss of " +
                            std::to_string(r.train_loss) + ", not of " + std::to_string(right->second.train_loss));
  }
  void finished(double) override { check_right(); }

 private:
  void announce() const {
    ++training.announced;
    job_.scheduler().wake_all(&training.announced);
  }
  // Another process reports after the release of this one has arrived, or after the arbiter has removed it: its lease
  // has ended before. It may still report what it began before a pause.
  void check_right() const {
    if (job_.launcher().left_since(me_) > 20 * ms && job_.launcher().checks().calm_since(me_.asked_at))
      job_.scheduler().fail(me_.process->name + " reports after its release");
    const Nanos since = std::max(me_.lost_at, me_.process->paused_until);
    if (me_.lost_at != never && !me_.unreachable && job_.scheduler().now() > since + 20 * ms)
      job_.scheduler().fail(me_.process->name + " reports after its removal");
  }

  Job& job_;
  Trainer& trainer_;
  const Checkpoints& checkpoints_;
  const Worker& me_;
};

// ---- after the job ----
// Checks that each epoch has its line, with the right evaluation. Later lines of an earlier generation do not count. A
// rank 0 that is lost between the work of an epoch and its line does not write it.
inline void check_log(Job& job) {
  const std::string file = "log.jsonl";
  std::set<std::int64_t> reported;
  std::int64_t generation = 0, step = 0;
  std::ifstream in("run/" + file);
  for (std::string line; std::getline(in, line);) {
    const io::Json j = io::parse_json(line, file);
    const std::int64_t of = j.at("generation", file).as_integer(file);
    if (of < generation) continue;
    if (of > generation) step = 0;  // the last step of an earlier rank 0 may be lost with it
    generation = of;
    const std::string event = j.at("event", file).as_string(file);
    if (event == "warning") continue;
    const std::int64_t now = j.at("step", file).as_integer(file);
    if (now < step) job.scheduler().fail("the log returns from step " + std::to_string(step) + ": " + line);
    step = now;
    if (event != "epoch") continue;
    const std::int64_t epoch = j.at("epoch", file).as_integer(file);
    reported.insert(epoch);
    const EpochReport& right = quiet.at(training.logical_ranks).reports.epochs.at(static_cast<std::size_t>(epoch - 1));
    if (differs(j.at("test_loss", file).as_double(file), right.test->loss) || now != right.step)
      job.scheduler().fail("the log has a wrong line: " + line);
  }
  const auto& workers = job.launcher().workers();
  const auto lost = std::count_if(workers.begin(), workers.end(), [](const Worker& w) { return w.lost_at != never; });
  if (static_cast<std::int64_t>(reported.size()) + lost < epochs)
    job.scheduler().fail("the log has the lines of " + std::to_string(reported.size()) + " epochs");
}
// Checks that the best checkpoint has the weights of its step, and is not older than the last one announced. A job that
// is done has the best one of all epochs.
inline void check_best(Job& job, Checkpoints& checkpoints, bool done) {
  const std::int64_t best = checkpoints.best_step().value_or(0);
  const bool good = done && !training.was_full && !training.was_broken;
  const std::int64_t right =
      good ? quiet.at(training.logical_ranks).best_step(training.first_is_best) : training.best_step;
  if (good ? best != right : best < right)
    job.scheduler().fail("the best checkpoint is that of step " + std::to_string(best) + ", not of step " +
                         std::to_string(right));
  if (best == 0) return;
  OneProcess one(training.logical_ranks);
  checkpoints.resume_best(one.trainer);
  check_weights(job, one.trainer, "the best checkpoint");
}
// Continues in the folders of the job, and checks what this run reports and leaves. audits: the job has written the
// audit of all steps.
inline void check_continuation(Job& job, OneProcess& one, Checkpoints& checkpoints, bool audits) {
  Reports reports;
  CoordinatorOptions duties;
  duties.checkpoints = &checkpoints;
  duties.audit = audits ? "audit" : "";
  duties.listeners = {&reports};
  Coordinator coordinator(one.trainer, duties);
  // With logical ranks a checkpoint has the metrics of the epoch until then.
  const std::int64_t from = training.logical_ranks > 0 || one.trainer.counters().consumed == 0
                                ? one.trainer.counters().epoch
                                : one.trainer.counters().epoch + 1;
  FitOptions f = fit_options(training.first_is_best);
  f.after_step = [&](const FitStep&) { check_weights(job, one.trainer, "the continued run"); };
  if (fit(one.trainer, one.train, &one.test, coordinator, f).counters.step != steps)
    job.scheduler().fail("the continued run is not complete");
  check_weights(job, one.trainer, "the continued run");
  for (const EpochReport& r : reports.epochs)
    if (const std::string error = error_of(r, r.epoch > from); !error.empty())
      job.scheduler().fail("epoch " + std::to_string(r.epoch) + " of the continued run " + error);
  if (audits) check_audit_files(job.scheduler(), epochs, samples);
  std::string complaints;
  OneProcess last(training.logical_ranks);
  (void)Checkpoints("run").resume_latest(last.trainer, [&](const std::string& c) { complaints += c; });
  if (!complaints.empty() || last.trainer.counters().step != steps)
    job.scheduler().fail("the continued run has saved step " + std::to_string(last.trainer.counters().step) + " " +
                         complaints);
}
// Checks the newest checkpoint of a job that may have failed or stopped.
inline void check_checkpoints(Job& job, bool done) {
  OneProcess one(training.logical_ranks);
  Checkpoints checkpoints("run");
  std::string complaints;
  const bool any = checkpoints.resume_latest(one.trainer, [&](const std::string& c) { complaints += c; });
  if (!complaints.empty()) job.scheduler().fail("a checkpoint is not valid: " + complaints);
  const std::int64_t least = done && !training.was_full && !training.was_broken ? steps : training.saved_step;
  if (!any && least > 0) job.scheduler().fail("there is no checkpoint");
  if (!any) return;
  if (one.trainer.counters().step < least)
    job.scheduler().fail("the newest checkpoint is that of step " + std::to_string(one.trainer.counters().step) +
                         ", not of step " + std::to_string(least));
  check_weights(job, one.trainer, "the newest checkpoint");
  check_best(job, checkpoints, done);
  // The processes of a job that was stopped in order have written the audit of each step.
  const auto& workers = job.launcher().workers();
  const bool stopped = job.launcher().stopping() && !job.power_was_cut() &&
                       std::all_of(workers.begin(), workers.end(), [](const Worker& w) {
                         return w.lost_at == never && w.process->state == Process::State::exited;
                       });
  check_continuation(job, one, checkpoints, done || stopped);
}

}  // namespace tutti::simulation
