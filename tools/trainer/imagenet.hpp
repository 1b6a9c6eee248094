// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/task.hpp"

// ImageNet as train_imagenet trains on it.
namespace tutti::trainer {

[[nodiscard]] Task imagenet_task();

}  // namespace tutti::trainer
