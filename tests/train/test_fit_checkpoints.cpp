// SPDX-License-Identifier: MIT
// Tests which checkpoints the training loop saves, and how it reacts to damaged checkpoints.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/fit.hpp>

#include "fit_run.hpp"

using namespace tutti;
using namespace tutti::testing;

namespace {

// Copies the checkpoint `from` to the run in the folder `to`. `change` may change the model tensors and the counters
// first.
template <class Change>
void save_changed(const io::LoadedCheckpoint& from, const std::filesystem::path& to, Change&& change) {
  io::CheckpointData data;
  data.step = from.step();
  data.counters = from.counters();
  data.options = from.options();
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

TEST_CASE(
    "checkpoints have the batch counts of batch norm, a resumed run continues the counts, and files may lack them") {
  Folder folder;
  const auto warn = [](const std::string& w) { FAIL(w); };
  const io::Json no_options = io::Json::object();
  Run run(batch / 2);
  {
    Checkpoints checkpoints(folder.path, 5, no_options);
    run.go(&checkpoints, {.epochs = 1});  // four steps of two micro-batches, one step of 6 rows
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
  SUBCASE("no batch counts") {
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
  SUBCASE("a batch count of a norm that the model does not have") {
    Folder other;
    save_changed(*loaded, other.path, [](io::CheckpointData& d) {
      d.model.push_back(*std::find_if(d.model.begin(), d.model.end(), is_count));
      d.model.back().name = "bn2.num_batches_tracked";
    });
    Run next;
    CHECK_THROWS_AS(Checkpoints(other.path, 5, no_options).resume_latest(next.trainer, warn), DataError);
  }
  SUBCASE("a batch count of another type") {
    Folder other;
    save_changed(*loaded, other.path, [](io::CheckpointData& d) {
      auto& count = *std::find_if(d.model.begin(), d.model.end(), is_count);
      count.dtype = DType::f64;
    });
    Run next;
    CHECK_THROWS_AS(Checkpoints(other.path, 5, no_options).resume_latest(next.trainer, warn), DataError);
  }
}

TEST_CASE("a warning names a damaged checkpoint, and the previous checkpoint is used") {
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
    run.go(&checkpoints, {.epochs = 1});
  }
  Checkpoints checkpoints(folder.path, 2, io::Json::object());
  CpuBackend backend;
  Solo solo;
  Trainer other(backend, solo, net(), {});  // this trainer has no moving average
  CHECK_THROWS_AS(checkpoints.resume_latest(other, [](const std::string&) {}), DataError);
}

TEST_CASE("a checkpoint that cannot be written is reported and training continues") {
  Folder folder;
  std::ofstream(folder.path / "checkpoints") << "a file where the folder should be";
  Checkpoints checkpoints(folder.path, 2, io::Json::object());
  Run run;
  const FitResult r = run.go(&checkpoints, {.epochs = 2});
  CHECK(r.counters.step == 10);
  CHECK(run.recorder.warnings.size() == 2);
  CHECK(run.recorder.paths.empty());
}

TEST_CASE("with evaluate_every = 0, checkpoints by steps do not cause an evaluation, not even at the end") {
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
  o.save_every_steps = 5;  // the last step of each epoch
  CHECK(saved(o) == "5 10 15 ");
  o.save_every_steps = 6;
  o.save_last = true;
  CHECK(saved(o) == "6 12 15 ");
  o.evaluate_every = 1;
  o.save_best = false;
  o.save_every_steps = 100;
  CHECK(saved(o) == "15 ");
}
