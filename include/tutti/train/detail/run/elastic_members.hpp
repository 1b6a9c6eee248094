// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/span.hpp>
#include <tutti/core/step_flag.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/engine/step/step_finisher.hpp>
#include <tutti/train/detail/run/changing_members.hpp>
#include <tutti/train/detail/trainer/micro_batches.hpp>

namespace tutti::detail {

// Ranks that join and leave between two steps. Each generation continues from the last complete step. If a rank is lost
// during a step, the remaining ranks roll the step back and repeat it. If it is lost after a step, they repeat the
// common work after the step.
class ElasticMembers final : public ChangingMembers {
 public:
  ElasticMembers(RunParts& parts, ElasticMembership& members)
      : ChangingMembers(parts, members), holds_state_(!members.joining()) {}

  [[nodiscard]] bool begin() override {
    if (const std::int64_t rows = rows_before_members(); rows > 0) run_.trainer.executor().prepare(rows, true);
    if (members_.joining()) {
      read_ahead();
      return change_members(false);
    }
    make_sources();
    try {
      run_.trainer.attach();
      if (start()) list_shares();
      return true;
    } catch (const CommunicationError&) {
      if (!members_.await_lease()) throw;
      return change_members(true);
    }
  }

  [[nodiscard]] Batch next() override {
    StepSnapshot& now = snapshot(run_.at.step);
    now = {run_.share, parts_.reports.skipped_rows()};
    Batch batch = run_.train().next();
    now.images = batch.global_count;
    now.skipped = batch.skipped;
    started_ = run_.at.step + 1;
    return batch;
  }
  [[nodiscard]] std::uint32_t flags(const Batch& batch) override {
    const std::uint32_t requests = request_flags();
    return requests | change_flag(batch);
  }
  [[nodiscard]] bool go_on() override {
    if (!change_announced()) {
      plan_ahead();
      return true;
    }
    // Asks again: the request may have arrived after this step began, and the next generation would not know of it.
    ask_to_leave();
    return change_members(false);
  }
  [[nodiscard]] bool recover() override {
    // A process that was removed from the job ends here.
    if (!members_.await_lease()) throw;
    return change_members(true);
  }

 private:
  // The facts before one of the last few steps, and the images of its batch: those of all ranks, and those of this rank
  // that could not be read.
  struct StepSnapshot {
    RunShare share;
    double skipped_rows = 0;
    std::int64_t images = 0, skipped = 0;
  };
  // Returns the snapshot before the step that follows `step` steps.
  [[nodiscard]] StepSnapshot& snapshot(std::int64_t step) {
    return snapshots_[static_cast<std::size_t>(step) % snapshots_.size()];
  }

  // ---- before the first generation ----
  // Returns the rows of the plan that is made before the members are known, or 0 for no plan. If micro-batches are
  // limited, it is the largest plan, so that no change fails for lack of memory; so are the rows of a logical rank.
  // Otherwise it is the smallest share of a joining process.
  [[nodiscard]] std::int64_t rows_before_members() const {
    const FitOptions& o = run_.options;
    const std::int64_t most = run_.trainer.options().micro_batch;
    if (const int ranks = run_.trainer.options().logical_ranks; ranks > 0) {
      const std::int64_t rows = part_of(o.global_batch, 0, ranks).count;
      return MicroBatches(rows, most).largest();
    }
    const std::int64_t all = o.batch_per_worker > 0 ? o.batch_per_worker : o.global_batch;
    if (most > 0) return std::min(most, all);
    if (!members_.joining()) return 0;
    return o.batch_per_worker > 0 ? all : part_of(all, 0, members_.most_members()).count;
  }
  // Lets the source of a joining process read data before other ranks wait for this process.
  void read_ahead() {
    BatchSource* const source = run_.sources.train();
    if (source == nullptr) return;  // the source is made after the rank is known
    // The largest number of rows of this process.
    const std::int64_t most = run_.trainer.options().micro_batch, all = run_.options.global_batch;
    const int ranks = run_.trainer.options().logical_ranks;
    Placement of = source->placement();
    of.rank = 0;
    of.world = ranks > 0 ? ranks : static_cast<int>(most > 0 ? std::max<std::int64_t>(all / most, 1) : all);
    of.logical_ranks = ranks;
    of.bounds.clear();
    const Position p{std::clamp<std::int64_t>(run_.options.epochs - 1, 0, members_.epoch_of_joining()), 0};
    source->start(p, of);
    if (source->steps_left(p, run_.options.epochs) <= 0) return;
    (void)source->next();
    source->release();
    (void)source->take_skip_messages();  // the step reports these messages again
  }

  // ---- from one generation to the next ----
  // broken: the current step must be repeated. Returns false if this process has left.
  [[nodiscard]] bool change_members(bool broken) {
    const bool joins = members_.joining();
    const Stopwatch since;
    const Span span(Lane::membership, broken ? "members change, one is lost" : joins ? "join" : "members change");
    for (;;) {
      if (!broken && !joins) broken = !share_epoch();
      if (broken) roll_back();
      const RunShare& share = run_.share;
      const bool at_end = share.finish_pending == 0 && (run_.at.consumed == 0 || share.step.ends_epoch != 0);
      if (!members_.next_generation({static_cast<std::uint64_t>(run_.at.step), broken, at_end})) return false;
      if (!holds_state_ && members_.has_authority())
        fail<CommunicationError>("members", "a member with the state of the run",
                                 "no such member: all that had it are lost",
                                 "--resume continues from the last checkpoint");
      try {
        take_state(broken);
        report_change(since);
        place();
        if ((run_.share.step.flags & step_flag::stop) != 0 && run_.share.finish_pending == 0 && !ends())
          parts_.checkpoints.stop();
        return true;
      } catch (const CommunicationError&) {
        if (!members_.await_lease()) throw;
        broken = true;
      }
    }
  }
  // Returns false if a rank is lost during the call.
  [[nodiscard]] bool share_epoch() {
    try {
      parts_.reports.share_epoch();
      return true;
    } catch (const CommunicationError&) {
      if (!members_.await_lease()) throw;
      return false;
    }
  }
  // Restores the trainer's state and the facts. If steps run asynchronously on a device, several steps may be broken.
  void roll_back() {
    RunReports& reports = parts_.reports;
    run_.trainer.roll_back();
    const std::int64_t whole = run_.at.step;
    if (run_.share.step.number > whole) {
      for (std::int64_t step = whole; step < run_.share.step.number; ++step) reports.add_images(-snapshot(step).images);
      run_.share = snapshot(whole).share;
      reports.set_skipped_rows(snapshot(whole).skipped_rows);
    }
    if (started_ > whole) broken_ = whole + 1;
    reports.take_metrics(true);
  }
  // If the authority has completed the step that was broken here, adds this rank's images of that step to the reports.
  void take_over_step() {
    if (std::exchange(broken_, 0) != run_.at.step || run_.at.step == 0) return;
    const StepSnapshot& then = snapshot(run_.at.step - 1);
    if (then.skipped > 0) parts_.reports.name_skipped(run_.train());
    parts_.reports.take_over_step(then.images, static_cast<double>(then.skipped));
  }
  // Takes the trainer's state and the facts of the run in one operation, so that they stay consistent if a rank is
  // lost.
  void take_state(bool broken) {
    RunShare theirs = run_.share;
    // If all members leave and no other worker takes the state, the arbiter stops the job. The members then know it
    // before this generation, and stop without a further step.
    if (!broken && members_.stop_requested()) theirs.step.flags |= step_flag::stop;
    // If a rank is lost during the common work after a step that announced a change, this generation is the change.
    // The members then repeat the work, and must not change once more after it.
    if (!is_due(members_.change(), theirs.step.ends_epoch != 0))
      theirs.step.flags &= ~std::int64_t{step_flag::membership};
    std::vector<std::int64_t> owners = parts_.shares.owners();
    const auto span_of_words = [](const char* name, std::span<std::byte> bytes) {
      return StateSpan{name, DType::i64, {static_cast<std::int64_t>(bytes.size() / sizeof(std::int64_t))}, bytes};
    };
    const StateSpan spans[] = {span_of_words("run", std::as_writable_bytes(std::span(&theirs, 1))),
                               span_of_words("shares", std::as_writable_bytes(std::span(owners)))};
    run_.trainer.reform({spans, owners.empty() ? std::size_t{1} : std::size_t{2}});
    run_.share = theirs;
    parts_.shares.owners() = std::move(owners);
    holds_state_ = true;
    take_over_step();
    parts_.reports.follow_facts();
    name_generation();
  }
  // Starts the sources of this rank in the new generation.
  void place() {
    parts_.reports.leave_source();
    run_.sources.make(run_.options, run_.strategy.rank(), run_.strategy.size());
    parts_.reports.enter_source();
    parts_.schedule.follow_batch();
    const std::vector<std::int32_t> bounds = parts_.shares.begin_generation();
    run_.sources.start(run_.position(), run_.strategy.rank(), run_.strategy.size(), parts_.schedule.global_batch(),
                       run_.share.test_rows, bounds);
    parts_.shares.restart();
    list_shares();
    // A step may now have more images than the rest of the epochs. Then the run ends, but its last work is not done
    // yet.
    if (run_.options.batch_per_worker > 0 && run_.share.step.number > 0 && ends()) run_.share.finish_pending = 1;
  }

  // ---- plans for a later generation ----
  // Lists the shares that this rank would have with one rank more or fewer. Their plans are made between steps.
  void list_shares() {
    shares_ahead_.clear();
    // Shares of rows follow times that are not known yet.
    if (run_.options.shares == Shares::rows) return;
    const int rank = run_.strategy.rank(), size = run_.strategy.size();
    const EpochEnd end = run_.train().placement().epoch_end;
    if (const int ranks = run_.trainer.options().logical_ranks; ranks > 0) return list_logical_shares(ranks, end);
    // A rank that joins comes after all ranks. A rank that leaves may come before this one.
    for (const auto& [r, n] : {std::pair{rank - 1, size - 1}, {rank, size - 1}, {rank, size + 1}}) {
      if (r < 0 || r >= n) continue;
      const std::int64_t batch = parts_.schedule.global_batch_of(n), last = run_.train().size() % batch;
      for (const std::int64_t of_all : {end == EpochEnd::short_step ? last : 0, batch})
        if (const std::int64_t rows = part_of(of_all, r, n).count; rows > 0) shares_ahead_.push_back(rows);
    }
  }
  // The first and the last logical rank have the largest and the smallest share. It does not depend on the members.
  void list_logical_shares(int ranks, EpochEnd end) {
    const std::int64_t batch = parts_.schedule.global_batch(), last = run_.train().size() % batch;
    for (const std::int64_t of_all : {end == EpochEnd::short_step ? last : 0, batch})
      for (const int rank : {ranks - 1, 0})
        if (const std::int64_t rows = part_of(of_all, rank, ranks).count; rows > 0) shares_ahead_.push_back(rows);
  }
  void plan_ahead() {
    while (!shares_ahead_.empty() && !run_.trainer.plan_ahead(shares_ahead_.back())) shares_ahead_.pop_back();
  }

  std::array<StepSnapshot, StepFinisher::kept> snapshots_;
  std::vector<std::int64_t> shares_ahead_;  // rows for which plans are not made yet
  std::int64_t started_ = 0, broken_ = 0;   // numbers of the newest step, and of the first one that was rolled back
  bool holds_state_;                        // false: a new process that has not taken the state yet
};

}  // namespace tutti::detail
