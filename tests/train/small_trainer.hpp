// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/nn/dropout.hpp>
#include <tutti/nn/layers.hpp>
#include <tutti/train/trainer.hpp>

namespace tutti::testing {

// Parts of a Trainer refer to other parts of it, so a Trainer must not move.
static_assert(!std::is_move_constructible_v<Trainer> && !std::is_move_assignable_v<Trainer>);

inline constexpr std::int64_t size = 8, classes = 4;

// Returns the net conv -> (batch norm) -> relu -> pool -> linear. It is small enough for the reference loops. drop: the
// rate of a dropout of images and of one of elements.
inline Graph small_net(bool norm, double drop = 0) {
  Builder b(3, size, size);
  ValueId x = b.normalize({128, 128, 128}, {1 / 64.F, 1 / 64.F, 1 / 64.F});
  x = nn::conv(b, "conv1", x, {.out = 4});
  x = norm ? nn::batch_norm(b, "bn1", x, {.relu = true}) : b.relu("relu1", x);
  x = nn::conv(b, "conv2", nn::drop_path(b, "path", x, drop), {.out = 8, .stride = 2});
  x = norm ? nn::batch_norm(b, "bn2", x, {.relu = true}) : b.relu("relu2", x);
  x = nn::dropout(b, "drop", b.global_avg_pool("pool", x), drop);
  b.softmax_cross_entropy(nn::linear(b, "fc", x, classes, {Init::he_uniform, 0.4}));
  return std::move(b).take();
}

struct Data {
  std::vector<std::uint8_t> images;
  std::vector<std::int32_t> labels;
  explicit Data(std::int64_t rows, std::uint64_t seed = 1) {
    Rng rng(seed, Purpose::user);
    labels.resize(static_cast<std::size_t>(rows));
    for (auto& l : labels) l = static_cast<std::int32_t>(rng.below(classes));
    images.resize(static_cast<std::size_t>(rows * 3 * size * size));
    for (std::size_t i = 0; i < images.size(); ++i)
      images[i] = static_cast<std::uint8_t>(
          (rng.below(128) + 32 * static_cast<unsigned>(labels[i / (3 * size * size)])) & 255U);
  }
  [[nodiscard]] BatchView view(std::int64_t begin, std::int64_t end) const {
    return {images.data() + begin * 3 * size * size, labels.data() + begin, end - begin};
  }
  [[nodiscard]] BatchView view() const { return view(0, static_cast<std::int64_t>(labels.size())); }
};

inline std::vector<std::byte> weights(Trainer& t) {
  auto& e = t.executor();
  std::vector<std::byte> w(e.parameters().bytes());
  std::memcpy(w.data(), e.parameter_data(), w.size());
  return w;
}

inline double norm_of_change(Trainer& t, const std::vector<std::byte>& before) {
  double sum = 0;
  const auto* a = reinterpret_cast<const float*>(before.data());
  const auto* b = static_cast<const float*>(t.executor().parameter_data());
  for (std::size_t i = 0; i < t.executor().parameters().count; ++i)
    sum += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return std::sqrt(sum);
}

}  // namespace tutti::testing
