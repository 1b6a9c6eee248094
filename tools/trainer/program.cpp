// SPDX-License-Identifier: MIT
#include "tools/trainer/program.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/detail/fit/prepare_together.hpp>
#include <tutti/train/signals.hpp>
#include <tutti/train/trainer.hpp>

#include "tools/trainer/agreement.hpp"
#include "tools/trainer/batch_choice.hpp"
#include "tools/trainer/elastic_member.hpp"
#include "tools/trainer/folder_choices.hpp"
#include "tools/trainer/recipe.hpp"
#include "tools/trainer/run.hpp"
#include "tools/trainer/start.hpp"
#include "tools/trainer/without_training.hpp"

namespace tutti::trainer {

namespace {

// Prints the net and its memory, without images.
void dry_run(Backend& backend, AnyStrategy& strategy, const RunOptions& o, const Schema& seen) {
  const Graph model = make_model(o, seen);
  Solo alone;  // for servers that own the weights: they get no gradients of buckets
  AnyStrategy with = AnyStrategy::refer(alone);
  Trainer trainer(backend, strategy.owns_weights() ? with : strategy, model, trainer_options(o));
  const MemoryEstimate memory = memory_of(trainer, o, seen);
  if (strategy.rank() != 0) return;
  print_net(model, memory, o, seen);
  if (trainer.executor().backend().memory().on_host())
    if (const auto shortage = memory_shortage(memory, o, 1)) std::printf("will not fit here: %s\n", shortage->c_str());
  for (const std::string& f : trainer.executor().fallbacks(std::min<std::int64_t>(o.batch_size, 4)))
    std::printf("on one thread, with the loops of backend reference: %s\n", f.c_str());
}

}  // namespace

int run(Backend& backend, AnyStrategy& strategy, RunOptions& o, const Task& task, std::optional<Loaded> before,
        ControlChannel* channel) {
  const StopSignals signals;
  const Schema seen = before ? before->seen : schema_of(o, task);
  const bool coordinator = strategy.rank() == 0;
  if (coordinator) std::printf("%s\n", versions(backend, o, strategy.size()).c_str());
  if (o.batch_auto) {
    if (!before) before = Loaded{seen, task.images(o, seen)};
    choose_batch_size(backend, strategy, o, seen, before->images.train.size());
  }
  if (coordinator)
    for (const std::string& note : o.notes) std::printf("note: %s\n", note.c_str());
  if (coordinator && o.program == Program::tutti_train) print_choices(o);
  if (o.test_io) {
    Loader loader(task.images(o, seen).train, loader_options(o, true, strategy.rank(), strategy.size()));
    return test_io(o, loader);
  }
  if (o.print_schedule) {
    const std::int64_t there = task.images(o, seen).train.size();
    if (coordinator) print_schedule(o, there);
    return 0;
  }
  if (o.dry_run) {
    dry_run(backend, strategy, o, seen);
    return 0;
  }
  std::optional<Run> run;
  const bool stays = tutti::detail::prepare_together(strategy, [&] {
    run.reset();
    if (strategy.rank() >= 0) agree_on_run_folder(strategy, o);
    if (o.eval_only) take_average(strategy, o);
    // If ranks do not wait for each other, rank 0 may be lost before it publishes the run. So every rank publishes it.
    if (channel != nullptr && (strategy.rank() == 0 || strategy.owns_weights())) publish_run(*channel, o);
    if (!before) before = Loaded{seen, task.images(o, seen)};
    run.emplace(backend, strategy, o, task, *before);
  });
  if (!stays) return 0;
  before.reset();
  if (!o.eval_only) return run->train();
  run->evaluate();
  return StopSignals::exit_code();
}

}  // namespace tutti::trainer
