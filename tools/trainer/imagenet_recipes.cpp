// SPDX-License-Identifier: MIT
#include "tools/trainer/imagenet_recipes.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace tutti::trainer {

namespace {

// Sets what all of them have in common: ResNet-50, images prepared as by torchvision, evaluation after each epoch.
void common(RunOptions& o, std::int64_t batch, std::int64_t epochs) {
  o.model = "resnet50";
  o.augmentation = "torchvision";
  o.evaluate_every = 1;
  o.batch_size = batch;
  o.batch_of = "job";
  o.epochs = epochs;
  o.bn_eps = 1e-5;
}

// Goyal et al. 2017, "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", arXiv 1706.02677, sections 2.2 and
// 5.1.
void goyal(RunOptions& o) {
  common(o, 8192, 90);
  o.optimizer = "nag";
  o.mom = 0.9;
  o.wd = 1e-4;
  o.decay_biases = true;
  o.zero_gamma = true;
  o.lr_schedule = "steps";
  o.lr_step_epochs = "30,60,80";
  o.lr_factor = 0.1;
  o.warmup_epochs = 5;
}
void complete_goyal(RunOptions& o) {
  // The warmup begins at the rate for 256 images, whatever the batch is.
  if (o.warmup_lr) return;
  o.warmup_lr = std::min(0.1, *o.lr);
  o.derived.emplace_back("warmup-lr");
}

// pytorch/vision, the command for ResNet50_Weights.IMAGENET1K_V2 (vision/3995) and the defaults of
// references/classification/train.py.
void torchvision_v2(RunOptions& o) {
  common(o, 1024, 600);
  o.optimizer = "sgd";
  o.mom = 0.9;
  o.wd = 2e-5;
  o.decay_biases = true;
  o.zero_gamma = false;
  o.label_smoothing = 0.1;
  o.lr_schedule = "cosine";
  o.lr_updates = "epoch";
  o.warmup_epochs = 5;
  o.image_size = 176;
  o.eval_size = 224;
  o.eval_resize = 232;
  o.auto_augment = "trivial";
  o.random_erase = 0.1;
  o.mixup = 0.2;
  o.cutmix = 1;
  o.mix_pairs = "previous";
  o.repeated_aug = 4;
  o.ema_decay = 0.99998;
  o.ema_schedule = "torchvision";
  o.ema_every = 32;
}
void complete_torchvision_v2(RunOptions& o) {
  if (o.warmup_lr) return;
  o.warmup_lr = 0.01 * *o.lr;
  o.derived.emplace_back("warmup-lr");
}

// Wightman, Touvron and Jégou 2021, "ResNet strikes back", arXiv 2110.00476, table 2, with timm's defaults.
void rsb(RunOptions& o, std::int64_t epochs) {
  common(o, 2048, epochs);
  o.optimizer = "lamb";
  o.wd = 0.02;
  o.decay_biases = false;
  o.zero_gamma = true;
  o.bce_loss = true;
  o.bce_target_thresh = 0.2;
  o.lr_schedule = "cosine";
  o.lr_updates = "epoch";
  o.warmup_prefix = false;
  o.warmup_epochs = 5;
  o.warmup_lr = 1e-4;
  o.image_size = o.eval_size = 224;
  o.crop_pct = 0.95;
  o.interpolation = "random";
  o.auto_augment = "rand-m7-mstd0.5-inc1";
  o.mixup = 0.1;
  o.cutmix = 1;
  o.mix_pairs = "reversed";
  o.repeated_aug = 3;
  o.drop_path = 0.05;
}
void rsb_a1(RunOptions& o) {
  rsb(o, 600);
  o.wd = 0.01;
  o.label_smoothing = 0.1;
  o.mixup = 0.2;
}
void rsb_a2(RunOptions& o) { rsb(o, 300); }
void rsb_a3(RunOptions& o) {
  rsb(o, 100);
  o.image_size = 160;
  o.auto_augment = "rand-m6-mstd0.5-inc1";
  o.repeated_aug = 1;
  o.drop_path = 0;
}
void complete_rsb(RunOptions& o) {
  // timm's cosine ends at a rate of 1e-6, whatever the peak is.
  if (o.cosine_alpha > 0 || o.lr_schedule != "cosine" || !(*o.lr > 1e-6)) return;
  o.cosine_alpha = 1e-6 / *o.lr;
  o.derived.emplace_back("cosine-alpha");
}

Recipe rsb_recipe(const char* name, const char* published, std::int64_t epochs, double rate,
                  void (*apply)(RunOptions&)) {
  return {.name = name,
          .source = "Wightman et al. 2021, arXiv 2110.00476, and timm",
          .published = published,
          .epochs = epochs,
          .apply = apply,
          .rate = rate,
          .batch = 2048,
          .rule = RateRule::root,
          .complete = complete_rsb,
          .differs = "the box of cutmix as in timm 1.0.31, whose width may be larger by one pixel than in 2021"};
}

// libffcv/ffcv-imagenet, rn50_configs/rn50_<epochs>_epochs.yaml and train_imagenet.py. Its sizes rise linearly between
// two epochs of the file and are rounded to multiples of 32, so that training changes once from 160 to 192 pixels.
void ffcv(RunOptions& o, std::int64_t epochs, std::int64_t larger_after) {
  common(o, 4096, epochs);
  o.optimizer = "sgd";
  o.mom = 0.9;
  o.wd = 1e-4;
  o.decay_biases = true;
  // Parameters whose names contain "bn" do not decay there, and batch norm of a shortcut has another name.
  o.decay_of = "*.downsample.1";
  o.zero_gamma = false;
  o.label_smoothing = 0.1;
  o.lr_schedule = "linear";
  o.lr_end = 0;
  o.warmup_epochs = 2;
  o.image_size = 160;
  o.image_size_steps = std::to_string(larger_after) + ":192";
  o.eval_size = 256;
  o.crop_pct = 0.875;
  o.blur_pool = true;
  o.tta = 1;
}
template <std::int64_t epochs, std::int64_t larger_after>
void ffcv_of(RunOptions& o) {
  ffcv(o, epochs, larger_after);
}
void complete_ffcv(RunOptions& o) {
  if (o.warmup_lr) return;
  o.warmup_lr = 1e-4 * *o.lr;
  o.derived.emplace_back("warmup-lr");
}
Recipe ffcv_recipe(const char* name, const char* published, std::int64_t epochs, void (*apply)(RunOptions&)) {
  return {.name = name,
          .source = "libffcv/ffcv-imagenet, rn50_configs",
          .published = published,
          .epochs = epochs,
          .apply = apply,
          .rate = 1.7,
          .batch = 4096,
          .rule = RateRule::linear,
          .complete = complete_ffcv,
          .differs =
              "images are scaled with a bilinear filter, there by area from stored images of 500 pixels; "
              "mirrored views at the end of the run only"};
}

}  // namespace

void add_imagenet_recipes(std::vector<Recipe>& to) {
  to.push_back({.name = "goyal",
                .source = "Goyal et al. 2017, arXiv 1706.02677",
                .published = "76.26 % top-1",
                .epochs = 90,
                .apply = goyal,
                .rate = 3.2,
                .batch = 8192,
                .rule = RateRule::linear,
                .complete = complete_goyal,
                .differs = "the classifier's weights begin as He et al. 2015's, not normal with deviation 0.01; batch "
                           "norm sees the rows of a pass of a rank, there 32"});
  to.push_back({.name = "torchvision-v2",
                .source = "pytorch/vision, ResNet50_Weights.IMAGENET1K_V2",
                .published = "80.858 % top-1",
                .epochs = 600,
                .apply = torchvision_v2,
                .rate = 0.5,
                .batch = 1024,
                .rule = RateRule::linear,
                .complete = complete_torchvision_v2,
                .differs = "the views of an image go to one rank, one after another, there to different ranks"});
  to.push_back(rsb_recipe("rsb-a1", "80.4 % top-1", 600, 0.005, rsb_a1));
  to.push_back(rsb_recipe("rsb-a2", "79.8 % top-1", 300, 0.005, rsb_a2));
  to.push_back(rsb_recipe("rsb-a3", "78.1 % top-1", 100, 0.008, rsb_a3));
  to.push_back(ffcv_recipe("ffcv-16", "73.8 % top-1", 16, ffcv_of<16, 12>));
  to.push_back(ffcv_recipe("ffcv-24", "75.6 % top-1", 24, ffcv_of<24, 19>));
  to.push_back(ffcv_recipe("ffcv-32", "76.6 % top-1", 32, ffcv_of<32, 25>));
  to.push_back(ffcv_recipe("ffcv-40", "77.2 % top-1", 40, ffcv_of<40, 32>));
  to.push_back(ffcv_recipe("ffcv-56", "78.0 % top-1", 56, ffcv_of<56, 45>));
  to.push_back(ffcv_recipe("ffcv-88", "78.4 % top-1", 88, ffcv_of<88, 71>));
}

}  // namespace tutti::trainer
