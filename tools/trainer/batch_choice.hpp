// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/data/dataset.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/strategy/any_strategy.hpp>

#include "tools/trainer/options.hpp"

// --batch-size auto.
namespace tutti::trainer {

// Sets the batch size to the largest power of 2 that fits the memory of rank 0, up to 1024, if an epoch then has 20
// steps or more, and at least 8; and the options and notes that follow from it. All ranks call it. images: number of
// training images.
void choose_batch_size(Backend& backend, AnyStrategy& strategy, RunOptions& o, const Schema& seen, std::int64_t images);

}  // namespace tutti::trainer
