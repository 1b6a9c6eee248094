// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/metrics.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/train/trainer_options.hpp>

// Functions of the trainer for logical ranks.
namespace tutti::detail {

// The bounds of sums hold so many contributions (IntegerSums).
inline constexpr int most_logical_ranks = 4096;

// Returns the options. With logical ranks, checks them and prepares the backend.
inline TrainerOptions with_logical_ranks(TrainerOptions o, Backend& backend, AnyStrategy& strategy) {
  if (o.logical_ranks == 0) return o;
  constexpr const char* where = "logical ranks";
  if (o.logical_ranks < 0 || o.logical_ranks > most_logical_ranks)
    fail<UsageError>(where, {"0 to ", most_logical_ranks}, o.logical_ranks);
  if (o.compute == DType::f64)
    fail<UsageError>(where, "f32 or bf16", name_of(o.compute), "use --precision f32 or bf16");
  if (strategy.owns_weights())
    fail<UsageError>(where, "a strategy whose workers own the weights", strategy.name(),
                     "use solo, mpi, gloo, nccl or ps");
  if (strategy.size() > o.logical_ranks && strategy.members() == nullptr)
    fail<UsageError>(where, {"at most ", o.logical_ranks, " processes, one for each logical rank"}, strategy.size(),
                     "start fewer processes or give --logical-ranks a larger number");
  backend.fix_division();
  if (o.logical_ranks > strategy.size()) backend.reuse_weights();
  return o;
}

// Returns the rows [begin, end) of a view of images of so many bytes, with labels of so many numbers.
[[nodiscard]] inline BatchView rows_of(BatchView v, std::int64_t begin, std::int64_t end, std::int64_t image_bytes,
                                       std::int64_t label_numbers) {
  v.rows = end - begin;
  if (v.images != nullptr) v.images += begin * image_bytes;
  if (v.labels != nullptr) v.labels += begin * label_numbers;
  if (v.windows != nullptr) v.windows += begin;
  return v;
}

}  // namespace tutti::detail
