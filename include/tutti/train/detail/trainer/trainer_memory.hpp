// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <tutti/engine/executor.hpp>
#include <tutti/train/detail/trainer/memory_estimate.hpp>
#include <tutti/train/trainer.hpp>

// Definitions of trainer.hpp about the memory of a training.
namespace tutti {

TUTTI_CORE_FUNCTION MemoryEstimate Trainer::memory(std::int64_t rows, std::int64_t evaluation_rows) {
  // A device has separate memory; its executor reports the lacking amount before it allocates any.
  if (!b_.memory().on_host()) return prepare(rows, evaluation_rows);
  const std::int64_t most = std::max(micro_batches_of(rows).largest(), evaluation_rows),
                     few = std::min<std::int64_t>(most, 4);
  const auto all = sizes();
  for (const ImageSize s : all) executor_->prepare(few, true, s);
  // A step needs more than an evaluation at another size, which also makes a small training plan of this size.
  const std::size_t activations = executor_->memory().activations;
  if (all.front() != ImageSize{}) executor_->prepare(few, false);
  MemoryEstimate m = memory_in_use(rows);
  m.activations = activations * static_cast<std::size_t>(most) / static_cast<std::size_t>(few);
  return m;
}

TUTTI_CORE_FUNCTION MemoryEstimate Trainer::prepare(std::int64_t rows, std::int64_t evaluation_rows) {
  // The first evaluation plan of a size makes a training plan for its packed weights: a small one, if no step needs it.
  if (evaluation_rows > 0) {
    if (!o_.image_sizes.empty()) executor_->prepare(std::min<std::int64_t>(evaluation_rows, 4), false);
    executor_->prepare(evaluation_rows, false);
  }
  const MicroBatches parts = micro_batches_of(rows);
  for (const ImageSize s : sizes()) {
    executor_->prepare(parts.largest(), true, s);
    if (parts.smallest() > 0) executor_->prepare(parts.smallest(), true, s);
  }
  return memory_in_use(rows);
}

TUTTI_CORE_FUNCTION std::vector<ImageSize> Trainer::sizes() const {
  return o_.image_sizes.empty() ? std::vector<ImageSize>(1) : o_.image_sizes;
}

TUTTI_CORE_FUNCTION bool Trainer::plan_ahead(std::int64_t rows) {
  const MicroBatches parts = micro_batches_of(rows);
  for (const std::int64_t of_part : {parts.smallest(), parts.largest()}) {
    if (of_part == 0 || executor_->has_plan(of_part, true, size_)) continue;
    settle();
    // A share that is computed at once needs more memory with one rank fewer. The host either has it then or fails
    // then, too.
    const bool grows = o_.micro_batch == 0 && b_.memory().on_host();
    if (grows) executor_->prepare(of_part, true, size_);
    if (grows || executor_->prepare_within_memory(of_part, size_)) return true;
  }
  return false;
}

TUTTI_CORE_FUNCTION MemoryEstimate Trainer::memory_in_use(std::int64_t rows) const {
  const Executor::MemoryUse used = executor_->memory();
  MemoryEstimate m;
  m.parameters = used.parameters;
  // A process with several parts of a step has their sums in other memory; one logical rank has several parts.
  const bool sums = micro_batches_of(rows).count() > 1 || o_.logical_ranks > s_.size() || !placed_.bounds.empty();
  // With SAM, the first passes over a logical rank's parts have sums of their own.
  const bool first_sums = o_.sam.rho > 0 && o_.logical_ranks > 0 && micro_batches_of(rows).count() > 1;
  m.gradients = used.gradients * (1 + (sums ? 1 : 0) + (first_sums ? 1 : 0));
  m.optimizer = static_cast<std::size_t>(o_.optimizer.slots()) * used.parameters;
  if (has_ema()) m.optimizer += used.parameters + used.states;
  m.states = used.states;
  m.activations = used.activations;
  m.scratch = used.scratch + parts_->exchange.matrix_bytes() + (o_.sam.rho > 0 ? used.parameters + used.states : 0);
  m.packed = used.packed;
  m.committed = used.parameters + used.states + m.optimizer;
  return m;
}

}  // namespace tutti
