// SPDX-License-Identifier: MIT
#include "tools/trainer/evaluator.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/dataset.hpp>
#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/io/tfevents.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/checkpointing.hpp>
#include <tutti/train/detail/files/run_folder.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/make_source.hpp>
#include <tutti/train/signals.hpp>
#include <tutti/train/trainer.hpp>

#include "tools/trainer/agreement.hpp"
#include "tools/trainer/option_table.hpp"
#include "tools/trainer/option_values.hpp"
#include "tools/trainer/options_json.hpp"
#include "tools/trainer/recipe.hpp"
#include "tools/trainer/scripted_options.hpp"
#include "tools/trainer/step_lines.hpp"

namespace tutti::trainer {

namespace {

using namespace detail;

// Options of the net and the images, which a checkpoint records.
constexpr const char* told_by_checkpoint[] = {"dataset",      "image-shape",  "rgb-mean", "rgb-std", "num-classes",
                                              "num-examples", "seed",         "network",  "depth",   "width",
                                              "ema-decay",    "ema-schedule", "optimizer"};

struct TakeFromCheckpoint {
  const io::Json &checkpoint, &usual, &said;
  void group(const char*) {}
  template <class T>
  void operator()(const char* name, T& field, const char*, Scope = Scope::job) {
    const auto is = [&](const char* other) { return std::string_view(name) == other; };
    if (std::none_of(std::begin(told_by_checkpoint), std::end(told_by_checkpoint), is)) return;
    const io::Json* was = checkpoint.find(name);
    if (was == nullptr || was->is_null()) return;
    const io::Json &now = said.at(name, name), &other = usual.at(name, name);
    if (!is("num-examples") && !(now == other) && !(now == *was))
      fail<UsageError>(std::string("--") + name, io::write_json(*was) + ", as in the checkpoint", io::write_json(now),
                       "leave the option out: the checkpoint has its value");
    assign(std::string("--") + name, was->is_string() ? was->as_string() : io::write_json(*was), field);
  }
};

// The first n images of a data set.
struct FirstImages {
  AnyDataset all;
  std::int64_t n;
  [[nodiscard]] std::int64_t size() const { return std::min(n, all.size()); }
  [[nodiscard]] const Schema& schema() const { return all.schema(); }
  void read(std::int64_t i, Rng& rng, Sample s) const { all.read(i, rng, s); }
};

// The objects for evaluations. Made when the first checkpoint exists, because it records the options.
class CheckpointEvaluator {
 public:
  CheckpointEvaluator(RunOptions& o, const Task& task, std::unique_ptr<Backend> backend, std::int64_t most)
      : backend_(std::move(backend)),
        loaded_(load(o, task)),
        with_(AnyStrategy::refer(solo_)),
        trainer_(*backend_, with_, make_model(o, loaded_.seen), trainer_options(o)),
        checkpoints_(o.run_dir) {
    const bool test = o.eval_data == "test";
    if (test && !loaded_.images.test) fail<DataError>("--eval-data", "test images in " + o.data_dir, "none");
    const AnyDataset images = FirstImages{test ? *loaded_.images.test : loaded_.images.train, most};
    std::size_t resident = 0;
    source_ =
        make_source(*backend_, images, loader_options(o, false, 0, 1), on_device_of(o), &resident, "--data-on-device");
  }
  // Returns the accuracy with the averaged weights, if the checkpoint has them, or else with its weights.
  double precision(const io::LoadedCheckpoint& checkpoint) {
    checkpoints_.load_weights(trainer_, checkpoint);
    EvaluationReport r;
    const auto evaluator = [&] { r = evaluate(trainer_, *source_); };
    if (trainer_.evaluates_ema())
      trainer_.with_ema(evaluator);
    else
      evaluator();
    return r.top1;
  }

 private:
  std::unique_ptr<Backend> backend_;
  Loaded loaded_;
  Solo solo_;
  AnyStrategy with_;
  Trainer trainer_;
  Checkpoints checkpoints_;
  std::unique_ptr<BatchSource> source_;
};

}  // namespace

int evaluate_concurrently(const RunOptions& said, const Task& task,
                          const std::function<std::unique_ptr<Backend>(RunOptions&)>& make) {
  const StopSignals signals;
  RunOptions o = said;
  if (is_scripted(o))
    fail<UsageError>("--job-name", "options of an evaluation or of a job's process, not both", "both");
  if (!o.run_dir.empty() || !o.resume.empty())
    fail<UsageError>(o.run_dir.empty() ? "--resume" : "--run-dir", "--checkpoint-dir, the run to evaluate",
                     o.run_dir + o.resume);
  if (o.eval_data.empty()) o.eval_data = "test";
  detail::word("--eval-data", o.eval_data, {"test", "train_eval"});
  const double interval = o.eval_interval_secs.value_or(300);
  detail::number("--eval-interval-secs", interval, 0.0, 1e9);
  detail::number("--num-examples", o.num_examples, 0, std::int64_t{1} << 40);
  const std::int64_t most = o.num_examples > 0 ? o.num_examples : 10000;
  if (o.eval_dir.empty()) o.eval_dir = "/tmp/cifar10_eval";
  o.run_dir = o.checkpoint_dir.empty() ? "/tmp/cifar10_train" : o.checkpoint_dir;
  o.resume = "latest";
  o.eval_only = o.eval_data == "test";
  o.random_crop = o.random_mirror = false;
  {
    // Reports errors in the options before the program waits for a checkpoint.
    RunOptions copy = o;
    (void)make(copy);
  }
  if (o.checkpoint_dir.empty()) tutti::detail::require_own_folder(o.run_dir, "--checkpoint-dir");
  tutti::detail::require_own_folder(o.eval_dir, "--eval-dir");
  const io::CheckpointStore store(o.run_dir);
  io::make_directories(o.eval_dir);
  io::EventWriter events(o.eval_dir);
  std::optional<CheckpointEvaluator> evaluator;
  std::int64_t done = -1;
  int failed = 0;
  bool told = false;
  const auto pause = [](double seconds) {
    const Stopwatch watch;
    while (watch.seconds() < seconds && !StopSignals::stop_requested())
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  while (!StopSignals::stop_requested()) {
    std::vector<std::string> complaints;
    const auto newest = store.load_newest_valid(&complaints);
    if (!newest) {
      if (o.run_once && ++failed >= 3)
        fail<DataError>("--checkpoint-dir", "a checkpoint in " + o.run_dir,
                        complaints.empty() ? "none" : complaints[0]);
      if (!std::exchange(told, true) && !o.run_once) std::printf("no checkpoint in %s yet\n", o.run_dir.c_str());
      std::fflush(stdout);
      pause(std::min(interval, o.run_once ? 0.5 : 5.0));
      continue;
    }
    if (newest->step() != done) {
      try {
        if (!evaluator) {
          RunOptions usual = defaults_of(o.program), all = o;
          const io::Json defaults = options_json(usual), now = options_json(said);
          describe(all, TakeFromCheckpoint{newest->options(), defaults, now});
          std::unique_ptr<Backend> backend = make(all);
          evaluator.emplace(all, task, std::move(backend), most);
        }
        const double precision = evaluator->precision(*newest);
        done = newest->step();
        failed = 0;
        std::printf("%s: precision @ 1 = %.3f\n", date_and_time().c_str(), precision);
        std::fflush(stdout);
        events.scalar("Precision @ 1", done, static_cast<float>(precision));
      } catch (const DataError& e) {
        // The run removes older checkpoints, so it is no error if a checkpoint is removed before it is read.
        if (++failed >= 3 || io::path_exists(newest->path())) throw;
        continue;
      }
    }
    if (o.run_once) return 0;
    pause(interval);
  }
  return StopSignals::exit_code();
}

}  // namespace tutti::trainer
