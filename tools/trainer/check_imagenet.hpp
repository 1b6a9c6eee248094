// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/options.hpp"

namespace tutti::trainer::detail {

void check_imagenet_data(RunOptions& o);

void check_imagenet_model(RunOptions& o);

// Checks the options that must be known before the batch and the schedule are checked.
void check_imagenet_run(RunOptions& o);

// Checks the epochs, rates and factor of mode `steps`. If no mode is given, each of these options selects that mode.
void check_imagenet_steps(RunOptions& o);

}  // namespace tutti::trainer::detail
