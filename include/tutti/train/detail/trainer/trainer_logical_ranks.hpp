// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/data/sampler.hpp>
#include <tutti/train/detail/trainer/logical_ranks.hpp>
#include <tutti/train/detail/trainer/step_parts.hpp>
#include <tutti/train/trainer.hpp>

// Definitions of trainer.hpp about logical ranks.
namespace tutti {

TUTTI_CORE_FUNCTION Trainer::Pending Trainer::step_by_rank(const Batch& batch, double lr, std::uint32_t flags) {
  const Placement& of_step = placed();
  const Part ranks = of_step.logical(), rows = of_step.rows(batch.global_count);
  if (batch.count != rows.count)
    fail<UsageError>("trainer", {rows.count, " of ", batch.global_count, " rows, for its logical ranks"}, batch.count,
                     "set Placement::logical_ranks of the loader too, and bounds after set_shares()");
  rank_views_.clear();
  for (std::int64_t v = ranks.begin; v < ranks.begin + ranks.count; ++v) {
    const Part of = part_of(batch.global_count, static_cast<int>(v), o_.logical_ranks);
    rank_views_.push_back(view_of(batch, of.begin - rows.begin, of.begin - rows.begin + of.count));
  }
  parts_->exchange.integers()->leave_out(batch.skipped);
  return step_by_rank(batch.global_count, lr, flags);
}

// Cuts the rows of each logical rank of this process into micro-batches. A process without a logical rank takes part
// with zeros.
TUTTI_CORE_FUNCTION Trainer::Pending Trainer::step_by_rank(std::int64_t global_rows, double lr, std::uint32_t flags) {
  const Graph& g = executor_->graph();
  const Shape& image = g[g.images].shape;
  const std::int64_t numbers = g[g.labels].shape.row_numel();
  micro_batches_.clear();
  last_of_.clear();
  for (const BatchView& v : rank_views_) {
    const std::int64_t pixels = v.size == ImageSize{} ? image[2] * image[3] : v.size.height * v.size.width;
    const std::int64_t bytes = image[1] * pixels;
    const MicroBatches parts = micro_batches_of(v.rows);
    for (std::int64_t i = 0; i < parts.count(); ++i) {
      micro_batches_.push_back(detail::rows_of(v, parts.begin(i), parts.begin(i + 1), bytes, numbers));
      last_of_.push_back(i + 1 == parts.count() ? 1 : 0);
    }
  }
  if (micro_batches_.empty()) {
    micro_batches_.emplace_back();
    last_of_.push_back(0);
  }
  // Batch norm counts the batches of the first logical rank, whatever the processes are.
  const std::int64_t batches = micro_batches_of(part_of(global_rows, 0, o_.logical_ranks).count).count();
  const auto first = static_cast<std::uint64_t>(placed().logical().begin);
  return start({span_of(micro_batches_), batches, span_of(last_of_), first}, global_rows, lr, flags);
}

TUTTI_CORE_FUNCTION void Trainer::set_shares(std::vector<std::int32_t> bounds) {
  Placement next{.rank = s_.rank(), .world = s_.size(), .logical_ranks = o_.logical_ranks};
  next.bounds = std::move(bounds);
  next.check();
  if (o_.logical_ranks == 0 && !next.bounds.empty() && !b_.memory().on_host())
    fail<UsageError>("trainer", "a backend on the processor, for shares of rows", b_.name(),
                     "set logical_ranks, or leave the shares out");
  placed_ = std::move(next);
}

TUTTI_CORE_FUNCTION Placement Trainer::placement() const {
  Placement now = placed_;
  now.rank = s_.rank();
  now.world = s_.size();
  now.logical_ranks = o_.logical_ranks;
  return now;
}

TUTTI_CORE_FUNCTION double Trainer::seconds_computed() const { return parts_->steps->seconds_computed(); }

// Returns the placement of the next step. Allocates no memory.
TUTTI_CORE_FUNCTION const Placement& Trainer::placed() {
  placed_.rank = s_.rank();
  placed_.world = s_.size();
  placed_.logical_ranks = o_.logical_ranks;
  return placed_;
}

}  // namespace tutti
