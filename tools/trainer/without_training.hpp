// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/data/loader.hpp>

#include "tools/trainer/options.hpp"

// What a program does in place of a training: --test-io and --print-schedule.
namespace tutti::trainer {

// Reads an epoch of training images and says how fast.
[[nodiscard]] int test_io(const RunOptions& o, Loader& loader);

// The steps of a run, and the columns of train_imagenet's table that follow from them, without a run.
void print_schedule(const RunOptions& o, std::int64_t images);

}  // namespace tutti::trainer
