// SPDX-License-Identifier: MIT
#include "tools/trainer/evaluate_run.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include <tutti/io/checkpoint/checkpoint.hpp>
#include <tutti/train/evaluate_views.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/run_with_heartbeat.hpp>

#include "tools/trainer/agreement.hpp"
#include "tools/trainer/evaluate_uncertain.hpp"

namespace tutti::trainer {

void print_evaluation(const char* what, const EvaluationReport& e, std::int64_t top_k) {
  std::printf("%s loss %.4f top-1 %.2f %% top-%lld %.2f %%  (%lld images)\n", what, e.loss, 100 * e.top1,
              static_cast<long long>(top_k), 100 * e.topk, static_cast<long long>(e.images));
}

void print_views(const ViewsReport& v, std::int64_t top_k) {
  const std::string what = v.averaged ? "test of averaged weights, " : "test, ";
  const char* of = v.share < 1 ? " views of the least certain quarter of the images:" : " views of each image:";
  print_evaluation((what + std::to_string(v.views) + of).c_str(), v.test, top_k);
}

ViewsReport evaluate_views_of(Trainer& trainer, BatchSource& test, const RunOptions& o) {
  const bool uncertain = o.tta == 3;
  auto views = test_views(static_cast<int>(std::min<std::int64_t>(o.tta, 2)));
  ViewsReport v{trainer.counters().step, static_cast<std::int64_t>(views.size()), trainer.evaluates_ema(), {}};
  if (uncertain) {
    v.share = 0.25;
    for (TestView& view : views) view.weight = 1 / static_cast<double>(views.size());
  }
  const auto evaluate = [&] {
    v.test = uncertain ? evaluate_uncertain(trainer, test, views, v.share) : evaluate_views(trainer, test, views);
  };
  if (v.averaged)
    trainer.with_ema(evaluate);
  else
    evaluate();
  return v;
}

namespace {

// Returns the epoch of a checkpoint, from 1: ceil(step * batch / images). The batch is --num-gpus times --batch-size,
// or the batch that the checkpoint records.
std::int64_t epoch_of(const RunOptions& o, const Counters& at, const io::Json& made_with) {
  const auto told = [&](const char* name) {
    const io::Json* v = made_with.find(name);
    return v != nullptr ? v->as_integer() : 0;
  };
  std::int64_t images = told("train_images"), batch = told("global-batch-size");
  if (images == 0 && at.epoch > 0)
    images = (at.samples - at.consumed) / at.epoch;  // checkpoints of earlier versions do not record `train_images`
  const io::Json* strategy = made_with.find("strategy");
  if (strategy != nullptr && strategy->is_string() && strategy->as_string() == "ps_async")
    batch = told("batch-size") * std::max<std::int64_t>(told("accumulate"), 1);  // each rank's step is counted
  if (o.num_gpus) batch = o.batch_size * *o.num_gpus;
  // If the batch followed the number of workers, the steps do not determine the epoch.
  const io::Json* follows = made_with.find("elastic-batch");
  if (images > 0 && follows != nullptr && follows->is_string() && follows->as_string() == "worker")
    return (at.samples + images - 1) / images;
  if (images <= 0 || batch <= 0) return at.epoch + (at.consumed > 0 ? 1 : 0);
  return at.step * (batch / images) + (at.step * (batch % images) + images - 1) / images;
}

}  // namespace

void evaluate_checkpoints(Trainer& trainer, BatchSource& test, Checkpoints& checkpoints, const RunOptions& o,
                          const Task& task, const io::LoadedCheckpoint* newest, std::int64_t images) {
  const bool coordinator = trainer.strategy().rank() == 0;
  const auto coordinator_reads = [&](const std::function<void()>& f) {
    run_with_heartbeat(trainer.strategy(), "reading a checkpoint", coordinator ? f : nullptr);
  };
  std::vector<io::Path> before;
  coordinator_reads([&] {
    if (o.eval_interval <= 0) return;
    const auto all = io::CheckpointStore(o.run_dir).list();
    std::int64_t index = 0;
    for (auto path = all.rbegin(); path != all.rend(); ++path)
      if (index++ % o.eval_interval == 0 && newest != nullptr && path->filename() < newest->path().filename())
        before.push_back(*path);
  });
  double count = static_cast<double>(before.size());
  trainer.strategy().sum({&count, 1});
  if (coordinator && task.evaluating) task.evaluating(o, images);
  std::unordered_set<std::string> named;  // names of records that were skipped
  const auto shown = [&](const EvaluatedCheckpoint& c) {
    const EvaluationReport e = evaluate(trainer, test);
    for (const auto& m : test.take_skip_messages())
      if (named.insert(m).second)
        std::fprintf(stderr, "warning: rank %d skips a record: %s\n", trainer.strategy().rank(), m.c_str());
    if (!coordinator) return;
    if (task.evaluated)
      task.evaluated(e, c);
    else
      print_evaluation(c.averaged ? "test of averaged weights" : "test", e, o.top_k);
  };
  // loaded: the checkpoint that rank 0's trainer has loaded; null if the weights belong to no run.
  const auto both = [&](const io::LoadedCheckpoint* loaded, const io::Path& path) {
    EvaluatedCheckpoint c;
    c.path = path;
    if (loaded != nullptr) {
      c.step = trainer.counters().step;
      c.epoch = epoch_of(o, trainer.counters(), loaded->options());
    }
    shown(c);
    c.averaged = true;
    if (trainer.evaluates_ema()) trainer.with_ema([&] { shown(c); });
  };
  const auto load = [&](const io::LoadedCheckpoint* loaded) {
    if (loaded != nullptr) checkpoints.load_weights(trainer, *loaded);
    if (trainer.strategy().size() > 1) trainer.synchronise();
  };
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(count); ++k) {
    std::optional<io::LoadedCheckpoint> loaded;
    coordinator_reads([&] { loaded = io::load_checkpoint(before[static_cast<std::size_t>(k)]); });
    load(loaded ? &*loaded : nullptr);
    both(loaded ? &*loaded : nullptr, loaded ? loaded->path() : io::Path());
  }
  if (count > 0) load(newest);
  both(newest, newest != nullptr ? newest->path() : io::Path(o.pretrained));
  if (coordinator && task.evaluation_done) task.evaluation_done();
}

}  // namespace tutti::trainer
