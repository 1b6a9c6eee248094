// SPDX-License-Identifier: MIT
#include "tools/trainer/preset.hpp"

#include <algorithm>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

namespace tutti::trainer {

namespace {

// The defaults of MXNet's train_cifar10.py with the arguments of its tutorials, --network resnet --num-layers 50.
void preset_train_cifar10(RunOptions& o) {
  o.network = "resnet";
  o.depth = 50;
  o.image_shape = "3,28,28";
  o.rgb_mean = "123.68,116.779,103.939";
  o.rgb_std = "1,1,1";
  o.random_crop = o.random_mirror = false;
  o.pad_size = 4;
  o.fill_value = 127;
  o.data_nthreads = 4;
  o.batch_size = 128;
  o.batch_of = "worker";
  o.optimizer = "sgd";
  o.lr = 0.05;
  o.mom = 0.9;
  o.wd = 1e-4;
  o.epochs = 300;
  o.lr_schedule = "steps";
  o.lr_step_epochs = "200,250";
  o.lr_factor = 0.1;
  o.warmup_epochs = 0;
  o.disp_batches = 20;
}

// The defaults of train_resnet.py, the elastic script for ImageNet.
void preset_train_resnet(RunOptions& o) {
  o.batch_size = 128;
  o.batch_of = "job";
  o.optimizer = "nag";
  o.lr = 6.4;
  o.mom = 0.9;
  o.wd = 1e-4;
  o.epochs = 90;
  o.lr_schedule = "steps";
  o.lr_step_epochs = "40,60";
  o.lr_factor = 0.1;
  o.warmup_epochs = 0;
  o.warmup_lr = 0.001;
  o.zero_gamma = false;
  o.decay_biases = true;
  o.data_nthreads = 4;
  o.disp_batches = 50;
  o.fp16 = false;
  o.loss_scale = "1";
  o.evaluate_every = 1;
}

}  // namespace

void apply_preset(RunOptions& o, const std::string& name) {
  if (name.empty()) return;
  const auto& known = o.traits().presets;
  if (std::find(known.begin(), known.end(), name) == known.end())
    fail<UsageError>("--preset", known[0] + std::string(" or ") + known[1], "'" + printable(name) + "'");
  o.preset = name;
  if (name == "mxnet") {
    o.log_lines = "mxnet";
    return o.program != Program::train_cifar10 ? preset_train_resnet(o) : preset_train_cifar10(o);
  }
  if (name == "torchvision") {
    o.augmentation = name;
    o.epochs = 90;
    o.lr_schedule = "steps";
    o.zero_gamma = false;
    o.decay_biases = false;
    o.evaluate_every = 1;
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

}  // namespace tutti::trainer
