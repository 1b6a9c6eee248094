// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <tutti/cluster/job_facts.hpp>
#include <tutti/cluster/launch/launch_environment.hpp>
#include <tutti/core/error.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/optim/schedule.hpp>
#include <tutti/strategy/parameter_server/server/weight_store.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/train/detail/trainer/optimizer_state.hpp>
#include <tutti/train/detail/trainer/server_update.hpp>
#include <tutti/train/fit.hpp>
#include <tutti/train/trainer.hpp>
#include <tutti/train/trainer_options.hpp>

// The weights of a job with strategy ps_async, which its servers own and update.
namespace tutti {

// The steps of such a job, from which servers compute the learning rate.
struct ServedSteps {
  std::int64_t images = 0;                    // number of images in the training set
  int workers = 1;                            // number of workers at the beginning of the job
  bool elastic = false;                       // workers join and leave, and a step belongs to one worker
  EpochEnd epoch_end = EpochEnd::short_step;  // as in the workers' loaders
};

// The weights that a server owns, and their update by a push of gradients. Net and options must be those of the
// workers: the server refuses a worker with a different net or different options when it attaches.
class ServerWeights {
 public:
  // backend: a backend on the host, which must outlive this object.
  ServerWeights(Backend& backend, const Graph& model, const TrainerOptions& t, const FitOptions& how,
                const ServedSteps& steps) {
    if (how.global_batch < 1)
      fail<UsageError>("server weights", "FitOptions::global_batch, the batch of all workers together",
                       std::to_string(how.global_batch));
    Solo solo;
    Trainer as_workers(backend, solo, model, t);
    const ArenaLayout& layout = as_workers.executor().parameters();
    const auto trainable = static_cast<std::size_t>(
        std::count_if(layout.slices.begin(), layout.slices.end(), [](const Slice& s) { return s.trainable; }));
    using ByStep = std::function<double(std::int64_t)>;
    const auto by_step = [at = point_of(how, steps)](const Schedule& schedule) -> ByStep {
      return [schedule, at](std::int64_t step) {
        SchedulePoint p = at;
        p.step = step;
        return schedule(p);
      };
    };
    update_ = std::make_unique<ServerUpdate>(backend, make_update_rules(layout, t, trainable), t.loss_scale,
                                             by_step(how.schedule), how.momentum ? by_step(*how.momentum) : ByStep());
    store_ = std::make_unique<ps::WeightStore>(layout, t.optimizer.slots(), facts_of(as_workers), std::cref(*update_));
  }
  [[nodiscard]] ps::WeightStore& store() noexcept { return *store_; }

 private:
  // Returns the facts that must be equal on the workers. The precision is not one of them, because GPUs and CPUs may
  // differ in it.
  static JobFacts facts_of(const Trainer& as_workers) {
    JobFacts f;
    const JobFacts all = as_workers.facts();  // a temporary object would be destroyed before the loop
    for (const auto& [name, value] : all.facts())
      if (name != "precision") f.add(name, value);
    return f;
  }
  // Returns how the schedule counts: the steps of all workers together.
  static SchedulePoint point_of(const FitOptions& how, const ServedSteps& s) {
    const std::int64_t batch = s.elastic ? how.global_batch / s.workers : how.global_batch;
    const std::int64_t times = s.elastic ? 1 : s.workers;
    const std::int64_t per_epoch = steps_per_epoch(s.images, batch, s.epoch_end);
    const std::int64_t total =
        how.total_steps > 0 ? how.total_steps : steps_left({}, s.images, batch, s.epoch_end, how.epochs) * times;
    return {0, per_epoch * times, total, how.global_batch, s.workers};
  }

  std::unique_ptr<ServerUpdate> update_;
  std::unique_ptr<ps::WeightStore> store_;
};

// Returns a function for StrategyOptions::make_weights, which makes the weights in a server's process from the
// arguments of the training. images: the size of the training set. Backend and net must outlive the strategy.
[[nodiscard]] inline auto server_weights(Backend& backend, const Graph& model, TrainerOptions options, FitOptions how,
                                         std::int64_t images, EpochEnd epoch_end = EpochEnd::short_step) {
  return [&backend, &model, options = std::move(options), how = std::move(how), images,
          epoch_end](const LaunchEnvironment& start) {
    const auto made = std::make_shared<ServerWeights>(backend, model, options, how,
                                                      ServedSteps{images, start.workers, start.elastic, epoch_end});
    return std::shared_ptr<ps::WeightStore>(made, &made->store());
  };
}

}  // namespace tutti
