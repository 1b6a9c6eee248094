// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/rank_rows.hpp>
#include <tutti/models/resnet.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/strategy/solo.hpp>
#include <tutti/train/trainer.hpp>

#include "tools/trainer/check.hpp"
#include "tools/trainer/cli.hpp"
#include "tools/trainer/recipe.hpp"

// Single steps of a recipe with a small net and images by formula: for recipe_steps.cpp, which
// bench/baselines/recipes.py runs, and for tests/golden/test_recipes.cpp. Options, loss, parameter groups, optimizer,
// schedule and average are those of the training programs.
namespace tutti::bench {

// A run of 20 steps in 4 epochs. Options give a recipe this length; its batch is the published one, so that the rates
// are too, but a step has few images.
inline constexpr std::int64_t recipe_steps = 20, recipe_steps_per_epoch = 5, recipe_rows = 8, recipe_side = 16;
inline constexpr int recipe_classes = 10;

// Returns the checked options of a command line: the name of a program, and its options.
[[nodiscard]] inline trainer::RunOptions recipe_options(std::vector<std::string> words) {
  if (words.empty() || (words[0] != "train_imagenet" && words[0] != "train_cifar10"))
    fail<UsageError>("recipe", "train_imagenet or train_cifar10, and options", words.empty() ? "nothing" : words[0]);
  const bool large = words[0] == "train_imagenet";
  if (large) words.insert(words.begin() + 1, "--synthetic");
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  auto o = trainer::parse_command_line(static_cast<int>(argv.size()), argv.data(),
                                       large ? trainer::Program::train_imagenet : trainer::Program::train_cifar10);
  if (!o) fail<UsageError>("recipe", "options of a training run", words.back());
  trainer::check(*o);
  return *o;
}

// A residual net of three blocks with torchvision's names, in place of ResNet-50.
inline void small_resnet(Builder& b, ValueId x, const models::ResnetOptions& o) {
  const auto conv = [&](std::int64_t out, int kernel, int stride) {
    return nn::ConvOptions{.out = out, .kernel = kernel, .stride = stride, .blur = o.blur};
  };
  const nn::BatchNormOptions plain{.eps = o.bn_eps, .momentum = o.bn_momentum};
  nn::BatchNormOptions relu = plain;
  relu.relu = true;
  x = nn::conv_bn(b, "conv1", "bn1", x, conv(8, 3, 1), relu);
  for (int stage = 0; stage < 3; ++stage) {
    const std::int64_t out = std::int64_t{8} << stage;
    const int stride = stage > 0 ? 2 : 1;
    const std::string name = "layer" + std::to_string(stage + 1) + ".0";
    nn::BatchNormOptions last = relu;
    last.residual =
        stage > 0 ? nn::conv_bn(b, name + ".downsample.0", name + ".downsample.1", x, conv(out, 1, stride), plain) : x;
    last.zero_gamma = o.zero_gamma;
    const ValueId y = nn::conv_bn(b, name + ".conv1", name + ".bn1", x, conv(out, 3, stride), relu);
    x = nn::conv_bn(b, name + ".conv2", name + ".bn2", y, conv(out, 3, 1), last);
  }
  x = b.global_avg_pool("avgpool", x);
  b.softmax_cross_entropy(nn::linear(b, "fc", x, o.classes, {Init::he_uniform, 0.4082482904638631}, o.decay_bias),
                          o.label_smoothing, o.top_k);
}

// The images of a step. before: as they are read; images: after mixup or cutmix of the recipe.
struct RecipeBatch {
  std::vector<std::uint8_t> before, images;
  std::vector<std::int32_t> labels;
  std::vector<MixedLabel> mixed;
};

[[nodiscard]] inline Schema recipe_schema() {
  // For a pixel x, (x - 128) / 64 is exact in each type.
  return {.name = "images of recipe_steps",
          .channels = 3,
          .height = recipe_side,
          .width = recipe_side,
          .classes = recipe_classes,
          .mean = {128, 128, 128},
          .stddev = {64, 64, 64},
          .class_names = {}};
}

// Returns the images of step `step`, from 0.
[[nodiscard]] inline RecipeBatch recipe_batch(const trainer::RunOptions& o, std::int64_t step) {
  const Schema schema = recipe_schema();
  const auto at = static_cast<std::uint64_t>(step);
  RecipeBatch b;
  Rng rng(7, Purpose::synthetic, 0, at);
  for (std::int64_t i = 0; i < recipe_rows * schema.image_bytes(); ++i)
    b.before.push_back(static_cast<std::uint8_t>(rng.below(256)));
  b.images = b.before;
  for (std::int64_t i = 0; i < recipe_rows; ++i) {
    const auto label = static_cast<std::int32_t>(rng.below(static_cast<std::uint32_t>(recipe_classes)));
    b.labels.push_back(label);
    b.mixed.push_back({label, label, 1});
  }
  if (const RowMixer mix = trainer::loader_options(o, true, 0, 1).mix) {
    RankRows rows{b.images, b.mixed, schema, batch_rng(o.seed, Purpose::mixing, at, 0)};
    mix(rows);
  }
  return b;
}

// A trainer as the options of a recipe set it, with the small net.
class RecipeSteps {
 public:
  // rate_factor: the rate of step .first, from 0, is multiplied by .second.
  RecipeSteps(Backend& backend, const trainer::RunOptions& o, DType compute,
              std::optional<std::pair<std::int64_t, double>> rate_factor = {})
      : o_(o),
        mixes_(static_cast<bool>(trainer::loader_options(o, true, 0, 1).mix)),
        factor_(rate_factor),
        schedule_(trainer::fit_options(o, images_of(o)).schedule),
        trainer_(backend, solo_, trainer::make_model(o, recipe_schema(), nullptr, small_resnet), options(o, compute)) {}

  [[nodiscard]] double rate(std::int64_t step) const {
    const double rate = schedule_(
        SchedulePoint{step, recipe_steps_per_epoch, recipe_steps_per_epoch * o_.epochs, o_.global_batch_size, 1});
    return factor_ && factor_->first == step ? rate * factor_->second : rate;
  }

  // Does step `step`, from 0, and returns its mean loss.
  double step(std::int64_t step) {
    const RecipeBatch b = recipe_batch(o_, step);
    const std::int32_t* labels = mixes_ ? reinterpret_cast<const std::int32_t*>(b.mixed.data()) : b.labels.data();
    return trainer_.step(BatchView{b.images.data(), labels, recipe_rows}, recipe_rows, rate(step))
        .wait()
        .metrics.mean_loss();
  }

  // Returns weights, statistics, the optimizer's state and the average after the last step. Valid until the next call.
  [[nodiscard]] std::vector<StateSpan> state() {
    trainer_.commit();
    return tensors();
  }
  // Sets the state after `steps` steps. fill(span): writes the tensor that the span names.
  template <class F>
  void set_state(std::int64_t steps, F&& fill) {
    trainer_.prepare_restore({.step = steps, .batches = steps});
    for (const StateSpan& s : tensors()) fill(s);
    trainer_.restore();
  }
  [[nodiscard]] const TrainerOptions& trainer_options() const { return trainer_.options(); }

 private:
  [[nodiscard]] static std::int64_t images_of(const trainer::RunOptions& o) {
    return recipe_steps_per_epoch * o.global_batch_size;
  }
  [[nodiscard]] static TrainerOptions options(const trainer::RunOptions& o, DType compute) {
    TrainerOptions t = trainer::trainer_options(o, images_of(o));
    t.compute = compute;
    t.image_sizes.clear();
    return t;
  }
  [[nodiscard]] std::vector<StateSpan> tensors() {
    std::vector<StateSpan> all = trainer_.committed_tensors(false);
    for (StateSpan& s : trainer_.committed_tensors(true)) all.push_back(std::move(s));
    // Averages have one name here, also those of lookahead.
    for (StateSpan& s : all)
      if (s.name.starts_with(lookahead_prefix)) s.name.replace(0, lookahead_prefix.size(), average_prefix);
    return all;
  }

  trainer::RunOptions o_;
  bool mixes_;
  std::optional<std::pair<std::int64_t, double>> factor_;
  Schedule schedule_;
  Solo solo_;
  Trainer trainer_;
};

}  // namespace tutti::bench
