// SPDX-License-Identifier: MIT
#pragma once

#include "tools/trainer/task.hpp"

// The task of train_imagenet: images and output for ImageNet.
namespace tutti::trainer {

[[nodiscard]] Task imagenet_task();

}  // namespace tutti::trainer
