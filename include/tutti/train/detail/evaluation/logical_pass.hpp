// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <tutti/core/span_of.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/train/trainer.hpp>

// One pass of an evaluation over a source. If the trainer has logical ranks, the results are the same bits on any
// number of processes.
namespace tutti::detail {

// The batches of the pass, cut into the parts that are evaluated at once: the rows of each logical rank.
class LogicalPass {
 public:
  // Starts the source at its begin, with the logical ranks of the trainer, and its shares of them. Without logical
  // ranks the shares are equal, also if those of the steps are not: each process has the memory for as many rows.
  LogicalPass(const Trainer& trainer, BatchSource& source) : logical_(trainer.options().logical_ranks > 0) {
    Placement to = source.placement();
    to.logical_ranks = trainer.options().logical_ranks;
    to.bounds.clear();
    if (Placement steps = trainer.placement(); logical_ && steps.rank == to.rank && steps.world == to.world)
      to.bounds = std::move(steps.bounds);
    if (to == source.placement())
      source.start({0, 0});
    else
      source.start({0, 0}, to);
    placement_ = to;
  }

  // Calls f(begin, end, logical rank) for each part of the batch that has rows.
  template <class F>
  void parts(const Batch& b, F&& f) const {
    if (!logical_) {
      if (b.count > 0) f(std::int64_t{0}, b.count, 0);
      return;
    }
    const Part ranks = placement_.logical();
    const std::int64_t first = placement_.rows(b.global_count).begin;
    for (std::int64_t v = ranks.begin; v < ranks.begin + ranks.count; ++v) {
      const Part rows = part_of(b.global_count, static_cast<int>(v), placement_.logical_ranks);
      if (rows.count > 0) f(rows.begin - first, rows.begin - first + rows.count, static_cast<int>(v));
    }
  }

 private:
  bool logical_;
  Placement placement_;
};

// A sum over all parts of a pass. Each logical rank has a sum of its own, in the order of the batches, so the result
// does not depend on the number of processes.
class SumOfParts {
 public:
  explicit SumOfParts(const Trainer& trainer)
      : sums_(static_cast<std::size_t>(trainer.options().logical_ranks > 0 ? trainer.options().logical_ranks : 1)) {}

  void add(int logical_rank, double value) { sums_[static_cast<std::size_t>(logical_rank)] += value; }
  // Returns the sum over all ranks, which all call it, and starts again.
  [[nodiscard]] double take(AnyStrategy& strategy) {
    std::vector<double> all = std::exchange(sums_, std::vector<double>(sums_.size()));
    strategy.sum(span_of(all));
    double sum = 0;
    for (const double v : all) sum += v;
    return sum;
  }

 private:
  std::vector<double> sums_;
};

}  // namespace tutti::detail
