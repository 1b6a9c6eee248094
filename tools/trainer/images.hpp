// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tutti/data/dataset.hpp>
#include <tutti/datasets/cifar10/cifar10.hpp>

#include "tools/trainer/task.hpp"

// The data sets that the programs for small images know.
namespace tutti::trainer {

namespace detail {

std::vector<float> per_channel(const char* option, const std::string& text, std::int64_t channels);

}  // namespace detail

// The schema of what the net sees. Throws UsageError if an option does not fit the data set.
Schema image_schema(const RunOptions& o);

// How to prepare test images that are files.
interchange::ImagePreparation image_preparation(const RunOptions& o, const Schema& seen);

// Training images with augmentation, test images as they are; both cut to the size that `seen` has. Throws DataError
// for what is missing or damaged.
Images load_images(const RunOptions& o, const Schema& seen);

}  // namespace tutti::trainer
