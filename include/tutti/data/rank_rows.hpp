// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <tutti/core/mixed_label.hpp>
#include <tutti/core/rng.hpp>

namespace tutti {

struct Schema;  // data/dataset.hpp

// The rows of a training batch that belong to one rank or logical rank, after all of them were read.
struct RankRows {
  std::span<std::uint8_t> images;  // [rows, height, width, channels]
  std::span<MixedLabel> labels;    // [rows], each with a share of 1. `first` is ignored_label if a row was not readable
  const Schema& schema;
  Rng rng;  // for these rows together: batch_rng() of the seed, the position of the step and the logical rank
};

// Changes the rows of a rank. It is called from several threads at once, for different batches.
using RowMixer = std::function<void(RankRows&)>;

}  // namespace tutti
