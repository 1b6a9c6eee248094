// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/data/loader.hpp>

#include "tools/trainer/options.hpp"

// The work of a program that does not train: --test-io and --print-schedule.
namespace tutti::trainer {

// Reads an epoch of training images and prints the speed.
[[nodiscard]] int test_io(const RunOptions& o, Loader& loader);

// Prints the steps of a run and the columns of train_imagenet's table that depend on the steps, without training.
void print_schedule(const RunOptions& o, std::int64_t images);

}  // namespace tutti::trainer
