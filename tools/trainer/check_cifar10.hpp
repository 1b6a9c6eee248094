// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/options.hpp"

namespace tutti::trainer::detail {

void check_cifar10_data(RunOptions& o);

void check_cifar10_model(RunOptions& o);

}  // namespace tutti::trainer::detail
