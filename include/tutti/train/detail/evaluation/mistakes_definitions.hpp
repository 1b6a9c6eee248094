// SPDX-License-Identifier: MIT
#pragma once

// Definitions of mistakes.hpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <tutti/core/math.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/train/mistakes.hpp>

namespace tutti {

namespace detail {

// Returns whether a has the larger loss, or an equal loss and the smaller index. The order does not depend on ranks.
[[nodiscard]] inline bool worse(const WrongImage& a, const WrongImage& b) {
  return a.loss != b.loss ? a.loss > b.loss : a.index < b.index;
}

}  // namespace detail

TUTTI_CORE_FUNCTION MistakeSum::MistakeSum(std::int64_t classes)
    : classes_(classes), confusion_(static_cast<std::size_t>(classes <= most_classes ? classes * classes : 0)) {}

TUTTI_CORE_FUNCTION void MistakeSum::add(std::span<const float> logits, std::span<const std::int32_t> labels,
                                         std::span<const std::int64_t> indices) {
  const auto classes = static_cast<std::size_t>(classes_);
  for (std::size_t row = 0; row < labels.size(); ++row) {
    if (labels[row] < 0 || labels[row] >= classes_) continue;
    const std::span<const float> z = logits.subspan(row * classes, classes);
    const auto label = static_cast<std::size_t>(labels[row]);
    std::size_t said = 0;
    bool finite = true;
    for (std::size_t c = 0; c < classes; ++c) {
      finite = finite && math::is_finite(z[c]);
      if (z[c] > z[said]) said = c;
    }
    if (!finite) continue;
    ++images_;
    if (!confusion_.empty()) confusion_[label * classes + said] += 1;
    if (said == label) continue;
    double sum = 0;
    for (const float v : z) sum += math::exp(static_cast<double>(v - z[said]));
    keep({indices[row], labels[row], static_cast<std::int32_t>(said),
          static_cast<double>(z[said] - z[label]) + math::log(sum), 1 / sum});
  }
}

inline void MistakeSum::keep(const WrongImage& w) {
  if (worst_.size() == most_worst && !detail::worse(w, worst_.back())) return;
  if (worst_.size() == most_worst) worst_.pop_back();
  worst_.insert(std::upper_bound(worst_.begin(), worst_.end(), w, detail::worse), w);
}

TUTTI_CORE_FUNCTION Mistakes MistakeSum::take(AnyStrategy& strategy) {
  // Puts all values into one vector: the counts, and `numbers` values for each image that each rank may have kept.
  constexpr std::size_t numbers = 6;
  const auto ranks = static_cast<std::size_t>(std::max(strategy.size(), 1));
  const auto rank = static_cast<std::size_t>(std::max(strategy.rank(), 0));
  std::vector<double> all = std::exchange(confusion_, std::vector<double>(confusion_.size()));
  const std::size_t cells = all.size();
  all.push_back(static_cast<double>(std::exchange(images_, 0)));
  all.resize(all.size() + ranks * most_worst * numbers);
  double* to = all.data() + cells + 1 + rank * most_worst * numbers;
  for (const WrongImage& w : std::exchange(worst_, {}))
    for (const double v :
         {1.0, static_cast<double>(w.index), static_cast<double>(w.label), static_cast<double>(w.said), w.loss, w.sure})
      *to++ = v;
  // Sums a few values at a time, because a strategy may allocate memory for them.
  constexpr std::size_t some = std::size_t{1} << 15;
  for (std::size_t at = 0; at < all.size(); at += some)
    strategy.sum(span_of(all).subspan(at, std::min(some, all.size() - at)));
  Mistakes m;
  m.classes = classes_;
  m.images = math::llround(all[cells]);
  for (const double* from = all.data() + cells + 1; from < all.data() + all.size(); from += numbers)
    if (from[0] > 0)
      keep({math::llround(from[1]), static_cast<std::int32_t>(from[2]), static_cast<std::int32_t>(from[3]), from[4],
            from[5]});
  m.worst = std::exchange(worst_, {});
  all.resize(cells);
  m.confusion = std::move(all);
  return m;
}

}  // namespace tutti
