// SPDX-License-Identifier: MIT
// Tests fit(job, net, recipe), which runs a whole training in one call.
#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/memory_dataset.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/interchange/model_card.hpp>
#include <tutti/interchange/model_file.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/io/json/json.hpp>
#include <tutti/models/model.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/detail/files/run_folder.hpp>
#include <tutti/train/fit_job.hpp>

#include "fit_run.hpp"

using namespace tutti;
using tutti::testing::Folder;
using tutti::testing::Recorder;

namespace {

// A job of one process. A program could define such a class for its own backend.
class AloneJob final : public TrainingJob {
 public:
  [[nodiscard]] Backend& backend() override { return backend_; }
  [[nodiscard]] const ImageDecoders& decoders() override { throw UsageError("no decoders"); }
  [[nodiscard]] AnyStrategy& join(const JoinOptions& o) override {
    facts = o.facts;
    return strategy_;
  }
  JobFacts facts;

 private:
  CpuBackend backend_{CpuOptions{2}};
  AnyStrategy strategy_ = AnyStrategy::make<Solo>();
};

Synthetic images(std::int64_t size, std::int64_t first = 0) {
  return Synthetic({.size = size, .height = 8, .width = 8, .classes = 4, .learnable = true, .first = first});
}
Model net_for(const Schema& s, std::int64_t channels = 8) {
  Model net(s);
  net.classifier(net.conv_bn(net.images(), {.out = channels, .stride = 2}));
  return net;
}
FitRecipe recipe(const std::string& run = {}) {
  return {.train = images(70), .test = images(33, 1000), .batch = 16, .epochs = 2, .run = run, .progress = false};
}

MemoryDataset named(std::vector<std::string> names, int classes) {
  Schema s = images(8).schema();
  s.name = "named";
  s.classes = classes;
  s.class_names = std::move(names);
  return {s, std::vector<std::uint8_t>(2 * 8 * 8 * 3), {0, classes - 1}};
}

}  // namespace

TEST_CASE("fit trains, evaluates and reports") {
  AloneJob job;
  Recorder recorder;
  FitRecipe r = recipe();
  std::vector<std::int64_t> epochs;
  r.listeners = {&recorder};
  r.after_epoch = [&](const EpochReport& e) { epochs.push_back(e.epoch); };
  const EpochReport report = fit(job, net_for(r.train.schema()), r);
  CHECK(epochs == std::vector<std::int64_t>{1, 2});
  CHECK(recorder.epochs.size() == 2);
  CHECK(report.step == 10);
  CHECK(report.test.accuracy() == report.test->top1);
  CHECK(report.test.accuracy() > 0.25);
  CHECK(report.global_batch == 16);
  CHECK(job.facts.text().find("fit .batch") != std::string::npos);
}

TEST_CASE("the facts that processes compare contain the schedules") {
  AloneJob job;
  const auto facts_of = [&](const Schedule& schedule, const std::optional<Schedule>& momentum) {
    FitRecipe r = recipe();
    r.max_steps = 2;
    r.schedule = schedule;
    r.momentum = momentum;
    (void)fit(job, net_for(r.train.schema()), r);
    return job.facts;
  };
  const JobFacts cosine = facts_of(schedule::Cosine(0.1), std::nullopt);
  CHECK(facts_of(schedule::Cosine(0.1), std::nullopt).first_difference(cosine).name.empty());
  CHECK(facts_of(schedule::Cosine(1e-8), std::nullopt).first_difference(cosine).name == "fit .schedule");
  CHECK(facts_of(schedule::Poly(0.1), std::nullopt).first_difference(cosine).name == "fit .schedule");
  CHECK(facts_of(schedule::Cosine(0.1), Constant(0.8)).first_difference(cosine).name != "");
  // A schedule need not have values for steps long after the last one.
  const std::vector<double> rates{0.1, 0.2, 0.3};
  CHECK_NOTHROW(
      facts_of([&](const SchedulePoint& p) { return rates.at(static_cast<std::size_t>(p.step)); }, std::nullopt));
}

TEST_CASE("fit uses the batch, optimizer and schedule of the recipe, and gives the same bits as a Trainer") {
  AloneJob job;
  FitRecipe r = recipe();
  r.optimizer = Sgd{.momentum = 0.5, .nesterov = true};
  r.schedule = Cosine(0.2);
  r.weight_decay = 1e-3;
  const Model net = net_for(r.train.schema());
  std::vector<float> by_fit, by_hand;
  const auto weights = [](Trainer& t) {
    const Tensor<float> w = t.parameter("conv1.weight");
    return std::vector<float>(w.data(), w.data() + w.size());
  };
  Trainer* seen = nullptr;
  r.prepare = [&](Trainer& t) { seen = &t; };
  r.after_epoch = [&](const EpochReport&) { by_fit = weights(*seen); };
  fit(job, net, r);

  Trainer trainer(job.backend(), job.join({}), net.graph(), {.optimizer = r.optimizer, .weight_decay = 1e-3});
  Loader train(images(70), {.placement = {.global_batch = 16}, .seed = 1});
  Loader test(images(33, 1000), {.placement = {.global_batch = 16}, .shuffle = false, .one_pass = true});
  FitOptions how{.epochs = 2, .schedule = r.schedule};  // the loader gives the batch size
  fit(trainer, train, &test, how);
  by_hand = weights(trainer);
  CHECK(by_fit == by_hand);
}

TEST_CASE("a run has a log, checkpoints and a model card by default") {
  AloneJob job;
  const Folder folder;
  const std::string run = (folder.path / "runs" / "mine").string();
  const FitRecipe r = recipe(run);
  fit(job, net_for(r.train.schema()), r);
  for (const char* name : {"log.jsonl", "evaluation.json", "checkpoints"})
    CHECK(std::filesystem::exists(std::filesystem::path(run) / name));
  const auto file = interchange::open_model(run);
  REQUIRE(file.card);
  CHECK(file.card->graph);
  CHECK(file.card->image.height == 8);
  CHECK(io::CheckpointStore(run).load_newest_valid(nullptr)->step() == 10);
}

TEST_CASE("a run with logical ranks records them, and continues only with the same number") {
  AloneJob job;
  const Folder folder;
  FitRecipe r = recipe((folder.path / "run").string());
  r.logical_ranks = 3;
  const Model net = net_for(r.train.schema());
  CHECK(fit(job, net, r).step == 10);
  std::ifstream log(folder.path / "run" / "log.jsonl");
  std::string line;
  std::getline(log, line);
  const io::Json start = io::parse_json(line, "log");
  CHECK(start.at("logical_ranks").as_integer() == 3);
  CHECK(start.at("options").at("logical-ranks").as_integer() == 3);
  r.epochs = 3;
  r.logical_ranks = 4;
  CHECK_THROWS_AS(fit(job, net, r), UsageError);
  r.allow_other_bits = true;
  CHECK(fit(job, net, r).step == 15);
}

TEST_CASE("a restarted run continues, and a finished run is evaluated") {
  AloneJob job;
  const Folder folder;
  FitRecipe r = recipe((folder.path / "run").string());
  const Model net = net_for(r.train.schema());
  const EpochReport first = fit(job, net, r);
  const EpochReport again = fit(job, net, r);
  CHECK(again.step == 10);
  CHECK(again.test.accuracy() == first.test.accuracy());
  std::vector<std::int64_t> epochs;
  r.epochs = 4;
  r.after_epoch = [&](const EpochReport& e) { epochs.push_back(e.epoch); };
  CHECK(fit(job, net, r).step == 20);
  CHECK(epochs == std::vector<std::int64_t>{3, 4});
}

TEST_CASE("a run that was stopped and resumed gives the same bits as an uninterrupted run") {
  AloneJob job;
  const Folder folder;
  const Model net = net_for(images(8).schema());
  const auto weights_of = [&](const std::string& run) {
    const auto c = io::CheckpointStore(run).load_newest_valid(nullptr);
    std::string bytes;
    for (const io::TensorRecord& t : c->model())
      bytes.append(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
    return bytes;
  };
  FitRecipe whole = recipe((folder.path / "whole").string()), parts = recipe((folder.path / "parts").string());
  fit(job, net, whole);
  parts.max_steps = 7;
  fit(job, net, parts);
  parts.max_steps = 0;
  fit(job, net, parts);
  CHECK(weights_of(whole.run) == weights_of(parts.run));
}

TEST_CASE("the folder of another net is refused, with exit code 2") {
  AloneJob job;
  const Folder folder;
  const FitRecipe r = recipe((folder.path / "run").string());
  fit(job, net_for(r.train.schema()), r);
  try {
    fit(job, net_for(r.train.schema(), 12), r);
    FAIL("another net was accepted");
  } catch (const UsageError& e) {
    const std::string message = e.what();
    CHECK(
        message.starts_with("[fit .run " + r.run + "] expected the folder of a run with this net and this optimizer"));
    CHECK(message.find("hint: give this run a separate folder; ") != std::string::npos);
    CHECK(e.exit_code() == 2);
  }
}

TEST_CASE("a folder that another process writes to, or a link in a folder that all users can write to, is refused") {
  AloneJob job;
  const Folder folder;
  FitRecipe r = recipe((folder.path / "run").string());
  const Model net = net_for(r.train.schema());
  std::filesystem::create_directories(r.run);
  {
    detail::RunFolderLock other;
    REQUIRE(other.take(r.run, {}));
    CHECK_THROWS_WITH_AS(fit(job, net, r),
                         doctest::Contains("[fit .run] expected a folder that no other process writes"), UsageError);
  }
  CHECK(fit(job, net, r).step == 10);
  std::filesystem::permissions(folder.path, std::filesystem::perms::others_write, std::filesystem::perm_options::add);
  std::filesystem::create_directory_symlink(r.run, folder.path / "link");
  r.run = (folder.path / "link").string();
  CHECK_THROWS_WITH_AS(fit(job, net, r), doctest::Contains("which is a link"), UsageError);
}

TEST_CASE("an invalid recipe is refused before training begins") {
  AloneJob job;
  const Model net = net_for(images(8).schema());
  const auto refuses = [&](const char* message, auto change) {
    FitRecipe r = recipe();
    change(r);
    CHECK_THROWS_WITH_AS(fit(job, net, r), message, UsageError);
  };
  refuses("[fit .batch] expected 1 or more, got 0.", [](FitRecipe& r) { r.batch = 0; });
  refuses("[fit .logical_ranks] expected at most .batch, 16, got 17. hint: each logical rank needs an image of a step.",
          [](FitRecipe& r) { r.logical_ranks = 17; });
  refuses(
      "[fit .batch_per_worker] expected 0 with .logical_ranks, because the batch must not follow the number of "
      "workers, got 8. hint: leave out one of the two.",
      [](FitRecipe& r) {
        r.logical_ranks = 2;
        r.batch_per_worker = 8;
      });
  refuses(
      "[fit .shares] expected Shares::equal or Shares::rows without .logical_ranks, got Shares::measured. hint: set "
      ".logical_ranks, for example to 8 times the number of processes, so that the results do not depend on the "
      "shares; Shares::rows needs none.",
      [](FitRecipe& r) { r.shares = Shares::measured; });
  refuses(
      "[fit .shares] expected Shares::equal or Shares::measured with .logical_ranks, got Shares::rows. hint: "
      "Shares::measured keeps the bits.",
      [](FitRecipe& r) {
        r.logical_ranks = 2;
        r.shares = Shares::rows;
      });
  refuses(
      "[fit .shares] expected Shares::equal with .batch_per_worker, got Shares::rows. hint: leave out .shares or "
      ".batch_per_worker.",
      [](FitRecipe& r) {
        r.batch_per_worker = 8;
        r.shares = Shares::rows;
      });
  refuses("[fit .epochs] expected 1 or more, got -1.", [](FitRecipe& r) { r.epochs = -1; });
  refuses("[fit .keep] expected 1 or more, got 0.", [](FitRecipe& r) { r.keep = 0; });
  const Model open(images(8).schema());
  CHECK_THROWS_WITH_AS(fit(job, open, recipe()),
                       "[fit net] expected a net that ends with a classifier, got a net without one. hint: "
                       "add Model::classifier() or Builder::softmax_cross_entropy() at its end.",
                       UsageError);
  Schema wide = images(8).schema();
  wide.width = 10;
  CHECK_THROWS_WITH_AS(fit(job, net_for(wide), recipe()),
                       doctest::Contains("expected images of the net's input shape [1, 3, 8, 10], got [1, 3, 8, 8]"),
                       ShapeError);
  Schema few = images(8).schema();
  few.classes = 3;
  CHECK_THROWS_WITH_AS(fit(job, net_for(few), recipe()), doctest::Contains("an output for each of the 4 classes"),
                       UsageError);
}

TEST_CASE("images that do not fit together are refused, with exit code 3") {
  AloneJob job;
  const auto refuses = [&](const Images& train, const Images& test, const char* message) {
    FitRecipe r{.train = train, .test = test, .progress = false};
    CHECK_THROWS_WITH_AS(fit(job, net_for(train.schema()), r), doctest::Contains(message), DataError);
  };
  const Images pets = named({"cat", "dog"}, 2);
  refuses(named({"cat"}, 1), pets,
          "[named] expected two classes or more, got one, cat. hint: put the images of each class into a folder");
  refuses(pets, named({"cat", "owl"}, 2), "expected classes of the training images: cat, dog, got owl");
  refuses(pets, named({}, 3), "expected the 2 classes of the training images, got 3");
}

TEST_CASE("reports, metrics and shapes print as text") {
  std::ostringstream out;
  EpochReport r{.epoch = 3, .epochs = 20, .train_loss = 0.412, .train_top1 = 0.851, .test = {}, .test_ema = {}};
  out << r;
  CHECK(out.str() == "epoch 3 of 20: loss 0.4120, accuracy 85.10 %");
  CHECK_THROWS_WITH_AS(
      (void)r.test.accuracy(),
      "[report] expected an evaluation of this epoch, got no evaluation. hint: give fit() test images.", UsageError);
  r.test = EvaluationReport{.loss = 0.5, .top1 = 0.824};
  CHECK(to_string(r) == "epoch 3 of 20: loss 0.4120, accuracy 85.10 %, test loss 0.5000, test accuracy 82.40 %");
  std::ostringstream metrics;
  metrics << Metrics{.loss = 5, .top1_hits = 5, .topk_hits = 8, .rows = 10};
  CHECK(metrics.str() == "loss 0.5000, accuracy 50.00 % of 10 images");
}
