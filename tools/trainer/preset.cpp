// SPDX-License-Identifier: MIT
#include "tools/trainer/preset.hpp"

#include <algorithm>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/printable.hpp>

#include "tools/trainer/recipe_finetune.hpp"

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

void apply_recipe(RunOptions& o, const std::string& name) {
  if (name.empty()) return;
  const bool small = o.program == Program::train_cifar10;
  if (name != "finetune" && (name != "fast" || !small))
    fail<UsageError>("--recipe", small ? "fast or finetune" : "finetune", "'" + printable(name) + "'");
  if (!o.preset.empty()) fail<UsageError>("--recipe", "no --preset together with it", o.preset);
  if (name == "finetune") return recipe_finetune(o);
  o.recipe = name;
  // The net and the numbers come from Jordan 2024, "94% on CIFAR-10 in 3.29 seconds on a single GPU". 1000 divides the
  // number of CIFAR-10's images, so that all batches have the same size.
  o.network = "cifar_fast";
  o.depth = 8;
  o.epochs = 10;
  o.batch_size = 1000;
  o.mom = 0.85;
  o.wd = 0.0153 / 11.5;
  o.label_smoothing = 0.2;
  o.pad_size = 2;
  o.pad_mode = "reflect";
  // For a pixel x, (x - 128) / 64 is exact in bfloat16. Constant padding of 128 becomes zero for the whitening layer.
  o.rgb_mean = "128";
  o.rgb_std = "64";
  o.fill_value = 128;
  o.precision = "bf16";
  o.any_half = true;
  o.tta = 2;
  o.ema_decay = 0.97;  // replaces Jordan's lookahead
  // Evaluates only at the end.
  o.evaluate_every = o.save_period = 1'000'000;
}

}  // namespace tutti::trainer
