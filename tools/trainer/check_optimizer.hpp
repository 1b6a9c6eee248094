// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/options.hpp"

// Checks the options of the loss, the optimizer and the schedule, and sets their defaults.
namespace tutti::trainer::detail {

// Returns whether the schedule begins with a rise of the rate, which a warm-up would contradict.
[[nodiscard]] bool has_own_rise(const RunOptions& o);

// Comes before check_schedule(). The batch size must be known.
void check_optimizer(RunOptions& o);

void check_schedule(RunOptions& o);

void check_loss(RunOptions& o);

}  // namespace tutti::trainer::detail
