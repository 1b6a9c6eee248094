// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/strategy/strategy.hpp>
#include <tutti/train/fit.hpp>

namespace tutti::testing {

// The training images of the jobs in these tests. They are `side` pixels wide and have four classes, which a small net
// can learn.
struct JobImages {
  static constexpr std::int64_t tests = 24;

  std::int64_t samples, global_batch, side;

  [[nodiscard]] Synthetic images(std::int64_t count) const {
    return Synthetic({.size = count, .height = side, .width = side, .classes = 4, .seed = 1, .learnable = true});
  }
  [[nodiscard]] LoaderOptions train_options(int rank, int size) const {
    return {.placement = {global_batch, std::max(rank, 0), size}, .seed = 9, .threads = 0};
  }
  [[nodiscard]] LoaderOptions test_options(int rank, int size) const {
    return {.placement = {global_batch, std::max(rank, 0), size}, .shuffle = false, .one_pass = true, .threads = 0};
  }
  // Returns options with a constant learning rate.
  [[nodiscard]] FitOptions fit_options(std::int64_t epochs) const {
    FitOptions f{.epochs = epochs, .global_batch = global_batch, .report_every = 7};
    f.schedule = schedule::Constant{0.05};
    return f;
  }
};

}  // namespace tutti::testing
