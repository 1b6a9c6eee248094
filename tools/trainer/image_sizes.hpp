// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include <tutti/data/dataset.hpp>

#include "tools/trainer/options.hpp"

// The sizes of training images: --image-size, and --image-size-steps.
namespace tutti::trainer {

// From this epoch on, counted from 0, training images have this height and width.
struct ImageSizeStep {
  std::int64_t epoch = 0, size = 0;
  friend bool operator==(const ImageSizeStep&, const ImageSizeStep&) = default;
};

// Returns the sizes in the order of their epochs, of which the first is 0. Throws UsageError that names the option.
[[nodiscard]] std::vector<ImageSizeStep> image_size_steps(const RunOptions& o);

// Checks the sizes of images in training and evaluation, and sets the default of the latter.
void check_image_sizes(RunOptions& o);

// Returns the bytes of the largest image that a loader reads. seen: the schema of an evaluation.
[[nodiscard]] std::int64_t largest_image_bytes(const RunOptions& o, const Schema& seen);

}  // namespace tutti::trainer
