// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>

#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>
#include <tutti/strategy/strategy.hpp>
#include <tutti/train/fit.hpp>

namespace tutti::testing {

// What jobs of these tests train on: images that a small net can learn, `side` pixels wide, in four classes.
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
  // At a rate that stays.
  [[nodiscard]] FitOptions fit_options(std::int64_t epochs) const {
    FitOptions f{.epochs = epochs, .global_batch = global_batch, .report_every = 7};
    f.schedule = schedule::Constant{0.05};
    return f;
  }
};

}  // namespace tutti::testing
