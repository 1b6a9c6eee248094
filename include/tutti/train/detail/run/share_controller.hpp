// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/core/separate.hpp>

// The shares that follow the speed of the processes: those of logical ranks (Shares::measured), or of the rows of a
// step (Shares::rows). Both are called units here. All times are whole nanoseconds, so that every process computes the
// same shares from the same numbers.
namespace tutti::detail {

// Returns the numbers of units with which the slowest process ends earliest. nanoseconds: the time of each process for
// one of them, at least 1. With equal times, they are those of part_of(). A process has none only if a step takes at
// most half the time without it, or if there are more processes than units. must_have: a process that has at least one,
// or -1.
[[nodiscard]] TUTTI_CORE_FUNCTION std::vector<std::int32_t> fastest_shares(int units,
                                                                           std::span<const std::int64_t> nanoseconds,
                                                                           int must_have = -1);

// Returns the time of the slowest process.
[[nodiscard]] TUTTI_CORE_FUNCTION std::int64_t step_time(std::span<const std::int32_t> shares,
                                                         std::span<const std::int64_t> nanoseconds);

// The times of this process in the last few steps.
class SpeedWindow {
 public:
  // Adds a step in which `shares` units took so many seconds in all. Has no effect without any.
  TUTTI_CORE_FUNCTION void add(double seconds, std::int64_t shares);
  // Call it after a change of the shares. Keeps the time, and ignores the next step, which may allocate memory.
  void restart() {
    known_ = nanoseconds();
    count_ = 0;
  }
  // Returns the nanoseconds for one unit: the median of the last steps, so that a few slow steps change
  // nothing; after restart(), the time before it until steps were added. 0: not known.
  [[nodiscard]] TUTTI_CORE_FUNCTION std::int64_t nanoseconds() const;

  static constexpr std::size_t steps = 11;

 private:
  std::array<std::int64_t, steps> last_{};
  std::size_t count_ = 0;   // of steps since restart(); the first one is ignored
  std::int64_t known_ = 0;  // before them
};

// Decides when and how the shares change. It reads no clock, and all processes call the same functions with the same
// arguments, so all have the same shares. A change must make a step 3 % shorter. If changes follow one another rapidly,
// the next one waits longer: shares do not oscillate with speeds that change too often.
class ShareController {
 public:
  // What decide() found.
  struct Decision {
    bool changes = false;
    std::int64_t before = 0, after = 0;  // nanoseconds of a step with the earlier and the new shares
    int slow = -1;            // a rank that all others wait for although it has one unit or none, the first time
    std::int64_t others = 0;  // with `slow`: nanoseconds of a step without this rank
  };

  explicit ShareController(int units) : units_(units) {}

  // Begins with other processes after `step`. nanoseconds: the last known time of each rank; 0: not known, which counts
  // as the median of the others.
  TUTTI_CORE_FUNCTION void begin(std::int64_t step, std::vector<std::int64_t> nanoseconds);
  // Returns whether the processes exchange their times and call decide() after this step.
  [[nodiscard]] bool due(std::int64_t step) const noexcept { return step >= due_; }
  // Call it after a step that is not measured, in place of due(): the next exchange comes one step later.
  void skip_step() noexcept { ++due_; }
  // Takes the times of all ranks.
  TUTTI_CORE_FUNCTION Decision decide(std::int64_t step, std::vector<std::int64_t> nanoseconds);

  [[nodiscard]] const std::vector<std::int32_t>& shares() const noexcept { return shares_; }
  // Returns Placement::bounds of the shares, also if they are equal: [processes + 1].
  [[nodiscard]] TUTTI_CORE_FUNCTION std::vector<std::int32_t> bounds() const;
  // Returns the time of each rank of the last decision.
  [[nodiscard]] const std::vector<std::int64_t>& nanoseconds() const noexcept { return nanoseconds_; }

  // Steps: between two exchanges of times; from a change to the next exchange, at least and at most; from the exchange
  // that leaves a process without work to the step in which it gets one unit to be measured again, at least;
  // from then to the exchange that decides whether it keeps it.
  static constexpr std::int64_t interval = 5, shortest = 7, longest = 224, idle = 100, trial = 3;
  // A process without work is measured again so rarely that this costs one part of so many of the time.
  static constexpr std::int64_t price = 50;

 private:
  void fill_unknown();
  [[nodiscard]] int due_again(std::int64_t step) const;
  [[nodiscard]] std::int64_t affordable_idle(std::size_t rank) const;
  void change(std::int64_t step, std::vector<std::int32_t> to, bool tries);
  void find_slow(Decision& d);

  int units_;
  std::vector<std::int64_t> nanoseconds_, idle_until_, idle_steps_;
  std::vector<std::int32_t> shares_;
  std::vector<std::uint8_t> named_;
  std::int64_t due_ = 0, changed_ = 0, hold_ = shortest;
  int rapid_ = 0;   // number of changes in rapid succession
  int tries_ = -1;  // the rank that has a unit only to be measured
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION std::int64_t step_time(std::span<const std::int32_t> shares,
                                           std::span<const std::int64_t> nanoseconds) {
  std::int64_t most = 0;
  for (std::size_t r = 0; r < shares.size(); ++r) most = std::max(most, shares[r] * nanoseconds[r]);
  return most;
}

TUTTI_CORE_FUNCTION std::vector<std::int32_t> fastest_shares(int units, std::span<const std::int64_t> nanoseconds,
                                                             int must_have) {
  const std::size_t world = nanoseconds.size();
  const auto deal = [&](bool all) {
    std::vector<std::int32_t> shares(world, all ? 1 : 0);
    if (!all && must_have >= 0) shares[static_cast<std::size_t>(must_have)] = 1;
    // A heap of ranks: the first one ends earliest with one unit more.
    std::vector<std::size_t> order(world);
    for (std::size_t r = 0; r < world; ++r) order[r] = r;
    const auto later = [&](std::size_t a, std::size_t b) {
      const std::int64_t of_a = (shares[a] + 1) * nanoseconds[a], of_b = (shares[b] + 1) * nanoseconds[b];
      return of_a != of_b ? of_a > of_b : a > b;
    };
    std::make_heap(order.begin(), order.end(), later);
    std::int64_t left = units;
    for (const std::int32_t s : shares) left -= s;
    for (; left > 0; --left) {
      std::pop_heap(order.begin(), order.end(), later);
      ++shares[order.back()];
      std::push_heap(order.begin(), order.end(), later);
    }
    return shares;
  };
  std::vector<std::int32_t> some = deal(false);
  if (world > static_cast<std::size_t>(units) || *std::min_element(some.begin(), some.end()) > 0) return some;
  std::vector<std::int32_t> all = deal(true);
  return step_time(all, nanoseconds) >= 2 * step_time(some, nanoseconds) ? some : all;
}

TUTTI_CORE_FUNCTION void SpeedWindow::add(double seconds, std::int64_t shares) {
  if (shares <= 0) return;
  constexpr double most = 1e14;
  const double each = std::clamp(seconds * 1e9 / static_cast<double>(shares), 1.0, most);
  if (count_++ > 0) last_[(count_ - 2) % steps] = static_cast<std::int64_t>(each);
}

TUTTI_CORE_FUNCTION std::int64_t SpeedWindow::nanoseconds() const {
  const std::size_t n = std::min(count_ == 0 ? 0 : count_ - 1, steps);
  if (n == 0) return known_;
  std::array<std::int64_t, steps> sorted = last_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((n - 1) / 2);
  std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(n));
  return *middle;
}

TUTTI_CORE_FUNCTION void ShareController::begin(std::int64_t step, std::vector<std::int64_t> nanoseconds) {
  const std::size_t world = nanoseconds.size();
  nanoseconds_ = std::move(nanoseconds);
  fill_unknown();
  shares_ = fastest_shares(units_, nanoseconds_);
  named_.assign(world, 0);
  idle_steps_.assign(world, idle);
  idle_until_.assign(world, step + idle);
  for (std::size_t r = 0; r < world; ++r)
    if (shares_[r] == 0) idle_until_[r] = step + std::max(idle, affordable_idle(r));
  hold_ = shortest;
  rapid_ = 0;
  tries_ = -1;
  changed_ = step;
  due_ = step + shortest;
}

TUTTI_CORE_FUNCTION void ShareController::fill_unknown() {
  std::vector<std::int64_t> known;
  for (const std::int64_t t : nanoseconds_)
    if (t > 0) known.push_back(t);
  if (!known.empty())
    std::nth_element(known.begin(), known.begin() + static_cast<std::ptrdiff_t>(known.size() / 2), known.end());
  const std::int64_t median = known.empty() ? 1 : known[known.size() / 2];
  for (std::int64_t& t : nanoseconds_)
    if (t <= 0) t = median;
}

// Returns a process that has had no work for so long that it is measured again, or -1.
TUTTI_CORE_FUNCTION int ShareController::due_again(std::int64_t step) const {
  if (shares_.size() > static_cast<std::size_t>(units_)) return -1;
  for (std::size_t r = 0; r < shares_.size(); ++r)
    if (shares_[r] == 0 && step >= idle_until_[r]) return static_cast<int>(r);
  return -1;
}

// Returns the steps after which a process without work may have one unit again for `trial` steps.
TUTTI_CORE_FUNCTION std::int64_t ShareController::affordable_idle(std::size_t rank) const {
  return price * trial * nanoseconds_[rank] / std::max<std::int64_t>(step_time(shares_, nanoseconds_), 1);
}

TUTTI_CORE_FUNCTION void ShareController::change(std::int64_t step, std::vector<std::int32_t> to, bool tries) {
  shares_.swap(to);
  for (std::size_t r = 0; r < to.size(); ++r) {
    if (shares_[r] > 0 || to[r] == 0) continue;
    // It waits longer each time it was measured for nothing.
    idle_steps_[r] = static_cast<int>(r) == tries_ ? std::min<std::int64_t>(2 * idle_steps_[r], 32 * idle) : idle;
    idle_until_[r] = step + std::max(idle_steps_[r], affordable_idle(r));
  }
  if (tries) {
    due_ = step + trial;
    return;
  }
  rapid_ = step - changed_ <= 6 * hold_ ? rapid_ + 1 : 0;
  // A change of speed may need a second change of the shares, with better times.
  hold_ = rapid_ < 2 ? shortest : std::min(2 * hold_, longest);
  changed_ = step;
  due_ = step + hold_;
}

TUTTI_CORE_FUNCTION void ShareController::find_slow(Decision& d) {
  const std::int64_t now = step_time(shares_, nanoseconds_);
  for (std::size_t r = 0; r < shares_.size(); ++r) {
    if (shares_[r] > 1) named_[r] = 0;
    if (shares_[r] > 1 || shares_.size() < 2 || static_cast<int>(r) == tries_) continue;
    const bool waits = shares_[r] == 0 && shares_.size() <= static_cast<std::size_t>(units_);
    const bool slowest = shares_[r] == 1 && nanoseconds_[r] == now;
    std::int64_t others = 0;
    if (waits || slowest) {
      std::vector<std::int64_t> rest = nanoseconds_;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(r));
      others = step_time(fastest_shares(units_, rest), rest);
    }
    // It lets the others wait for more than a fifth of a step, or has no work because it is too slow.
    const bool slow = waits || (slowest && 4 * now >= 5 * others);
    if (slow && named_[r] != 0) continue;
    if (slow && d.slow >= 0) continue;  // after the next exchange
    named_[r] = slow ? 1 : 0;
    if (!slow) continue;
    d.slow = static_cast<int>(r);
    d.others = others;
  }
}

TUTTI_CORE_FUNCTION ShareController::Decision ShareController::decide(std::int64_t step,
                                                                      std::vector<std::int64_t> nanoseconds) {
  nanoseconds_ = std::move(nanoseconds);
  fill_unknown();
  Decision d;
  d.before = d.after = step_time(shares_, nanoseconds_);
  due_ = step + interval;
  const int again = due_again(step);
  std::vector<std::int32_t> best = fastest_shares(units_, nanoseconds_, again);
  const std::int64_t after = step_time(best, nanoseconds_);
  const bool gains = after * 100 <= d.before * 97 || tries_ >= 0;
  if (best != shares_ && (gains || again >= 0)) {
    d.changes = true;
    d.after = after;
    change(step, std::move(best), again >= 0);
  }
  tries_ = again;
  find_slow(d);
  return d;
}

TUTTI_CORE_FUNCTION std::vector<std::int32_t> ShareController::bounds() const {
  std::vector<std::int32_t> bounds{0};
  for (const std::int32_t s : shares_) bounds.push_back(bounds.back() + s);
  return bounds;
}
#endif

}  // namespace tutti::detail
