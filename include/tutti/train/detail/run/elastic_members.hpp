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
#include <tutti/data/sampler.hpp>
#include <tutti/engine/step/step_finisher.hpp>
#include <tutti/train/detail/run/changing_members.hpp>

namespace tutti::detail {

// Ranks that come and go between two steps. Each generation goes on from the last complete step. A rank that survives a
// peer in a step rolls the step back and repeats it with the remaining ranks; after a step it repeats what follows the
// step.
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
      if (start()) list_shares();
      return true;
    } catch (const CommunicationError&) {
      if (!members_.await_lease()) throw;
      return change_members(true);
    }
  }

  [[nodiscard]] Batch next() override {
    snapshots_[static_cast<std::size_t>(run_.at.step) % snapshots_.size()] = {run_.share,
                                                                              parts_.reports.skipped_rows()};
    return run_.train().next();
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
    if (!all_leave()) return change_members(false);
    parts_.checkpoints.stop();
    return true;
  }
  [[nodiscard]] bool recover() override {
    // A process that was given up itself ends here.
    if (!members_.await_lease()) throw;
    return change_members(true);
  }

 private:
  // The facts before each of the last few steps.
  struct StepSnapshot {
    RunShare share;
    double skipped_rows = 0;
  };

  // ---- before the first generation ----
  // Rows of the plan that is made before there are members; 0: none. With limited micro-batches it is the largest plan,
  // so that no change fails for lack of memory; so are the rows of a logical rank. Otherwise it is the smallest share
  // of a joining process.
  [[nodiscard]] std::int64_t rows_before_members() const {
    const FitOptions& o = run_.options;
    const std::int64_t most = run_.trainer.options().micro_batch;
    if (const int ranks = run_.trainer.options().logical_ranks; ranks > 0) {
      const std::int64_t rows = part_of(o.global_batch, 0, ranks).count;
      return most > 0 ? std::min(most, rows) : rows;
    }
    const std::int64_t all = o.batch_per_worker > 0 ? o.batch_per_worker : o.global_batch;
    if (most > 0) return std::min(most, all);
    if (!members_.joining()) return 0;
    return o.batch_per_worker > 0 ? all : part_of(all, 0, members_.most_members()).count;
  }
  // For a process that will join: its source reads data before others wait for it.
  void read_ahead() {
    BatchSource* const source = run_.sources.train();
    if (source == nullptr) return;  // a function makes it after the rank is known
    // The maximum number of rows of this process.
    const std::int64_t most = run_.trainer.options().micro_batch, all = run_.options.global_batch;
    const int ranks = run_.trainer.options().logical_ranks;
    Placement of = source->placement();
    of.rank = 0;
    of.world = ranks > 0 ? ranks : static_cast<int>(most > 0 ? std::max<std::int64_t>(all / most, 1) : all);
    of.logical_ranks = ranks;
    const Position p{std::clamp<std::int64_t>(run_.options.epochs - 1, 0, members_.epoch_of_joining()), 0};
    source->start(p, of);
    if (source->steps_left(p, run_.options.epochs) <= 0) return;
    (void)source->next();
    source->release();
    (void)source->take_skip_messages();  // they come again with the step
  }

  // ---- from one generation to the next ----
  // broken: the current step is repeated. Returns false if this process has left.
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
        take_state();
        report_change(since);
        place();
        return true;
      } catch (const CommunicationError&) {
        if (!members_.await_lease()) throw;
        broken = true;
      }
    }
  }
  // Returns false if a rank was lost meanwhile.
  [[nodiscard]] bool share_epoch() {
    try {
      parts_.reports.share_epoch();
      return true;
    } catch (const CommunicationError&) {
      if (!members_.await_lease()) throw;
      return false;
    }
  }
  // If steps run asynchronously on a device, more than the last one may be broken.
  void roll_back() {
    run_.trainer.roll_back();
    if (run_.share.step.number > run_.at.step) {
      const StepSnapshot& then = snapshots_[static_cast<std::size_t>(run_.at.step) % snapshots_.size()];
      run_.share = then.share;
      parts_.reports.set_skipped_rows(then.skipped_rows);
    }
    parts_.reports.take_metrics();
  }
  // Takes over the trainer's state and the common facts of the run together: they stay consistent if a rank is lost
  // meanwhile.
  void take_state() {
    RunShare theirs = run_.share;
    const StateSpan span{"run",
                         DType::i64,
                         {static_cast<std::int64_t>(sizeof theirs / sizeof(std::int64_t))},
                         std::as_writable_bytes(std::span(&theirs, 1))};
    run_.trainer.reform({&span, 1});
    run_.share = theirs;
    holds_state_ = true;
    name_generation();
  }
  // Starts the sources of this rank in the generation.
  void place() {
    parts_.reports.leave_source();
    run_.sources.make(run_.options, run_.strategy.rank(), run_.strategy.size());
    parts_.reports.enter_source();
    parts_.schedule.follow_batch();
    run_.sources.start(run_.position(), run_.strategy.rank(), run_.strategy.size(), parts_.schedule.global_batch());
    list_shares();
    // Full steps of more images may be more than the remaining steps of the epochs.
    if (run_.options.batch_per_worker > 0 && run_.share.step.number > 0 && ends()) run_.share.finish_pending = 1;
  }

  // ---- plans for a later generation ----
  // Lists the shares of a step that this rank has with one rank more or fewer; their plans are made between steps.
  void list_shares() {
    shares_ahead_.clear();
    const int rank = run_.strategy.rank(), size = run_.strategy.size();
    const EpochEnd end = run_.train().placement().epoch_end;
    if (const int ranks = run_.trainer.options().logical_ranks; ranks > 0) return list_logical_shares(ranks, end);
    // A joining rank comes after all others; a leaving rank may come before this one.
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
  std::vector<std::int64_t> shares_ahead_;  // rows; their plans are still to be made
  bool holds_state_;                        // false: a newcomer that has not taken it over yet
};

}  // namespace tutti::detail
