// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/options.hpp"

// The recipe finetune: training from the weights of another run, with few images.
namespace tutti::trainer {

// Sets its defaults.
void recipe_finetune(RunOptions& o);

namespace detail {

// Sets the values that depend on the batch size.
void fill_finetune(RunOptions& o);

}  // namespace detail

}  // namespace tutti::trainer
