// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/options.hpp"

namespace tutti::trainer::detail {

void check_imagenet_data(RunOptions& o);

void check_imagenet_model(RunOptions& o);

// Checks what must be known before the batch and the schedule are checked.
void check_imagenet_run(RunOptions& o);

// Checks the epochs, rates and factor of the mode steps. Each of them selects that mode if no mode is given.
void check_imagenet_steps(RunOptions& o);

}  // namespace tutti::trainer::detail
