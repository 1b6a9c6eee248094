// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <numbers>
#include <utility>

#include <tutti/core/math.hpp>
#include <tutti/optim/schedule_compose.hpp>
#include <tutti/optim/schedule_decay.hpp>
#include <tutti/optim/schedule_point.hpp>

// One cycle of the learning rate and of the momentum over the whole run, and schedules that change only between epochs.
namespace tutti::schedule {

struct OneCycleOptions {   // Options of OneCycle, with the names and defaults of torch.optim.lr_scheduler.OneCycleLR.
  double pct_start = 0.3;  // share of the steps in which the rate rises
  double div_factor = 25;  // peak divided by the first rate
  double final_div_factor = 1e4;  // first rate divided by the last one
  bool linear = false;            // lines; otherwise halves of cosines
  bool three_phase = false;       // falls to the first rate in as many steps as it rose, then to the last rate
};

namespace detail {

// Goes from `first` to `middle` and on to `last`; with three phases, through `first` again.
inline double one_cycle(const OneCycleOptions& o, const SchedulePoint& p, double first, double middle,
                        double last) noexcept {
  const auto total = static_cast<double>(p.total_steps), step = static_cast<double>(p.step);
  const double rise = o.pct_start * total - 1;
  struct Phase {
    double end, from, to;
  };
  const std::array<Phase, 3> phases = {{{rise, first, middle},
                                        {o.three_phase ? 2 * rise : total - 1, middle, o.three_phase ? first : last},
                                        {total - 1, first, last}}};
  double begin = 0;
  for (std::size_t i = 0; i < (o.three_phase ? 3U : 2U); ++i) {
    const Phase& f = phases[i];
    if (step <= f.end) {
      const double share = f.end > begin ? (step - begin) / (f.end - begin) : 1;
      if (o.linear) return f.from + (f.to - f.from) * share;
      return f.to + (f.from - f.to) / 2 * (1 + math::cos(std::numbers::pi * share));
    }
    begin = f.end;
  }
  return last;
}

}  // namespace detail

// Rises from peak / div_factor to peak and falls to the last rate: Smith and Topin, "Super-convergence", 2017, in the
// form of PyTorch. The rate of the last step is the last rate.
class OneCycle {
 public:
  explicit OneCycle(double peak, OneCycleOptions options = {})
      : peak_(detail::checked_lr("schedule::OneCycle", peak)), o_(options) {
    detail::checked("schedule::OneCycle", "pct_start", o_.pct_start, 0, o_.three_phase ? 0.5 : 1);
    detail::checked("schedule::OneCycle", "div_factor", o_.div_factor, 1e-6, 1e30);
    detail::checked("schedule::OneCycle", "final_div_factor", o_.final_div_factor, 1e-6, 1e30);
  }
  [[nodiscard]] double operator()(const SchedulePoint& p) const noexcept {
    const double first = peak_ / o_.div_factor;
    return detail::one_cycle(o_, p, first, peak_, first / o_.final_div_factor);
  }

 private:
  double peak_;
  OneCycleOptions o_;
};

// The momentum of a cycle, or beta1: falls from max to base while the rate rises, and rises again while the rate falls
// from its peak, as OneCycleLR's cycle_momentum.
class CycledMomentum {
 public:
  // options: those of the rate's OneCycle; the factors are not used.
  explicit CycledMomentum(double base = 0.85, double max = 0.95, OneCycleOptions options = {})
      : base_(base), max_(max), o_(options) {
    for (const double m : {base, max})
      if (!(m >= 0 && m < 1)) fail<UsageError>("schedule::CycledMomentum", "a momentum in [0, 1)", m);
    if (base > max) fail<UsageError>("schedule::CycledMomentum", {"a base of at most ", max}, base);
    detail::checked("schedule::CycledMomentum", "pct_start", o_.pct_start, 0, o_.three_phase ? 0.5 : 1);
  }
  [[nodiscard]] double operator()(const SchedulePoint& p) const noexcept {
    return detail::one_cycle(o_, p, max_, base_, max_);
  }

 private:
  double base_, max_;
  OneCycleOptions o_;
};

// Keeps the rate of the first step of an epoch through the epoch, as schedulers that are stepped once for each epoch.
class PerEpoch {
 public:
  explicit PerEpoch(Schedule inner) : inner_(std::move(inner)) {}
  [[nodiscard]] double operator()(SchedulePoint p) const {
    p.step -= p.steps_per_epoch > 0 ? p.step % p.steps_per_epoch : 0;
    return inner_(p);
  }

 private:
  Schedule inner_;
};

}  // namespace tutti::schedule
