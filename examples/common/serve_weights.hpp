// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include <tutti/backends/make.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/strategy/parameter_server/weight_store.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/train/optimizer_state.hpp>
#include <tutti/train/server_update.hpp>
#include <tutti/train/trainer.hpp>

#include "agreement.hpp"
#include "recipe.hpp"
#include "task.hpp"

namespace tutti::examples {

// The weights of a run, as a server of asynchronous training has them and changes them: with the net, the options and
// the data of the workers, so it can tell whether a worker has others.
class ServedWeights {
 public:
  // backend: on the host; outlives it. dealt: steps are dealt out to workers who come and go.
  ServedWeights(Backend& backend, RunOptions& o, const Task& task, int workers, bool dealt) : backend_(backend) {
    const auto [seen, images] = load(o, task);
    TrainerOptions t = trainer_options(o);
    t.must_agree = facts_ = examples::facts(o, images);
    Solo solo;
    Trainer as_workers(backend, solo, make_model(o, seen, &images.train), t);
    const ArenaLayout& layout = as_workers.executor().parameters();
    const auto trainable = static_cast<std::size_t>(
        std::count_if(layout.slices.begin(), layout.slices.end(), [](const Slice& s) { return s.trainable; }));
    const FitOptions how = fit_options(o, images.train.size());
    update_ = std::make_unique<ServerUpdate>(
        backend_, make_update_rules(layout, t, trainable), t.loss_scale,
        [schedule = how.schedule, at = all_steps(o, how, images.train.size(), workers, dealt)](std::int64_t step) {
          SchedulePoint p = at;
          p.step = step;
          return schedule(p);
        });
    store_ = std::make_unique<ps::WeightStore>(layout, t.optimizer.slots(), as_workers.facts(), std::cref(*update_));
  }
  [[nodiscard]] ps::WeightStore& store() noexcept { return *store_; }
  // What the workers have alike, as they say when they meet.
  [[nodiscard]] const JobFacts& facts() const noexcept { return facts_; }

 private:
  // Where steps count, those of all workers together.
  static SchedulePoint all_steps(const RunOptions& o, const FitOptions& how, std::int64_t images, int workers,
                                 bool dealt) {
    const EpochEnd end = epoch_end_of(o);
    // Where members change a step is one worker's, dealt out to it.
    const std::int64_t batch = dealt ? o.global_batch_size / workers : o.global_batch_size, times = dealt ? 1 : workers;
    const std::int64_t per_epoch = steps_per_epoch(images, batch, end);
    const std::int64_t total =
        how.total_steps > 0 ? how.total_steps : steps_left({}, images, batch, end, how.epochs) * times;
    return {0, per_epoch * times, total, o.global_batch_size, workers};
  }

  Backend& backend_;
  JobFacts facts_;
  std::unique_ptr<ServerUpdate> update_;
  std::unique_ptr<ps::WeightStore> store_;
};

}  // namespace tutti::examples
