// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <tutti/cluster/elastic_membership.hpp>
#include <tutti/core/error.hpp>
#include <tutti/strategy/elastic.hpp>

#include "mesh.hpp"
#include "scheduler.hpp"

namespace tutti::simulation {

// What a worker of an elastic job does if a loop of sums replaces the training. A scenario overrides what differs. W:
// what the scenario knows of a worker.
template <class W>
class ElasticLoop {
 public:
  // steps_an_epoch: 0 if no change waits for the end of an epoch.
  ElasticLoop(W& me, Elastic<MeshFactory>& strategy, std::int64_t steps, std::int64_t steps_an_epoch)
      : me_(me), strategy_(strategy), members_(*strategy.members()), steps_(steps), steps_an_epoch_(steps_an_epoch) {}
  virtual ~ElasticLoop() = default;
  ElasticLoop(const ElasticLoop&) = delete;
  ElasticLoop& operator=(const ElasticLoop&) = delete;

  // Returns the exit code of the process.
  [[nodiscard]] int run() {
    if (members_.joining()) {
      load();
      if (!members_.next_generation({})) return 0;
    }
    for (;;) {
      try {
        take_state();
        while (state_.step < steps_) {
          const auto sums = step();
          ++state_.step;
          state_.samples += static_cast<std::int64_t>(sums[0]);
          reached(state_.step);
          if (sums[1] > 0) return static_cast<int>(ExitCode::terminated);
          if (sums[2] == 0 || state_.step == steps_) continue;
          if (!next_generation(false)) return 0;
          take_state();
        }
        break;
      } catch (const CommunicationError&) {
        if (gives_up() || !members_.await_lease()) throw;
        if (!next_generation(true)) return 0;
      }
    }
    if (const std::int64_t all = steps_ * batch; state_.samples != all * (all - 1) / 2)
      Scheduler::current()->fail(me_.process->name + " has counted samples that sum to " +
                                 std::to_string(state_.samples));
    finish();
    return 0;
  }

 protected:
  // Takes the time in which a worker that joins loads its data.
  virtual void load() {}
  // This process has entered a generation.
  virtual void entered() {}
  // It would have the authority, and has no state.
  virtual void lack_state() {
    fail<CommunicationError>("members", "a member with the state of the run", "no such member");
  }
  virtual void take_over() { me_.holds = true; }
  // It has its lease, for which it asked at this time.
  virtual void may_write(Nanos /*asked*/) {}
  // Takes the time of step `step`.
  virtual void compute(std::int64_t step) = 0;
  virtual void reached(std::int64_t /*step*/) {}
  virtual void finish() {}  // all steps are done
  [[nodiscard]] virtual bool gives_up() { return false; }

  W& me_;
  Elastic<MeshFactory>& strategy_;
  ElasticMembership& members_;

 private:
  static constexpr std::int64_t batch = 10;
  // What the ranks train: the number of complete steps and the sum of the samples in them.
  struct State {
    std::int64_t step = 0, samples = 0;
  };

  [[nodiscard]] bool ends_epoch(std::int64_t step) const { return steps_an_epoch_ > 0 && step % steps_an_epoch_ == 0; }
  [[nodiscard]] bool next_generation(bool broken) {
    return members_.next_generation({static_cast<std::uint64_t>(state_.step), broken, ends_epoch(state_.step)});
  }
  void take_state() {
    entered();
    if (me_.joins && !me_.holds && members_.has_authority()) lack_state();
    State theirs = state_;
    StateSpan span{"state", DType::i64, {2}, std::as_writable_bytes(std::span(&theirs, 1))};
    strategy_.synchronise({&span, 1});
    if (theirs.step < state_.step)
      Scheduler::current()->fail(me_.process->name + " loses step " + std::to_string(state_.step));
    state_ = theirs;
    take_over();
  }
  // Does a step with the other ranks. Returns their sums: of the samples, and of the flags.
  [[nodiscard]] std::array<double, 3> step() {
    const Nanos asked = Scheduler::current()->now();
    if (!members_.await_lease()) fail_without_lease();
    may_write(asked);
    if (std::exchange(me_.signalled, false)) members_.ask_to_leave();
    compute(state_.step + 1);
    using Change = ElasticMembership::Change;
    const Change change = members_.change();
    const bool changes = change == Change::after_step || (change == Change::after_epoch && ends_epoch(state_.step + 1));
    std::array<double, 3> sums{0, members_.stop_requested() ? 1.0 : 0.0, changes ? 1.0 : 0.0};
    for (std::int64_t i = strategy_.rank(); i < batch; i += strategy_.size())
      sums[0] += static_cast<double>(state_.step * batch + i);
    strategy_.sum(sums);
    return sums;
  }

  std::int64_t steps_, steps_an_epoch_;
  State state_;
};

}  // namespace tutti::simulation
