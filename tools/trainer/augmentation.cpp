// SPDX-License-Identifier: MIT
#include "tools/trainer/augmentation.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/nearest_word.hpp>
#include <tutti/data/augment/parse_policy.hpp>
#include <tutti/data/augment/repeated_images.hpp>

#include "tools/trainer/check_values.hpp"

namespace tutti::trainer {

namespace {

// Checks a word, and suggests the nearest valid one.
void nearest(const char* option, std::string& value, const std::vector<std::string>& words) {
  const std::string close = nearest_word(value, words);
  const std::string hint = close.empty() || close == value ? "" : "did you mean " + close;
  detail::word(option, value, words, {}, hint.c_str());
}

}  // namespace

void check_augmentation(RunOptions& o) {
  (void)parse_policy("--auto-augment", o.auto_augment);
  if (o.program == Program::train_cifar10)
    nearest("--interpolation", o.interpolation, {"nearest", "bilinear", "bicubic", "random"});
  else
    nearest("--interpolation", o.interpolation, {"bilinear", "bicubic", "random"});
  detail::number("--jitter-brightness", o.jitter_brightness, 0, 10);
  detail::number("--jitter-contrast", o.jitter_contrast, 0, 1);
  detail::number("--random-erase", o.random_erase, 0, 1);
  nearest("--erase-mode", o.erase_mode, {"const", "rand", "pixel"});
  detail::number("--erase-count", o.erase_count, 1, 16);
  detail::number("--cutout", o.cutout, 0, 65536);
  if (o.cutout > 0 && o.random_erase > 0)
    fail<UsageError>("--cutout", "no --random-erase together with it", std::to_string(o.cutout), "give one of the two");
  detail::number("--repeated-aug", o.repeated_aug, 1, 64);
  if (o.mixup != 0) detail::number("--mixup", o.mixup, 1e-3, 1000);
  if (o.cutmix != 0) detail::number("--cutmix", o.cutmix, 1e-3, 1000);
  detail::number("--mix-probability", o.mix_probability, 0, 1);
  detail::number("--mix-switch", o.mix_switch, 0, 1);
  nearest("--mix-pairs", o.mix_pairs, {"reversed", "previous"});
  const bool one = (o.mixup > 0) != (o.cutmix > 0);
  if (o.mix_probability != 1 && o.mixup == 0 && o.cutmix == 0)
    fail<UsageError>("--mix-probability", "--mixup or --cutmix together with it", "neither",
                     "e.g. --mixup 0.2 --cutmix 1");
  // A recipe sets it together with the two, which the user may have turned off.
  if (o.mix_pairs != RunOptions().mix_pairs && o.recipe.empty() && o.mixup == 0 && o.cutmix == 0)
    fail<UsageError>("--mix-pairs", "--mixup or --cutmix together with it", "neither", "e.g. --mixup 0.2 --cutmix 1");
  if (o.mix_switch != 0.5 && (one || o.mixup == 0))
    fail<UsageError>("--mix-switch", "--mixup and --cutmix together with it",
                     o.mixup > 0    ? "--mixup alone"
                     : o.cutmix > 0 ? "--cutmix alone"
                                    : "neither",
                     "leave it out");
  if (o.stop_at_train_top1 > 0 && batch_mix(o).any())
    o.notes.emplace_back(
        "--stop-at-train-top1: mixed images lower the training accuracy, so the run may not end before its last epoch");
}

Interpolation interpolation_of(const RunOptions& o) {
  for (const auto i : {Interpolation::nearest, Interpolation::bicubic, Interpolation::random})
    if (o.interpolation == name_of(i)) return i;
  return Interpolation::bilinear;
}

PixelChanges pixel_changes(const RunOptions& o, std::span<const float> mean) {
  PixelChanges c;
  c.policy = parse_policy("--auto-augment", o.auto_augment);
  c.policy.interpolation = interpolation_of(o);
  if (c.policy.rule == PolicyRule::rand_timm)
    for (std::size_t k = 0; k < std::min(mean.size(), c.policy.fill.size()); ++k)
      c.policy.fill[k] = static_cast<std::uint8_t>(std::lround(std::clamp(mean[k], 0.0F, 255.0F)));
  c.normalised = {o.jitter_brightness, o.jitter_contrast};
  c.erasing = RandomErasing::timm(o.random_erase,
                                  o.erase_mode == "rand"    ? EraseFill::colour
                                  : o.erase_mode == "pixel" ? EraseFill::pixels
                                                            : EraseFill::mean,
                                  static_cast<int>(o.erase_count));
  if (o.cutout > 0) c.erasing = RandomErasing::cutout(static_cast<int>(o.cutout));
  return c;
}

BatchMix batch_mix(const RunOptions& o) {
  return {o.mixup, o.cutmix, o.mix_probability, o.mix_switch,
          o.mix_pairs == "previous" ? MixPairs::previous : MixPairs::reversed};
}

AnyDataset repeated(const RunOptions& o, AnyDataset training) {
  if (o.repeated_aug == 1) return training;
  return RepeatedImages(std::move(training), static_cast<int>(o.repeated_aug), o.seed);
}

}  // namespace tutti::trainer
