// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/options.hpp"

namespace tutti::trainer::detail {

void check_cifar10_data(RunOptions& o);

void check_cifar10_model(RunOptions& o);

// Sets the values of a recipe that depend on the batch size or the length of the run.
void fill_recipe(RunOptions& o);

}  // namespace tutti::trainer::detail
