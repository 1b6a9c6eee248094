// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/models/whitening.hpp>

using namespace tutti;
using models::PatchMoments;

namespace {

const std::vector<float> mean{120, 128, 100}, inv_std{1 / 64.F, 1 / 32.F, 1 / 50.F};

// Returns images in which neighbouring pixels and the channels of a pixel are similar.
std::vector<std::vector<std::uint8_t>> images(std::int64_t h, std::int64_t w, int count) {
  std::vector<std::vector<std::uint8_t>> list;
  Rng rng(7, Purpose::user);
  for (int n = 0; n < count; ++n) {
    std::vector<std::uint8_t> image;
    double level = 128;
    for (std::int64_t i = 0; i < h * w; ++i) {
      level = 0.9 * level + 0.1 * 128 + 20 * rng.normal();
      for (int c = 0; c < 3; ++c)
        image.push_back(static_cast<std::uint8_t>(std::clamp(level + 10 * rng.normal(), 0.0, 255.0)));
    }
    list.push_back(image);
  }
  return list;
}

// Returns every patch of an image, normalised, in the order channel, row, column.
std::vector<std::vector<double>> patches(const std::vector<std::uint8_t>& image, std::int64_t h, std::int64_t w,
                                         std::int64_t k, std::int64_t border) {
  std::vector<std::vector<double>> list;
  for (std::int64_t y = border; y + k <= h - border; ++y)
    for (std::int64_t x = border; x + k <= w - border; ++x) {
      std::vector<double> p;
      for (std::int64_t c = 0; c < 3; ++c)
        for (std::int64_t i = 0; i < k; ++i)
          for (std::int64_t j = 0; j < k; ++j) {
            const auto channel = static_cast<std::size_t>(c);
            const double v = image[static_cast<std::size_t>(((y + i) * w + x + j) * 3 + c)];
            p.push_back((v - static_cast<double>(mean[channel])) * static_cast<double>(inv_std[channel]));
          }
      list.push_back(p);
    }
  return list;
}

}  // namespace

TEST_CASE("the moments of patches equal those of a plain loop, for images of any shape") {
  for (const auto& [h, w, k, border] : {std::array<std::int64_t, 4>{9, 7, 2, 0}, {6, 11, 3, 0}, {9, 8, 2, 2}}) {
    PatchMoments moments(3, k);
    const std::size_t n = moments.size();
    REQUIRE(n == static_cast<std::size_t>(3 * k * k));
    std::vector<double> expected(n * n, 0.0);
    std::int64_t count = 0;
    for (const auto& image : images(h, w, 3)) {
      moments.add(image, h, w, border);
      for (const auto& p : patches(image, h, w, k, border)) {
        ++count;
        for (std::size_t a = 0; a < n; ++a)
          for (std::size_t b = 0; b < n; ++b) expected[a * n + b] += p[a] * p[b];
      }
    }
    CHECK(moments.count() == count);
    const auto got = moments.matrix(mean, inv_std);
    for (std::size_t i = 0; i < n * n; ++i)
      CHECK(got[i] == doctest::Approx(expected[i] / static_cast<double>(count)).epsilon(1e-9));
  }
}

TEST_CASE("eigenvectors satisfy A v = lambda v and are orthonormal, and eigenvalues decrease") {
  for (const std::size_t n : {1U, 2U, 5U, 12U, 27U}) {
    std::vector<double> a(n * n);
    Rng rng(n, Purpose::user);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j <= i; ++j) a[i * n + j] = a[j * n + i] = rng.normal() * std::pow(4.0, -double(i));
    const auto e = models::symmetric_eigen(a, n);
    for (std::size_t i = 0; i < n; ++i) {
      if (i > 0) CHECK(e.values[i] <= e.values[i - 1]);
      for (std::size_t j = 0; j < n; ++j) {
        double product = 0, dot = 0;
        for (std::size_t k = 0; k < n; ++k) {
          product += a[j * n + k] * e.vectors[i * n + k];
          dot += e.vectors[i * n + k] * e.vectors[j * n + k];
        }
        CHECK(product == doctest::Approx(e.values[i] * e.vectors[i * n + j]).epsilon(1e-9).scale(1));
        CHECK(dot == doctest::Approx(i == j ? 1 : 0).epsilon(1e-9).scale(1));
      }
    }
  }
  CHECK_THROWS_AS((void)models::symmetric_eigen({1, 2, 3}, 2), ShapeError);
  CHECK_THROWS_AS((void)models::symmetric_eigen({std::numeric_limits<double>::quiet_NaN()}, 1), DataError);
}

TEST_CASE("whitened patches are uncorrelated with mean square 1; the second half of the filters is the negated first") {
  constexpr std::int64_t h = 16, w = 16;
  PatchMoments moments(3, 2);
  const auto all = images(h, w, 20);
  for (const auto& image : all) moments.add(image, h, w);
  const auto weights = models::whitening_weights(moments, mean, inv_std, 1e-12);
  const std::size_t n = moments.size();
  REQUIRE(weights.size() == 2 * n * n);
  for (std::size_t i = 0; i < n * n; ++i) CHECK(weights[n * n + i] == -weights[i]);
  std::vector<double> products(n * n, 0.0);
  double count = 0;
  for (const auto& image : all)
    for (const auto& p : patches(image, h, w, 2, 0)) {
      count += 1;
      std::vector<double> y(n, 0.0);
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t k = 0; k < n; ++k) y[i] += static_cast<double>(weights[i * n + k]) * p[k];
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j) products[i * n + j] += y[i] * y[j];
    }
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j)
      CHECK(products[i * n + j] / count == doctest::Approx(i == j ? 1 : 0).epsilon(1e-4).scale(1));
}

TEST_CASE("images without variation give finite weights") {
  PatchMoments moments(3, 2);
  moments.add(std::vector<std::uint8_t>(8 * 8 * 3, 128), 8, 8);
  for (const float v : models::whitening_weights(moments, mean, inv_std)) CHECK(std::isfinite(v));
}

TEST_CASE("unsuitable images are refused") {
  PatchMoments moments(3, 2);
  CHECK_THROWS_AS((void)models::whitening_weights(moments, mean, inv_std), DataError);
  CHECK_THROWS_AS(moments.add(std::vector<std::uint8_t>(11), 2, 2), ShapeError);
  moments.add(std::vector<std::uint8_t>(12), 2, 2, 1);  // the border leaves no patch
  CHECK(moments.count() == 0);
  moments.add(std::vector<std::uint8_t>(12), 2, 2);
  CHECK(moments.count() == 1);
  CHECK_THROWS_AS((void)moments.matrix({mean.data(), 2}, inv_std), ShapeError);
  CHECK_THROWS_AS(PatchMoments(0, 2), UsageError);
  CHECK_THROWS_AS(PatchMoments(3, 100), UsageError);
}
