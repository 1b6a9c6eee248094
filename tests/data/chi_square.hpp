// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

// Chi-square tests of drawn numbers.
namespace tutti::test {

struct ChiSquare {
  double sum = 0;
  int freedom = -1;  // degrees of freedom
  // Whether the sum is below the value that it exceeds once in a hundred tests of a true hypothesis (Wilson and
  // Hilferty 1931).
  [[nodiscard]] bool passes() const {
    if (freedom < 1) return sum == 0;
    const double k = 2.0 / (9.0 * freedom), root = 1 - k + 2.326 * std::sqrt(k);
    return sum < freedom * root * root * root;
  }
};

// Compares counts with probabilities, which sum to one. Cells with less than 5 expected are joined.
inline ChiSquare chi_square(std::span<const double> counts, std::span<const double> probabilities) {
  double n = 0;
  for (const double c : counts) n += c;
  ChiSquare r;
  double got = 0, want = 0;
  const auto cell = [&] {
    if (want <= 0) {
      if (got > 0) r.sum += 1e9;
      return;
    }
    r.sum += (got - want) * (got - want) / want;
    ++r.freedom;
  };
  double small_got = 0, small_want = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    got = counts[i];
    want = probabilities[i] * n;
    if (want < 5) {
      small_got += got;
      small_want += want;
    } else {
      cell();
    }
  }
  got = small_got;
  want = small_want;
  if (want > 0 || got > 0) cell();
  return r;
}

// Compares two samples of the same cells. Cells with fewer than 10 in both together are joined.
inline ChiSquare chi_square_of_two(std::span<const double> a, std::span<const double> b) {
  double na = 0, nb = 0;
  for (const double v : a) na += v;
  for (const double v : b) nb += v;
  const double ka = std::sqrt(nb / na), kb = std::sqrt(na / nb);
  ChiSquare r;
  double small_a = 0, small_b = 0;
  const auto cell = [&](double x, double y) {
    if (x + y <= 0) return;
    r.sum += (ka * x - kb * y) * (ka * x - kb * y) / (x + y);
    ++r.freedom;
  };
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] + b[i] < 10) {
      small_a += a[i];
      small_b += b[i];
    } else {
      cell(a[i], b[i]);
    }
  }
  cell(small_a, small_b);
  return r;
}

}  // namespace tutti::test
