// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include <tutti/data/sampler.hpp>
#include <tutti/train/detail/run/run_members.hpp>

namespace tutti::detail {

// A fixed number of workers that do not wait for each other, because servers own the weights. Each worker does the
// steps of its share of the epochs. Rank 0 evaluates and saves for all workers.
class IndependentWorkers final : public RunMembers {
 public:
  explicit IndependentWorkers(RunParts& parts) : RunMembers(parts), workers_(parts.run.strategy.size()) {
    parts.schedule.count_steps_of(workers_);
  }

  [[nodiscard]] bool begin() override {
    make_sources();
    (void)start();
    return true;
  }
  void await_others() override {
    if (run_.strategy.rank() != 0) return;
    while (run_.strategy.others_at_work() > 0 && !run_.options.stop_requested())
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    run_.trainer.pull();
  }

 private:
  // A worker that was restarted continues at the position of the other workers.
  void take_place() override {
    // Servers accept no gradients before rank 0 has sent the weights.
    if (!run_.trainer.synchronised()) run_.trainer.synchronise();
    if (!run_.strategy.came_late()) return;
    const Placement of = run_.train().placement();
    const std::int64_t size = run_.train().size();
    Position p = run_.position();
    for (std::int64_t n = run_.trainer.steps_behind() / workers_; n > 0 && p.epoch < run_.options.epochs; --n)
      p = advance(p, size, of.global_batch, of.epoch_end);
    run_.at.epoch = p.epoch;
    run_.at.consumed = p.consumed;
  }

  std::int64_t workers_;
};

}  // namespace tutti::detail
