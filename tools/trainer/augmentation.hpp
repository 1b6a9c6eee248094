// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include <tutti/data/augment/mix_options.hpp>
#include <tutti/data/augment/pixel_options.hpp>
#include <tutti/data/dataset.hpp>

#include "tools/trainer/options.hpp"

// The options of describe_augmentation().
namespace tutti::trainer {

// Throws UsageError that names the option.
void check_augmentation(RunOptions& o);

// Returns the changes of training images of checked options. mean: of each channel, on the 0..255 scale. It is the
// colour outside of moved images in timm's RandAugment; elsewhere that is black.
[[nodiscard]] PixelChanges pixel_changes(const RunOptions& o, std::span<const float> mean);

// Returns --interpolation.
[[nodiscard]] Interpolation interpolation_of(const RunOptions& o);

// Returns how the images of a batch are mixed.
[[nodiscard]] BatchMix batch_mix(const RunOptions& o);

// Returns the training images in the order of --repeated-aug.
[[nodiscard]] AnyDataset repeated(const RunOptions& o, AnyDataset training);

}  // namespace tutti::trainer
