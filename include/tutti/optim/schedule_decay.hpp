// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <numbers>
#include <string>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/core/math.hpp>
#include <tutti/optim/schedule_point.hpp>

// Learning rates that fall along a curve over the whole run. In the formulas t is the step and T the total number of
// steps. t is clamped to [0, T], so a run that continues after its end keeps the last value.
namespace tutti::schedule {

namespace detail {

inline double checked(std::string_view where, std::string_view what, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    fail<UsageError>(where, {what, " in [", low, ", ", high, "]"}, value);
  }
  return value;
}

inline constexpr double largest = 1e30;

inline double checked_lr(std::string_view where, double lr) {
  return checked(where, "a learning rate", lr, 0, largest);
}

// Returns t / T, or 1 for a run without steps.
inline double fraction(const SchedulePoint& p) noexcept {
  if (p.total_steps <= 0) return 1.0;
  return static_cast<double>(std::clamp<std::int64_t>(p.step, 0, p.total_steps)) / static_cast<double>(p.total_steps);
}

}  // namespace detail

class Constant {  // The same rate for all steps.
 public:
  explicit Constant(double lr) : lr_(detail::checked_lr("schedule::Constant", lr)) {}
  [[nodiscard]] double operator()(const SchedulePoint& /*p*/) const noexcept { return lr_; }

 private:
  double lr_;
};

struct PolyOptions {  // Options of Poly.
  double power = 2.0;
  double end = 1e-5;
  // After step T, the curve is stretched to the next multiple of T and falls from base * (1 - t/kT).
  bool cycle = false;
};

// (base - end) * (1 - t/T)^power + end
class Poly {
 public:
  explicit Poly(double base, PolyOptions options = {})
      : base_(detail::checked_lr("schedule::Poly", base)), o_(options) {
    detail::checked_lr("schedule::Poly", o_.end);
    detail::checked("schedule::Poly", "a power", o_.power, 0, 100);
  }
  [[nodiscard]] double operator()(const SchedulePoint& p) const noexcept {
    double left = 1.0 - detail::fraction(p);
    if (o_.cycle && p.total_steps > 0 && p.step > p.total_steps) {
      const double turns = static_cast<double>(p.step) / static_cast<double>(p.total_steps);
      left = 1.0 - turns / math::ceil(turns);
    }
    return (base_ - o_.end) * math::pow(left, o_.power) + o_.end;
  }

 private:
  double base_;
  PolyOptions o_;
};

// base * ((1 - alpha) * (1 + cos(pi t/T)) / 2 + alpha)
class Cosine {
 public:
  explicit Cosine(double base, double alpha = 0.0)
      : base_(detail::checked_lr("schedule::Cosine", base)),
        alpha_(detail::checked("schedule::Cosine", "alpha", alpha, 0, 1)) {}
  [[nodiscard]] double operator()(const SchedulePoint& p) const noexcept {
    const double wave = 0.5 * (1.0 + math::cos(std::numbers::pi * detail::fraction(p)));
    return base_ * ((1.0 - alpha_) * wave + alpha_);
  }

 private:
  double base_;
  double alpha_;
};

struct CosineRestartsOptions {      // Options of CosineRestarts.
  double first_decay_ratio = 0.33;  // of T
  double t_mul = 2.0;               // length of a period divided by that of the previous one
  double m_mul = 0.1;               // height of a period divided by that of the previous one
  double alpha = 0.0;
};

// A cosine that restarts, lower and longer each time: Loshchilov and Hutter, "SGDR", 2016.
class CosineRestarts {
 public:
  explicit CosineRestarts(double base, CosineRestartsOptions options = {})
      : base_(detail::checked_lr("schedule::CosineRestarts", base)), o_(options) {
    detail::checked("schedule::CosineRestarts", "first_decay_ratio", o_.first_decay_ratio, 1e-6, 1);
    detail::checked("schedule::CosineRestarts", "t_mul", o_.t_mul, 1, 1e6);
    detail::checked("schedule::CosineRestarts", "m_mul", o_.m_mul, 0, 1e6);
    detail::checked("schedule::CosineRestarts", "alpha", o_.alpha, 0, 1);
  }
  [[nodiscard]] double operator()(const SchedulePoint& p) const noexcept {
    double into = detail::fraction(p) / o_.first_decay_ratio;  // in units of the first period
    double length = 1.0;
    double height = 1.0;
    while (into >= length) {
      into -= length;
      length *= o_.t_mul;
      height *= o_.m_mul;
    }
    const double wave = 0.5 * height * (1.0 + math::cos(std::numbers::pi * into / length));
    return base_ * ((1.0 - o_.alpha) * wave + o_.alpha);
  }

 private:
  double base_;
  CosineRestartsOptions o_;
};

struct LinearCosineOptions {  // Options of LinearCosine.
  double periods = 0.47;
  double alpha = 0.0;
  double beta = 1e-5;
};

// base * ((alpha + 1 - t/T) * (1 + cos(2 pi periods t/T)) / 2 + beta): Bello et al., "Neural optimizer search", 2017.
class LinearCosine {
 public:
  explicit LinearCosine(double base, LinearCosineOptions options = {})
      : base_(detail::checked_lr("schedule::LinearCosine", base)), o_(options) {
    detail::checked("schedule::LinearCosine", "periods", o_.periods, 0, 1e6);
    detail::checked("schedule::LinearCosine", "alpha", o_.alpha, 0, detail::largest);
    detail::checked("schedule::LinearCosine", "beta", o_.beta, 0, detail::largest);
  }
  [[nodiscard]] double operator()(const SchedulePoint& p) const noexcept {
    const double f = detail::fraction(p);
    const double wave = 0.5 * (1.0 + math::cos(2.0 * std::numbers::pi * o_.periods * f));
    return base_ * ((o_.alpha + 1.0 - f) * wave + o_.beta);
  }

 private:
  double base_;
  LinearCosineOptions o_;
};

}  // namespace tutti::schedule
