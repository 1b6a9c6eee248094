// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/train/mistakes.hpp>

namespace tutti {

// How well a net recognises one class. Shares lie in 0..1.
struct ClassScore {
  double precision = 0;  // of the images that were taken for the class, the share that belongs to it
  double recall = 0;     // of the images of the class, the share that was taken for it
  double f1 = 0;         // harmonic mean of both
  std::int64_t images = 0;
};

// Returns the scores of each class, or an empty list without a confusion matrix. A share of no images is 0.
[[nodiscard]] inline std::vector<ClassScore> class_scores(const Mistakes& m) {
  if (m.confusion.empty()) return {};
  const auto n = static_cast<std::size_t>(m.classes);
  const auto share = [](double part, double of) { return of > 0 ? part / of : 0; };
  std::vector<double> is(n), said(n);
  for (std::size_t label = 0; label < n; ++label)
    for (std::size_t k = 0; k < n; ++k) {
      is[label] += m.confusion[label * n + k];
      said[k] += m.confusion[label * n + k];
    }
  std::vector<ClassScore> all(n);
  for (std::size_t k = 0; k < n; ++k) {
    const double right = m.confusion[k * n + k];
    all[k] = {share(right, said[k]), share(right, is[k]), share(2 * right, said[k] + is[k]),
              static_cast<std::int64_t>(is[k])};
  }
  return all;
}

// Returns the mean F1 of the classes that have images.
[[nodiscard]] inline double mean_f1(const std::vector<ClassScore>& scores) {
  double sum = 0, classes = 0;
  for (const ClassScore& s : scores) {
    if (s.images == 0) continue;
    sum += s.f1;
    classes += 1;
  }
  return classes > 0 ? sum / classes : 0;
}

}  // namespace tutti
