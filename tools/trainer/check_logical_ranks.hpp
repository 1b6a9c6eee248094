// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "tools/trainer/check.hpp"
#include "tools/trainer/options.hpp"

// Checks --logical-ranks: a job that computes the same bits on any number of processes.
namespace tutti::trainer::detail {

// Refuses options whose results depend on the number of processes, on measured times or on one process only. Call it
// when the strategy and the backend are known.
void check_logical_ranks(RunOptions& o, const StartedJob& job);

// Returns the number of ranks that --batch-size and --accumulate count for.
[[nodiscard]] std::int64_t ranks_of_batch(const RunOptions& o, int processes);

}  // namespace tutti::trainer::detail
