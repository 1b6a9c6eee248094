// SPDX-License-Identifier: MIT
#include "tools/trainer/imagenet_recipes.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
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
void complete_rsb(RunOptions& o) {
  // timm's cosine ends at a rate of 1e-6, whatever the peak is.
  if (o.cosine_alpha > 0 || o.lr_schedule != "cosine" || !(*o.lr > 1e-6)) return;
  o.cosine_alpha = 1e-6 / *o.lr;
  o.derived.emplace_back("cosine-alpha");
}

constexpr char shortcuts[] = "*.downsample.*";
// Nets that are no ResNets have no such parameters.
void decay_of_resnets_only(RunOptions& o, const char* pattern) {
  if (o.decay_of == pattern && o.model.find("res") == std::string::npos) o.decay_of.clear();
}

// libffcv/ffcv-imagenet, rn50_configs/rn50_<epochs>_epochs.yaml and train_imagenet.py. Its sizes rise linearly between
// two epochs of the file and are rounded to multiples of 32, so that training changes once from 160 to 192 pixels.
void ffcv(RunOptions& o, std::int64_t epochs, std::int64_t larger_after) {
  common(o, 4096, epochs);
  o.optimizer = "sgd";
  o.mom = 0.9;
  o.wd = 1e-4;
  o.decay_biases = true;
  // Parameters whose names contain "bn" do not decay there, and batch norm of a shortcut has another name: of
  // ResNet-50 downsample.1, of ResNet-50-D downsample.2. The convolutions of shortcuts decay anyway.
  o.decay_of = shortcuts;
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
void complete_ffcv(RunOptions& o) {
  decay_of_resnets_only(o, shortcuts);
  if (o.warmup_lr) return;
  o.warmup_lr = 1e-4 * *o.lr;
  o.derived.emplace_back("warmup-lr");
}
// mosaicml/examples, resnet_imagenet: main.py and the configuration of its recipes, with the defaults of Composer.
struct Mosaic {
  const char *name, *published;
  std::int64_t epochs;
  double smoothing, mixup, first_scale, delay;  // of the sizes of images
  std::int64_t sam_every;                       // 0: no SAM
};
// The sizes rise linearly to 176 pixels from the end of the delay to 80 % of the run, in multiples of 4.
std::int64_t mosaic_size(const Mosaic& m, double done) {
  const double share = std::clamp((done - m.delay) / (0.8 - m.delay), 0.0, 1.0);
  return 4 * std::lround(176 * (m.first_scale + (1 - m.first_scale) * share) / 4);
}
void mosaic(RunOptions& o, const Mosaic& m) {
  common(o, 2048, m.epochs);
  o.optimizer = "sgd";
  o.mom = 0.875;
  o.wd = 5e-4 * (1 - 0.875) / 2.048;
  o.decay_all = true;
  o.zero_gamma = false;
  o.label_smoothing = m.smoothing;
  o.bce_loss = o.bce_sum = true;
  o.lr_schedule = "cosine";
  o.warmup_epochs = 8;
  o.warmup_lr = 0;
  o.image_size = mosaic_size(m, 0);
  std::int64_t size = o.image_size;
  for (std::int64_t epoch = 1; epoch < m.epochs; ++epoch) {
    const std::int64_t next = mosaic_size(m, (static_cast<double>(epoch) + 0.5) / static_cast<double>(m.epochs));
    if (next == size) continue;
    size = next;
    o.image_size_steps += (o.image_size_steps.empty() ? "" : ",") + std::to_string(epoch) + ":" + std::to_string(size);
  }
  o.eval_size = 224;
  o.eval_resize = 232;
  o.blur_pool = true;
  o.mixup = m.mixup;
  o.ema_decay = 0.8705505632961241;  // 2^(-20 / 100): a half-life of 100 steps
  o.ema_schedule = "constant";
  o.ema_every = 20;
  if (m.sam_every > 0) {
    o.sam = 0.5;
    o.sam_every = m.sam_every;
  }
}
void mosaic_hot(RunOptions& o, const Mosaic& m) {
  mosaic(o, m);
  o.auto_augment = "rand-m9-mstd101-n1-p1-inc1";
  o.col_out = 0.05;
  o.drop_path = 0.1;
}

// mlcommons/training_results_v4.0, NVIDIA's config_L40S_16x4x50.sh, and the script that reads it.
void mlperf(RunOptions& o) {
  common(o, 3200, 37);
  o.optimizer = "lars";
  o.lars_mlperf = true;
  o.mom = 0.9;
  o.eta = 0.001;
  o.wd = 5e-5;
  o.decay_biases = false;
  // Biases do not decay there, except for those of the classifier.
  o.decay_of = "fc.bias";
  o.label_smoothing = 0.1;
  o.lr_schedule = "poly";
  o.poly_power = 2;
  o.lr_end = 0;
  o.lr_first_step = 1;
  o.warmup_epochs = 2;
  o.warmup_lr = 0;
  o.crop_area = 0.05;
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
  const auto add = [&to](const Recipe& family, const char* name, const char* published, std::int64_t epochs,
                         double rate, std::function<void(RunOptions&)> apply) {
    Recipe r = family;
    r.name = name;
    r.published = published;
    r.epochs = epochs;
    r.rate = rate;
    r.apply = std::move(apply);
    to.push_back(std::move(r));
  };
  const Recipe strikes_back{
      .source = "Wightman et al. 2021, arXiv 2110.00476, and timm",
      .batch = 2048,
      .rule = RateRule::root,
      .complete = complete_rsb,
      .differs = "the box of cutmix as in timm 1.0.31, whose width may be larger by one pixel than in 2021"};
  add(strikes_back, "rsb-a1", "80.4 % top-1", 600, 0.005, [](RunOptions& o) {
    rsb(o, 600);
    o.wd = 0.01;
    o.label_smoothing = 0.1;
    o.mixup = 0.2;
  });
  add(strikes_back, "rsb-a2", "79.8 % top-1", 300, 0.005, [](RunOptions& o) { rsb(o, 300); });
  add(strikes_back, "rsb-a3", "78.1 % top-1", 100, 0.008, [](RunOptions& o) {
    rsb(o, 100);
    o.image_size = 160;
    o.auto_augment = "rand-m6-mstd0.5-inc1";
    o.repeated_aug = 1;
    o.drop_path = 0;
  });
  const Recipe of_ffcv{.source = "libffcv/ffcv-imagenet, rn50_configs",
                       .batch = 4096,
                       .rule = RateRule::linear,
                       .complete = complete_ffcv,
                       .differs =
                           "images are scaled with a bilinear filter, there by area from stored images of 500 pixels; "
                           "mirrored views at the end of the run only"};
  struct Ffcv {
    const char *name, *published;
    std::int64_t epochs, larger_after;
  };
  for (const Ffcv& f : {Ffcv{"ffcv-16", "73.8 % top-1", 16, 12},
                        {"ffcv-24", "75.6 % top-1", 24, 19},
                        {"ffcv-32", "76.6 % top-1", 32, 25},
                        {"ffcv-40", "77.2 % top-1", 40, 32},
                        {"ffcv-56", "78.0 % top-1", 56, 45},
                        {"ffcv-88", "78.4 % top-1", 88, 71}})
    add(of_ffcv, f.name, f.published, f.epochs, 1.7, [f](RunOptions& o) { ffcv(o, f.epochs, f.larger_after); });
  Recipe of_mosaic{
      .source = "mosaicml/examples, resnet_imagenet, and Composer",
      .batch = 2048,
      .rule = RateRule::linear,
      .differs =
          "the decay is part of the gradient, there 5e-4 apart from it, which shrinks weights as much; sizes "
          "change between epochs and crops have them, there each batch is made smaller without a filter; no "
          "blur before the first pool; scales of batch norm begin at 1 and the bias of the classifier at 0, "
          "there at random and at -log(classes); mixup pairs the ends of a batch, there at random; SAM takes the "
          "gradient of a rank's images, there 256 of a GPU, and both of its passes count for batch norm's statistics "
          "there, the first one here; the average begins with the initial weights, there with those after the first "
          "step"};
  for (const Mosaic& m : {Mosaic{"mosaic-mild", "75 to 78.1 % top-1 in up to 60 epochs", 36, 0.08, 0, 0.5, 0.4, 0},
                          {"mosaic-medium", "78.1 to 79.5 % top-1 in 60 to 240 epochs", 135, 0.1, 0.2, 0.5, 0.4, 10}})
    add(of_mosaic, m.name, m.published, m.epochs, 2.048, [m](RunOptions& o) { mosaic(o, m); });
  const std::string hot =
      std::string(of_mosaic.differs) +
      "; ColOut leaves out the same rows of all images of a rank, there of 256 of a GPU; operations "
      "of timm's RandAugment, there 13 of Composer; branches that stay are scaled in training, there in evaluation";
  of_mosaic.differs = hot;
  const Mosaic m{"mosaic-hot", "over 79.5 % top-1", 270, 0.13, 0.25, 0.6, 0.2, 5};
  add(of_mosaic, m.name, m.published, m.epochs, 2.048, [m](RunOptions& o) { mosaic_hot(o, m); });
  to.push_back({.name = "mlperf",
                .source = "mlcommons/training_results_v4.0, NVIDIA, 16 hosts of 4 L40S",
                .published = "75.9 % top-1, MLPerf's target, in epoch 35",
                .epochs = 37,
                .apply = mlperf,
                .rate = 11,
                .batch = 3200,
                .rule = RateRule::none,
                .complete = [](RunOptions& o) { decay_of_resnets_only(o, "fc.bias"); },
                .differs = "computed in f32 or bf16, there in f16"});
}

}  // namespace tutti::trainer
