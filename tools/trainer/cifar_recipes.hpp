// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "tools/trainer/recipes.hpp"

// The records for CIFAR-10 as recipes of train_cifar10.
namespace tutti::trainer {

void add_cifar_recipes(std::vector<Recipe>& all);

}  // namespace tutti::trainer
