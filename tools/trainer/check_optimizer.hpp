// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/options.hpp"

// Checks the options of the loss, the optimizer and the schedule, and sets their defaults.
namespace tutti::trainer::detail {

// Comes before check_schedule(). The batch size must be known.
void check_optimizer(RunOptions& o);

void check_schedule(RunOptions& o);

void check_loss(RunOptions& o);

}  // namespace tutti::trainer::detail
