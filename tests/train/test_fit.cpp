// SPDX-License-Identifier: MIT
// Tests the reports, audits and callbacks of the training loop.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <tutti/data/audit.hpp>
#include <tutti/data/check_audit.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/train/fit.hpp>

#include "fit_run.hpp"

using namespace tutti;
using namespace tutti::testing;

TEST_CASE("a run reports, evaluates and saves") {
  Folder folder;
  Checkpoints checkpoints(folder.path, 2, io::Json::object());
  Run run;
  const FitResult r = run.go(&checkpoints, {.epochs = 3});
  CHECK(!r.interrupted);
  CHECK(r.counters.step == 15);
  CHECK(r.counters.epoch == 3);
  CHECK(r.counters.samples == 3 * samples);
  CHECK(run.recorder.steps.size() == 15);
  REQUIRE(run.recorder.epochs.size() == 3);
  const EpochReport& e = run.recorder.epochs.back();
  CHECK(e.epoch == 3);
  CHECK(e.step == 15);
  REQUIRE(e.test);
  REQUIRE(e.test_ema);
  CHECK(e.test->images == 33);
  CHECK(e.train_loss < run.recorder.epochs.front().train_loss);
  CHECK(run.recorder.paths.size() == 3);
  CHECK(run.recorder.warnings.empty());
}

TEST_CASE("a run that was stopped during an epoch and resumed gives the same bits as an uninterrupted run") {
  Run whole;
  whole.go(nullptr, {.epochs = 3});
  Folder folder;
  {
    Checkpoints checkpoints(folder.path, 2, io::Json::object());
    Run first;
    int polls = 0;
    const FitResult r = first.go(&checkpoints, {.epochs = 3, .stop_requested = [&] { return ++polls == 8; }});
    CHECK(r.interrupted);
    CHECK(r.counters.step == 8);
    CHECK(r.counters.consumed == 3 * batch);
  }
  Checkpoints checkpoints(folder.path, 2, io::Json::object());
  Run second;
  const auto warn = [](const std::string& w) { FAIL(w); };
  REQUIRE(checkpoints.resume_latest(second.trainer, warn));
  CHECK(second.trainer.counters().step == 8);
  second.go(&checkpoints, {.epochs = 3});
  CHECK(second.trainer.counters() == whole.trainer.counters());
  CHECK(second.bits() == whole.bits());
}

TEST_CASE("the audit of a run shows each sample once per epoch") {
  Folder folder;
  const std::string path = audit_file(folder.path, 0).string();
  {
    Run run;
    run.go(nullptr, {.epochs = 2}, folder.path.string());
  }
  std::ifstream in(path);
  std::string line;
  std::vector<int> seen(samples, 0);
  int lines = 0;
  while (std::getline(in, line)) {
    ++lines;
    std::istringstream words(line.substr(line.find(':') + 1));
    for (std::size_t i = 0; words >> i;) ++seen.at(i);
  }
  CHECK(lines == 10);
  for (int n : seen) CHECK(n == 2);
}

TEST_CASE("after a kill, the audit counts each repeated step once") {
  Folder folder;
  const std::vector<std::string> paths{audit_file(folder.path, 0).string()};
  const auto warn = [](const std::string& w) { FAIL(w); };
  Checkpoints checkpoints(folder.path, 2, io::Json::object());
  // A run without checkpoints stands for a killed run: it leaves an audit of steps that no checkpoint contains.
  const auto killed_after = [&](std::int64_t steps, bool resume) {
    Run run;
    if (resume) REQUIRE(checkpoints.resume_latest(run.trainer, warn));
    run.go(nullptr, {.epochs = 2, .max_steps = steps}, folder.path.string());
  };
  killed_after(3, false);  // killed before the first checkpoint
  {
    Run run;
    run.go(&checkpoints, {.epochs = 1}, folder.path.string());
  }
  CHECK(check_audit(paths, 0, samples).exactly_once());
  CHECK(check_audit(paths, 1, samples).missing == samples);
  killed_after(8, true);
  CHECK(check_audit(paths, 1, samples).missing > 0);
  {
    // A run that has no steps left also writes the position of its checkpoint to the audit.
    Run run;
    REQUIRE(checkpoints.resume_latest(run.trainer, warn));
    run.go(&checkpoints, {.epochs = 1}, folder.path.string());
    CHECK(check_audit(paths, 1, samples).missing == samples);
    run.go(&checkpoints, {.epochs = 2}, folder.path.string());
  }
  for (std::int64_t epoch : {0, 1}) CHECK(check_audit(paths, epoch, samples).exactly_once());
}

TEST_CASE("max_steps and stop_at_train_top1 end a run") {
  Run run;
  CHECK(run.go(nullptr, {.epochs = 3, .max_steps = 7}).counters.step == 7);
  Run easy;
  const FitResult r = easy.go(nullptr, {.epochs = 50, .stop_at_train_top1 = 0.01});
  CHECK(r.counters.epoch == 1);
}

TEST_CASE("with EpochEnd::run_on all steps are full, and a run resumed at any step gives the same bits") {
  Folder folder;
  const std::vector<std::string> paths{audit_file(folder.path, 0).string()};
  const FitOptions three{.epochs = 3, .report_epochs = false};
  std::vector<std::byte> whole;
  {
    Run run(EpochEnd::run_on);
    const FitResult r = run.go(nullptr, three, folder.path.string());
    CHECK(r.counters.step == 3 * samples / batch);  // 13 steps, not 15
    CHECK(r.counters.samples == 13 * batch);
    CHECK(r.counters.epoch == 2);
    CHECK(r.counters.consumed == 13 * batch - 2 * samples);
    REQUIRE(run.recorder.epochs.size() == 3);
    CHECK(run.recorder.epochs[0].step == 5);
    CHECK(run.recorder.epochs[1].step == 9);
    CHECK(run.recorder.epochs[2].step == 13);
    CHECK(run.recorder.steps.back().steps_per_epoch == 4);
    // If a completed run is started again, it trains no step.
    CHECK(run.go(nullptr, three).counters.step == 13);
    whole = run.bits();
  }
  CHECK(check_audit(paths, 0, samples).exactly_once());
  CHECK(check_audit(paths, 1, samples).exactly_once());
  CHECK(check_audit(paths, 2, samples).missing == 3 * samples - 13 * batch);
  for (const std::int64_t cut : {4, 5, 9}) {
    Folder other;
    Checkpoints checkpoints(other.path, 2, io::Json::object());
    {
      Run run(EpochEnd::run_on);
      FitOptions o = three;
      o.max_steps = cut;
      run.go(&checkpoints, o);
    }
    Run run(EpochEnd::run_on);
    REQUIRE(checkpoints.resume_latest(run.trainer, [](const std::string& w) { FAIL(w); }));
    run.go(nullptr, three);
    CHECK(run.bits() == whole);
  }
}

TEST_CASE("a step report has the rates of this step and the next one, and summaries have a separate interval") {
  Run run;
  const Schedule schedule = [](const SchedulePoint& p) { return 0.1 - 0.01 * static_cast<double>(p.step); };
  run.go(nullptr, {.epochs = 2, .schedule = schedule, .summary_every = 4});
  REQUIRE(run.recorder.steps.size() == 10);
  for (const StepReport& r : run.recorder.steps) {
    CHECK(r.lr == schedule(SchedulePoint{r.step - 1}));
    CHECK(r.next_lr == schedule(SchedulePoint{r.step}));
  }
  const auto& s = run.recorder.summaries;
  REQUIRE(s.size() == 3);
  CHECK(s[0].step == 4);
  CHECK(s[1].step == 8);
  CHECK(s[2].step == 10);
  double loss = 0;
  for (std::size_t i = 0; i < 4; ++i) loss += run.recorder.steps[i].train_loss / 4;
  CHECK(s[0].train_loss == doctest::Approx(loss));
}

TEST_CASE("fit calls the listener after each step and each epoch, and all ranks resume") {
  Folder folder;
  Checkpoints checkpoints(folder.path);
  std::vector<FitStep> steps;
  std::vector<EpochReport> epochs;
  FitOptions o{.epochs = 2, .global_batch = batch};
  o.after_step = [&](const FitStep& s) { steps.push_back(s); };
  o.after_epoch = [&](const EpochReport& r) { epochs.push_back(r); };
  Run first;
  CHECK(!checkpoints.resume(first.trainer));
  const FitResult r = fit(first.trainer, first.loader, first.test, checkpoints, o);
  CHECK(r.counters.step == 10);
  REQUIRE(steps.size() == 10);
  CHECK(steps[6].step == 7);
  CHECK(steps[6].epoch == 2);
  CHECK(steps[6].step_in_epoch == 2);
  CHECK(steps[6].lr == 0.1);
  REQUIRE(epochs.size() == 2);
  CHECK(epochs[1].test->images == 33);
  CHECK(!epochs[1].test->metric);
  Run second;
  REQUIRE(checkpoints.resume(second.trainer));
  CHECK(second.trainer.counters() == r.counters);
  CHECK(second.bits() == first.bits());
}

namespace {

// A data set with several unreadable samples.
struct Damaged {
  Synthetic whole;
  std::vector<std::int64_t> bad;
  [[nodiscard]] std::int64_t size() const { return whole.size(); }
  [[nodiscard]] const Schema& schema() const { return whole.schema(); }
  void read(std::int64_t i, Rng& rng, Sample sample) const {
    if (std::find(bad.begin(), bad.end(), i) != bad.end())
      fail<DataError>("file " + std::to_string(i), "an image", "none");
    whole.read(i, rng, sample);
  }
};

}  // namespace

TEST_CASE("each skipped record is named once, and later skips are counted, for training and test images") {
  Run run;
  const Damaged train{run.train, {7, 41}}, held{run.held, {20}};
  Loader training(train, {.placement = {batch, 0, 1}, .seed = 9, .threads = 2, .skip_bad_records = true});
  Loader test(held, {.placement = {10, 0, 1}, .shuffle = false, .one_pass = true, .skip_bad_records = true});
  std::vector<std::string> named;
  FitOptions o{.epochs = 4, .global_batch = batch};
  o.record_skipped = [&](const std::string& m) { named.push_back(m); };
  Coordinator coordinator(run.trainer, {.listeners = {&run.recorder}});
  fit(run.trainer, training, &test, coordinator, o);
  std::sort(named.begin(), named.end());
  REQUIRE(named.size() == 3);
  CHECK(named[0].find("[file 20]") != std::string::npos);
  CHECK(named[1].find("[file 41]") != std::string::npos);
  CHECK(named[2].find("[file 7]") != std::string::npos);
  REQUIRE(run.recorder.epochs.size() == 4);
  for (const EpochReport& e : run.recorder.epochs) {
    CHECK(e.skipped == 2);
    CHECK(e.test->images == 32);
  }
}

TEST_CASE("a user's metric is a mean over all rows, and selects the best checkpoint") {
  const BatchMetric hits = [](std::span<const float> logits, std::span<const std::int32_t> labels) {
    double right = 0;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const auto row = logits.subspan(i * 4, 4);
      right += std::max_element(row.begin(), row.end()) - row.begin() == labels[i] ? 1 : 0;
    }
    return right;
  };
  Run run;
  FitOptions o{.epochs = 3};
  o.metric = hits;
  const FitResult r = run.go(nullptr, o);
  REQUIRE(r.last);
  CHECK(*r.last->test->metric == doctest::Approx(r.last->test->top1));
  CHECK(*r.last->test_ema->metric == doctest::Approx(r.last->test_ema->top1));

  // If a metric only falls, the first checkpoint remains the best one.
  Folder folder;
  Checkpoints checkpoints(folder.path);
  double next = 0;
  o.metric = [&](std::span<const float>, std::span<const std::int32_t> labels) {
    next -= 1;
    return next * static_cast<double>(labels.size());
  };
  Run falling;
  falling.go(&checkpoints, o);
  REQUIRE(falling.recorder.epochs.size() == 3);
  CHECK(falling.recorder.epochs[0].best);
  CHECK(!falling.recorder.epochs[2].best);
}
