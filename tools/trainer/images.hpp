// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tutti/data/dataset.hpp>
#include <tutti/datasets/cifar10/cifar10.hpp>

#include "tools/trainer/task.hpp"

// The data sets of the programs for small images.
namespace tutti::trainer {

namespace detail {

std::vector<float> per_channel(const char* option, const std::string& text, std::int64_t channels);

}  // namespace detail

// Returns the schema of the net's input. Throws UsageError if an option does not fit the data set.
Schema image_schema(const RunOptions& o);

// Returns the preparation of test images that are in files.
interchange::ImagePreparation image_preparation(const RunOptions& o, const Schema& seen);

// Returns training images with augmentation and test images without it. Both are cropped to the size in `seen`. Throws
// DataError for missing or damaged data.
Images load_images(const RunOptions& o, const Schema& seen);

}  // namespace tutti::trainer
