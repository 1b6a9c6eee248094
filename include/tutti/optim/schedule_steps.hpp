// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/optim/schedule_decay.hpp>
#include <tutti/optim/schedule_point.hpp>

// Learning rates given by a table of positions.
namespace tutti::schedule {

// The unit of a table's positions: epochs (fractions allowed) or steps.
enum class Unit : std::uint8_t { epochs, steps };

namespace detail {

inline double position(const SchedulePoint& p, Unit unit) noexcept {
  return unit == Unit::steps ? static_cast<double>(p.step) : p.epoch();
}

TUTTI_CORE_FUNCTION std::vector<double> checked_boundaries(std::string_view where, std::vector<double> at);

// Returns the number of boundaries that p has reached.
inline std::size_t reached(const std::vector<double>& at, const SchedulePoint& p, Unit unit) noexcept {
  const double now = position(p, unit);
  std::size_t n = 0;
  while (n < at.size() && now >= at[n]) ++n;
  return n;
}

}  // namespace detail

// base * factor^(boundaries reached)
class Steps {
 public:
  Steps(double base, std::vector<double> at, double factor = 0.1, Unit unit = Unit::epochs)
      : base_(detail::checked_lr("schedule::Steps", base)),
        factor_(detail::checked("schedule::Steps", "a factor", factor, 0, 1e6)),
        at_(detail::checked_boundaries("schedule::Steps", std::move(at))),
        unit_(unit) {}
  [[nodiscard]] double operator()(const SchedulePoint& p) const noexcept {
    double lr = base_;
    for (std::size_t n = detail::reached(at_, p, unit_); n > 0; --n) lr *= factor_;
    return lr;
  }

 private:
  double base_;
  double factor_;
  std::vector<double> at_;
  Unit unit_;
};

// Absolute values: lrs[0] before the first boundary, lrs[i] from boundary i - 1 on. There is one value more than
// boundaries.
class Piecewise {
 public:
  Piecewise(std::vector<double> at, std::vector<double> lrs, Unit unit = Unit::epochs)
      : at_(detail::checked_boundaries("schedule::Piecewise", std::move(at))), lrs_(std::move(lrs)), unit_(unit) {
    if (lrs_.size() != at_.size() + 1) {
      fail<UsageError>("schedule::Piecewise", {at_.size() + 1, " learning rates"}, lrs_.size(),
                       "give one more value than boundaries: the first value applies before the first boundary");
    }
    for (double lr : lrs_) detail::checked_lr("schedule::Piecewise", lr);
  }
  [[nodiscard]] double operator()(const SchedulePoint& p) const noexcept {
    return lrs_[detail::reached(at_, p, unit_)];
  }

 private:
  std::vector<double> at_;
  std::vector<double> lrs_;
  Unit unit_;
};

struct Point {  // A rate at a position.
  double at;
  double lr;
};

// Linear between the points, constant before the first and after the last.
class PiecewiseLinear {
 public:
  explicit PiecewiseLinear(std::vector<Point> points, Unit unit = Unit::epochs)
      : points_(std::move(points)), unit_(unit) {
    if (points_.empty()) fail<UsageError>("schedule::PiecewiseLinear", "1 point or more", "no point");
    std::vector<double> at;
    for (const Point& q : points_) {
      at.push_back(q.at);
      detail::checked_lr("schedule::PiecewiseLinear", q.lr);
    }
    detail::checked_boundaries("schedule::PiecewiseLinear", std::move(at));
  }
  [[nodiscard]] double operator()(const SchedulePoint& p) const noexcept {
    const double now = detail::position(p, unit_);
    if (now <= points_.front().at) return points_.front().lr;
    for (std::size_t i = 1; i < points_.size(); ++i) {
      const Point& a = points_[i - 1];
      const Point& b = points_[i];
      if (now < b.at) return a.lr + (b.lr - a.lr) * (now - a.at) / (b.at - a.at);
    }
    return points_.back().lr;
  }

 private:
  std::vector<Point> points_;
  Unit unit_;
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION std::vector<double> detail::checked_boundaries(std::string_view where, std::vector<double> at) {
  for (std::size_t i = 0; i < at.size(); ++i) {
    checked(where, "a boundary", at[i], 0, 1e15);
    if (i > 0 && !(at[i] > at[i - 1])) {
      fail<UsageError>(where, "increasing boundaries", {at[i - 1], " then ", at[i]});
    }
  }
  return at;
}
#endif

}  // namespace tutti::schedule
