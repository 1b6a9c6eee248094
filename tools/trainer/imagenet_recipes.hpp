// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "tools/trainer/recipes.hpp"

namespace tutti::trainer {

// Adds the recipes for ResNet-50 on ImageNet.
void add_imagenet_recipes(std::vector<Recipe>& to);

}  // namespace tutti::trainer
