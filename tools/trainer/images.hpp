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

// What the net sees. Throws UsageError where an option does not fit the data set.
Schema image_schema(const RunOptions& o);

// How test images are made ready, for who has them as files.
interchange::ImagePreparation image_preparation(const RunOptions& o, const Schema& seen);

// Training images with augmentation, test images as they are; both cut to the size that `seen` has. Throws DataError
// for what is missing or damaged.
Images load_images(const RunOptions& o, const Schema& seen);

}  // namespace tutti::trainer
