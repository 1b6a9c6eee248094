// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "tools/trainer/options.hpp"

namespace tutti::trainer {

// Sets the defaults that a preset stands for.
void apply_preset(RunOptions& o, const std::string& name);

// Sets the defaults that a recipe stands for; fill_recipe() has those that depend on other options.
void apply_recipe(RunOptions& o, const std::string& name);

}  // namespace tutti::trainer
