// SPDX-License-Identifier: MIT
#include "tools/trainer/recipe_finetune.hpp"

#include <algorithm>

#include <tutti/io/file.hpp>

namespace tutti::trainer {

void recipe_finetune(RunOptions& o) {
  o.recipe = "finetune";
  o.optimizer = "nag";
  o.epochs = 15;
  o.batch_size = 32;
  o.lr_schedule = "cosine";
  o.warmup_epochs = 1;
  o.warmup_lr = 0;
  o.wd = 5e-4;
  o.label_smoothing = 0.1;
  o.keep = 2;
  if (o.program == Program::train_cifar10) {
    o.pad_size = 2;
    return;
  }
  o.augmentation = "torchvision";
  o.crop_area = 0.35;
}

void detail::fill_finetune(RunOptions& o) {
  if (o.pretrained.empty() && o.resume.empty() && !io::path_exists(io::Path(o.run_dir) / "checkpoints"))
    o.notes.emplace_back("--recipe finetune without --pretrained: the net begins from random weights");
  // The rate is a tenth of the usual one, so that the loaded weights change little. Adam's default is small enough.
  if (o.lr || (o.optimizer != "nag" && o.optimizer != "sgd")) return;
  o.lr = 0.01 * static_cast<double>(o.global_batch_size) / 64;
  o.derived.emplace_back("lr");
}

}  // namespace tutti::trainer
