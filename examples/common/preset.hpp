// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include <tutti/core/error.hpp>

#include "options.hpp"

namespace tutti::examples {

// Sets the defaults that a preset stands for.
inline void apply_preset(RunOptions& o, const std::string& name) {
  if (name.empty()) return;
  const char* known = o.program == Program::train_cifar10 ? "cifar-resnet50-28" : "torchvision";
  if (name != known) fail<UsageError>("--preset", known, name);
  o.preset = name;
  if (name == "torchvision") {
    o.augmentation = name;
    o.epochs = 90;
    o.lr_schedule = "steps";
    o.zero_gamma = false;
    return;
  }
  o.network = "resnet_preact";
  o.depth = 50;
  o.image_shape = "3,28,28";
  o.random_crop = o.random_mirror = false;
  o.pad_size = 0;
  o.batch_size = 128;
  o.wd = 1e-4;
  o.epochs = 15;
  o.stop_at_train_top1 = 0.92;
}

}  // namespace tutti::examples
