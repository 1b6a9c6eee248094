// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include <tutti/data/audit.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/io/checkpoint.hpp>
#include <tutti/io/json.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/fit.hpp>

using namespace tutti;

namespace {

constexpr std::int64_t samples = 70, batch = 16;  // five steps an epoch, the last one short

Graph net() {
  Builder b(3, 8, 8);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv_bn(b, "conv1", "bn1", x, {.out = 4}, {.relu = true});
  x = b.global_avg_pool("pool", x);
  b.softmax_cross_entropy(nn::linear(b, "fc", x, 4, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

struct Folder {
  std::filesystem::path path;
  Folder() {
    char name[] = "/tmp/tutti-fit-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

struct Recorder : FitListener {
  std::vector<StepReport> steps, summaries;
  std::vector<EpochReport> epochs;
  std::vector<std::string> warnings, paths;
  void step(const StepReport& r) override { steps.push_back(r); }
  void summary(const StepReport& r) override { summaries.push_back(r); }
  void epoch(const EpochReport& r) override { epochs.push_back(r); }
  void warning(const std::string& w) override { warnings.push_back(w); }
  void saved(const std::string& p) override { paths.push_back(p); }
};

// One process's worth of a run.
struct Run {
  Run() = default;
  explicit Run(EpochEnd end) : epoch_end(end) {}
  explicit Run(std::int64_t rows) : micro_batch(rows) {}
  std::int64_t micro_batch = 0;
  Cpu backend{CpuOptions{2}};
  Solo solo;
  Trainer trainer{backend, solo, net(), {.ema_decay = 0.9, .seed = 5, .micro_batch = micro_batch}};
  Synthetic train{{.size = samples, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true}};
  Synthetic held{{.size = 33, .height = 8, .width = 8, .classes = 4, .seed = 1, .learnable = true, .first = 1000}};
  EpochEnd epoch_end = EpochEnd::short_step;
  Loader loader{train, {.placement = {batch, 0, 1, epoch_end}, .seed = 9, .threads = 2}};
  Loader test{held, {.placement = {10, 0, 1}, .shuffle = false, .one_pass = true, .threads = 1}};
  Recorder recorder;

  // audit: its folder.
  FitResult go(Checkpoints* c, FitOptions o, const std::string& audit = {}) {
    o.global_batch = batch;
    o.report_every = 1;
    Chief chief(trainer, {.checkpoints = c, .listeners = {&recorder}, .audit = audit});
    return fit(trainer, loader, &test, chief, o);
  }
  std::vector<std::byte> bits() {
    trainer.commit();
    std::vector<std::byte> all;
    for (bool optimizer : {false, true})
      for (const auto& s : trainer.committed_tensors(optimizer)) all.insert(all.end(), s.bytes.begin(), s.bytes.end());
    return all;
  }
};

}  // namespace

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

TEST_CASE("a run that was stopped in the middle of an epoch and resumed is the same bits as one never stopped") {
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

namespace {

// The checkpoint `from` with its model's tensors and counters changed, as one of the run in `to`.
template <class Change>
void save_changed(const io::LoadedCheckpoint& from, const std::filesystem::path& to, Change&& change) {
  io::CheckpointData data{from.step(), from.counters(), from.options(), {}, {}};
  data.model.assign(from.model().begin(), from.model().end());
  data.optimizer.assign(from.optimizer().begin(), from.optimizer().end());
  change(data);
  io::CheckpointStore(to).save(data);
}

bool is_count(const io::TensorRecord& r) { return r.name.ends_with("num_batches_tracked"); }

std::int64_t count_in(std::span<const io::TensorRecord> records, const std::string& name) {
  for (const auto& r : records) {
    if (r.name != name) continue;
    REQUIRE(r.dtype == DType::i64);
    REQUIRE(r.shape == Shape{});
    std::int64_t n = -1;
    std::memcpy(&n, r.bytes.data(), sizeof n);
    return n;
  }
  FAIL("no tensor " << name);
  return -1;
}

}  // namespace

TEST_CASE("checkpoints tell batch norm's batches, go on counting, and need not have them") {
  Folder folder;
  const auto warn = [](const std::string& w) { FAIL(w); };
  const io::Json no_options = io::Json::object();
  Run run(batch / 2);
  {
    Checkpoints checkpoints(folder.path, 5, no_options);
    run.go(&checkpoints, {.epochs = 1});  // five steps, the last one of 6 rows
  }
  CHECK(run.trainer.counters().batches == 9);
  const auto loaded = io::CheckpointStore(folder.path).load_newest_valid();
  REQUIRE(loaded);
  CHECK(count_in(loaded->model(), "bn1.num_batches_tracked") == 9);
  CHECK(count_in(loaded->optimizer(), "ema.bn1.num_batches_tracked") == 9);
  CHECK(std::count_if(loaded->model().begin(), loaded->model().end(), is_count) == 1);
  CHECK(std::count_if(loaded->optimizer().begin(), loaded->optimizer().end(), is_count) == 1);
  {
    Checkpoints checkpoints(folder.path, 5, no_options);
    Run next(batch / 2);
    REQUIRE(checkpoints.resume_latest(next.trainer, warn));
    CHECK(next.trainer.counters().batches == 9);
    CHECK(next.bits() == run.bits());
    next.go(&checkpoints, {.epochs = 2});
    CHECK(count_in(io::CheckpointStore(folder.path).load_newest_valid()->model(), "bn1.num_batches_tracked") == 18);
  }
  SUBCASE("without them") {
    Folder other;
    save_changed(*loaded, other.path, [](io::CheckpointData& d) {
      std::erase_if(d.model, is_count);
      std::erase_if(d.optimizer, is_count);
      d.counters = io::Json::object();
      for (const char* name : {"step", "epoch", "consumed", "samples"}) d.counters.set(name, 5);
    });
    Run next;
    REQUIRE(Checkpoints(other.path, 5, no_options).resume_latest(next.trainer, warn));
    CHECK(next.trainer.counters().batches == 5);
    CHECK(next.bits() == run.bits());
  }
  SUBCASE("of a norm that the model has not") {
    Folder other;
    save_changed(*loaded, other.path, [](io::CheckpointData& d) {
      d.model.push_back(*std::find_if(d.model.begin(), d.model.end(), is_count));
      d.model.back().name = "bn2.num_batches_tracked";
    });
    Run next;
    CHECK_THROWS_AS(Checkpoints(other.path, 5, no_options).resume_latest(next.trainer, warn), DataError);
  }
  SUBCASE("of another type") {
    Folder other;
    save_changed(*loaded, other.path, [](io::CheckpointData& d) {
      auto& count = *std::find_if(d.model.begin(), d.model.end(), is_count);
      count.dtype = DType::f64;
    });
    Run next;
    CHECK_THROWS_AS(Checkpoints(other.path, 5, no_options).resume_latest(next.trainer, warn), DataError);
  }
}

TEST_CASE("a damaged checkpoint is named and the one before it is used") {
  Folder folder;
  {
    Checkpoints checkpoints(folder.path, 3, io::Json::object());
    Run run;
    run.go(&checkpoints, {.epochs = 2});
  }
  const auto newest = folder.path / "checkpoints" / "step-000000010" / "model.safetensors";
  REQUIRE(std::filesystem::exists(newest));
  std::fstream(newest, std::ios::in | std::ios::out | std::ios::binary).seekp(200).put('!');
  Checkpoints checkpoints(folder.path, 3, io::Json::object());
  Run run;
  std::vector<std::string> warnings;
  REQUIRE(checkpoints.resume_latest(run.trainer, [&](const std::string& w) { warnings.push_back(w); }));
  CHECK(run.trainer.counters().step == 5);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("step-000000010") != std::string::npos);
}

TEST_CASE("a checkpoint of another model is refused") {
  Folder folder;
  {
    Checkpoints checkpoints(folder.path, 2, io::Json::object());
    Run run;
    run.go(&checkpoints, {.epochs = 1});  // four steps of two micro-batches and one of six rows
  }
  Checkpoints checkpoints(folder.path, 2, io::Json::object());
  Cpu backend;
  Solo solo;
  Trainer other(backend, solo, net(), {});  // no EMA
  CHECK_THROWS_AS(checkpoints.resume_latest(other, [](const std::string&) {}), DataError);
}

TEST_CASE("a checkpoint that cannot be written is said and training goes on") {
  Folder folder;
  std::ofstream(folder.path / "checkpoints") << "a file where the folder should be";
  Checkpoints checkpoints(folder.path, 2, io::Json::object());
  Run run;
  const FitResult r = run.go(&checkpoints, {.epochs = 2});
  CHECK(r.counters.step == 10);
  CHECK(run.recorder.warnings.size() == 2);
  CHECK(run.recorder.paths.empty());
}

TEST_CASE("the audit of a run shows each sample once an epoch") {
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

TEST_CASE("the audit counts steps once that a run did again after it had been killed") {
  Folder folder;
  const std::vector<std::string> paths{audit_file(folder.path, 0).string()};
  const auto warn = [](const std::string& w) { FAIL(w); };
  Checkpoints checkpoints(folder.path, 2, io::Json::object());
  // Without checkpoints a run leaves what a killed one does: an audit of steps that were not saved.
  const auto killed_after = [&](std::int64_t steps, bool resume) {
    Run run;
    if (resume) REQUIRE(checkpoints.resume_latest(run.trainer, warn));
    run.go(nullptr, {.epochs = 2, .max_steps = steps}, folder.path.string());
  };
  killed_after(3, false);  // before the first checkpoint
  {
    Run run;
    run.go(&checkpoints, {.epochs = 1}, folder.path.string());
  }
  CHECK(check_audit(paths, 0, samples).exactly_once());
  CHECK(check_audit(paths, 1, samples).missing == samples);
  killed_after(8, true);
  CHECK(check_audit(paths, 1, samples).missing > 0);
  {
    // A run that has nothing to do is where its checkpoint is, too.
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

TEST_CASE("steps that run on across epochs: full ones, as many as fit, and resumed anywhere the same bits") {
  Folder folder;
  const std::vector<std::string> paths{audit_file(folder.path, 0).string()};
  const FitOptions three{.epochs = 3, .report_epochs = false};
  std::vector<std::byte> whole;
  {
    Run run(EpochEnd::run_on);
    const FitResult r = run.go(nullptr, three, folder.path.string());
    CHECK(r.counters.step == 3 * samples / batch);  // 13, not 15
    CHECK(r.counters.samples == 13 * batch);
    CHECK(r.counters.epoch == 2);
    CHECK(r.counters.consumed == 13 * batch - 2 * samples);
    REQUIRE(run.recorder.epochs.size() == 3);
    CHECK(run.recorder.epochs[0].step == 5);
    CHECK(run.recorder.epochs[1].step == 9);
    CHECK(run.recorder.epochs[2].step == 13);
    CHECK(run.recorder.steps.back().steps_per_epoch == 4);
    // A run that is over stays so.
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

TEST_CASE("a report has the rate of its step and of the next, summaries have an interval of their own") {
  Run run;
  const Schedule schedule = [](const Progress& p) { return 0.1 - 0.01 * static_cast<double>(p.step); };
  run.go(nullptr, {.epochs = 2, .schedule = schedule, .summary_every = 4});
  REQUIRE(run.recorder.steps.size() == 10);
  for (const StepReport& r : run.recorder.steps) {
    CHECK(r.lr == schedule(Progress{r.step - 1}));
    CHECK(r.next_lr == schedule(Progress{r.step}));
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

TEST_CASE("checkpoints by steps alone, at the end too, and no evaluation that nobody asked for") {
  const auto saved = [](FitOptions o) {
    Folder folder;
    Checkpoints checkpoints(folder.path, 100, io::Json::object());
    Run run;
    run.go(&checkpoints, o);
    std::string list;
    for (const auto& p : run.recorder.paths) list += std::to_string(std::stoi(p.substr(p.rfind('-') + 1))) + " ";
    for (const EpochReport& e : run.recorder.epochs) CHECK(e.test.has_value() == (o.evaluate_every > 0));
    return list;
  };
  FitOptions o{.epochs = 3, .evaluate_every = 0, .save_every = 0, .save_every_steps = 6};
  CHECK(saved(o) == "6 12 ");
  o.save_every_steps = 5;  // the ends of epochs
  CHECK(saved(o) == "5 10 15 ");
  o.save_every_steps = 6;
  o.save_last = true;
  CHECK(saved(o) == "6 12 15 ");
  o.evaluate_every = 1;
  o.save_every_steps = 100;
  CHECK(saved(o) == "15 ");
}

TEST_CASE("callbacks after each step and each epoch, and resume by all ranks") {
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

TEST_CASE("a metric of one's own is a mean over all rows, and picks the best checkpoint") {
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

  // One that only falls: the first checkpoint stays the best.
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
