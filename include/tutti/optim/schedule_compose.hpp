// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/math.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/optim/schedule_decay.hpp>
#include <tutti/optim/schedule_point.hpp>

namespace tutti {

// Any schedule, as a value that is cheap to copy.
class Schedule {
 public:
  template <LrSchedule L>
  requires(!std::same_as<std::remove_cvref_t<L>, Schedule>)
      Schedule(L schedule)  // NOLINT(google-explicit-constructor): every schedule is one
      : self_(shared(new Model<L>(std::move(schedule)))) {}

  [[nodiscard]] double operator()(const SchedulePoint& p) const { return self_->at(p); }

 private:
  struct Interface {
    Interface() = default;
    Interface(const Interface&) = delete;
    Interface& operator=(const Interface&) = delete;
    virtual ~Interface() = default;
    [[nodiscard]] virtual double at(const SchedulePoint& p) const = 0;
  };
  template <class L>
  struct Model final : Interface {
    explicit Model(L s) : schedule(std::move(s)) {}
    [[nodiscard]] double at(const SchedulePoint& p) const override { return static_cast<double>(schedule(p)); }
    L schedule;
  };
  // Takes ownership. One type of shared pointer for all schedules costs a compiler less than one for each.
  [[nodiscard]] static std::shared_ptr<const Interface> shared(const Interface* made);

  std::shared_ptr<const Interface> self_;
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION std::shared_ptr<const Schedule::Interface> Schedule::shared(const Interface* made) {
  return std::shared_ptr<const Interface>(made);
}
#endif

namespace schedule {

namespace detail {

// Returns the point as seen by a run that starts at step `start` and ends at step `end`.
inline SchedulePoint window(SchedulePoint p, std::int64_t start, std::int64_t end) noexcept {
  p.step -= start;
  p.total_steps = std::max<std::int64_t>(end - start, 0);
  return p;
}

}  // namespace detail

// Changes from `from` at step 0 to `to` at step `steps`, linearly or with this power, then continues with `after`.
// `after` sees only the remaining steps: its step 0 is the end of the warmup and its total is the rest of the run.
class Warmup {
 public:
  Warmup(double from, double to, std::int64_t steps, Schedule after, double power = 1)
      : from_(detail::checked_lr("schedule::Warmup", from)),
        to_(detail::checked_lr("schedule::Warmup", to)),
        steps_(steps),
        power_(detail::checked("schedule::Warmup", "a power", power, 0, detail::largest)),
        after_(std::move(after)) {
    if (steps < 0) fail<UsageError>("schedule::Warmup", "0 steps or more", steps);
  }
  [[nodiscard]] double operator()(const SchedulePoint& p) const {
    const auto step = static_cast<double>(p.step), steps = static_cast<double>(steps_);
    if (p.step < steps_)
      return power_ == 1 ? from_ + (to_ - from_) * step / steps
                         : from_ + (to_ - from_) * math::pow(step / steps, power_);
    return after_(detail::window(p, steps_, p.total_steps));
  }

 private:
  double from_;
  double to_;
  std::int64_t steps_;
  double power_;
  Schedule after_;
};

// Like Warmup, but `after` counts from the start of the run, so that "epochs 30, 60 and 80" mean exactly these.
class WarmupWithin {
 public:
  WarmupWithin(double from, double to, std::int64_t steps, Schedule after, double power = 1)
      : warmup_(from, to, steps, after, power), steps_(steps), after_(std::move(after)) {}
  [[nodiscard]] double operator()(const SchedulePoint& p) const { return p.step < steps_ ? warmup_(p) : after_(p); }

 private:
  Warmup warmup_;
  std::int64_t steps_;
  Schedule after_;
};

// Schedules one after the other: parts[i] ends when parts[i + 1] starts, at step at[i]. Each part sees its own steps
// only; the last one lasts to the end of the run.
class Sequence {
 public:
  Sequence(std::vector<Schedule> parts, std::vector<std::int64_t> at) : parts_(std::move(parts)), at_(std::move(at)) {
    if (parts_.size() != at_.size() + 1) {
      fail<UsageError>("schedule::Sequence", {at_.size() + 1, " schedules"}, parts_.size(),
                       "give one more schedule than joints");
    }
    for (std::size_t i = 0; i < at_.size(); ++i) {
      const std::int64_t low = i > 0 ? at_[i - 1] : 0;
      if (at_[i] <= low) {
        fail<UsageError>("schedule::Sequence", "increasing joints from 1", {at_[i], " after ", low});
      }
    }
  }
  [[nodiscard]] double operator()(const SchedulePoint& p) const {
    std::size_t i = 0;
    while (i < at_.size() && p.step >= at_[i]) ++i;
    return parts_[i](detail::window(p, i > 0 ? at_[i - 1] : 0, i < at_.size() ? at_[i] : p.total_steps));
  }

 private:
  std::vector<Schedule> parts_;
  std::vector<std::int64_t> at_;
};

class Scaled {  // Multiplies another schedule by a number.
 public:
  Scaled(double factor, Schedule inner)
      : factor_(detail::checked("schedule::Scaled", "a factor", factor, 0, detail::largest)),
        inner_(std::move(inner)) {}
  [[nodiscard]] double operator()(const SchedulePoint& p) const { return factor_ * inner_(p); }

 private:
  double factor_;
  Schedule inner_;
};

}  // namespace schedule
}  // namespace tutti
