// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <tutti/core/math.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/train/detail/run/run_parts.hpp>

namespace tutti::detail {

// The processes that do a run's steps, and how the run continues from step to step when they change. There is one class
// for each kind:
//   FixedMembers        the same ranks do all steps together
//   IndependentWorkers  the same ranks, which do not wait for each other: servers own the weights
//   AssignedSteps       workers that do not wait for each other, and that join and leave; servers assign their steps
//   ElasticMembers      ranks join and leave between two steps, and a step that a lost rank broke is repeated
//   RestartedMembers    the processes save and end, and new processes continue from the checkpoint
// The order of these calls, and of the operations of all ranks in them, is a protocol between ranks.
class RunMembers {
 public:
  virtual ~RunMembers() = default;
  RunMembers(const RunMembers&) = delete;
  RunMembers& operator=(const RunMembers&) = delete;

  // Starts the run in this process, or joins the job. Returns false if this process has left the job.
  [[nodiscard]] virtual bool begin() = 0;
  // Returns whether no step is left for this process.
  [[nodiscard]] virtual bool ends() const { return parts_.schedule.ends(); }

  // ---- a step ----
  // Returns the batch of the next step.
  [[nodiscard]] virtual Batch next() { return run_.train().next(); }
  // Returns the number of workers' steps for which one step counts.
  [[nodiscard]] virtual std::int64_t weight() const { return 1; }
  // Returns whether the members may change.
  [[nodiscard]] virtual bool may_change() const { return false; }
  // Returns the flags that this process sends in a step of this batch because of its members.
  [[nodiscard]] virtual std::uint32_t flags(const Batch& /*batch*/) { return 0; }
  // Call it when the step has been started, before its metrics are fetched. Returns false if this process has left.
  [[nodiscard]] virtual bool step_started(const Batch& /*batch*/) { return true; }

  // ---- after a step and its common work ----
  // Changes the members if the step announced it. Returns false if this process has left.
  [[nodiscard]] virtual bool go_on() { return true; }
  // Call it in the handler of a CommunicationError. Continues without the lost ranks, or throws the error again.
  // Returns false if this process has left.
  [[nodiscard]] virtual bool recover() { throw; }

  // ---- epochs and the end ----
  virtual void epoch_begins() {}
  // Waits for the steps of other workers that the final evaluation and checkpoint must include.
  virtual void await_others() {}
  // Call it after the last work of a run.
  virtual void end() {}

 protected:
  explicit RunMembers(RunParts& parts) : parts_(parts), run_(parts.run) {}

  // Makes the sources of this rank.
  void make_sources() {
    run_.sources.make(run_.options, run_.strategy.rank(), run_.strategy.size());
    run_.share.first_batch = run_.sources.first_batch();
    run_.share.test_rows = run_.sources.test_rows();
    parts_.reports.resume_epoch();
  }
  // Call it after make_sources(). Starts the first generation of the job, or the only one. Returns false if no step is
  // left.
  bool start() {
    number_generations();
    take_place();
    run_.coordinator.on_membership_change();
    parts_.schedule.follow_batch();
    parts_.shares.begin();
    if (ends()) return false;
    if (run_.options.batch_per_worker > 0 || !run_.sources.have_logical_ranks())
      run_.sources.start(run_.position(), run_.strategy.rank(), run_.strategy.size(), parts_.schedule.global_batch(),
                         run_.share.test_rows);
    else
      start_train();
    return true;
  }
  void name_generation() { run_.at.generation = run_.share.before_generations + generation(); }

  RunParts& parts_;
  RunContext& run_;

 private:
  // Returns the number of this generation in the job, from 1.
  [[nodiscard]] virtual std::int64_t generation() const { return 1; }
  // The trainer decides about shares: those of the source may be of an earlier run.
  void start_train() {
    Placement to = run_.train().placement();
    std::vector<std::int32_t> bounds = run_.trainer.placement().bounds;
    if (to.bounds == bounds) return run_.train().start(run_.position());
    to.bounds = std::move(bounds);
    run_.train().start(run_.position(), to);
  }
  // Moves the position of a worker that arrives late to the position of the other workers.
  virtual void take_place() {}

  // Generation numbers also grow if the run is resumed from an earlier step than its last one.
  void number_generations() {
    const std::int64_t own = run_.at.generation;
    if (!may_change() && own == 0) return;
    auto latest = static_cast<double>(run_.strategy.rank() == 0 ? run_.coordinator.latest_generation() : 0);
    // Also set before the sum: if the sum fails because a rank is lost, the other ranks take this number.
    run_.share.before_generations = std::max<std::int64_t>(own, math::llround(latest));
    run_.strategy.sum({&latest, 1});
    run_.share.before_generations = std::max<std::int64_t>(own, math::llround(latest));
    name_generation();
  }
};

}  // namespace tutti::detail
