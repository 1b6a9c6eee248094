// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/core/math.hpp>
#include <tutti/engine/step/integer_sums.hpp>

// Definitions for integer_sums.hpp, which includes this file unless they are compiled separately (core/separate.hpp).
namespace tutti {

namespace integer_sums {

// A block whose unit does not come from a bound starts here: bounds from 2^-32 to 2^2 get a precise level.
inline constexpr std::int32_t first_exponent = -48;
// One contribution to a bound is limited to this, so that the sum of 4,096 contributions stays in 63 bits. A larger
// sum shows that the unit is much too small: it grows by `jump` octaves.
inline constexpr std::int64_t most = std::int64_t{1} << 50;
// A provisional unit is too large for a bound below this: it shrinks by `jump` octaves.
inline constexpr std::int64_t precise = std::int64_t{1} << 16;
inline constexpr std::int32_t jump = 34;

// Returns |g| / 2^exponent, rounded up and limited. bits: of |g|, finite. Integer operations only.
[[nodiscard]] inline std::int64_t units(std::uint32_t bits, std::int32_t exponent) noexcept {
  const std::int32_t field = static_cast<std::int32_t>(bits >> 23);
  const std::uint64_t mantissa = (bits & 0x7fffffU) | (field != 0 ? 0x800000U : 0U);
  if (mantissa == 0) return 0;
  const std::int32_t shift = std::max(field, 1) - 150 - exponent;  // |g| = mantissa * 2^(shift + exponent)
  if (shift >= 27) return most;
  if (shift >= 0) return static_cast<std::int64_t>(mantissa << shift);
  if (shift <= -24) return 1;
  return static_cast<std::int64_t>((mantissa + (std::uint64_t{1} << -shift) - 1) >> -shift);
}

// The limbs of a statistic count units of 2^-8 and 2^-56.
inline constexpr double coarse = 256.0, fine = 72057594037927936.0, most_state = 1099511627776.0;

}  // namespace integer_sums

TUTTI_CORE_FUNCTION IntegerSums::IntegerSums(Backend& backend, const ArenaLayout& parameters, std::size_t slices,
                                             std::size_t states, int logical_ranks)
    : b_(backend), ranks_(logical_ranks), states_(states) {
  if (parameters.dtype != DType::f32)
    fail<UsageError>("logical ranks", "f32 or bf16", name_of(parameters.dtype), "use --precision f32 or bf16");
  IntegerBlocks t = make_integer_blocks(parameters, slices);
  blocks_ = std::move(t.blocks);
  first_block_ = std::move(t.first_block);
  layout_.dtype = DType::i32;
  layout_.append("levels", Shape{static_cast<std::int64_t>(blocks_.size())}, false, false);
  host_levels_.resize(layout_.count);
  provisional_.resize(blocks_.size());
  taken_.resize(blocks_.size());
  host_maxima_.resize(blocks_.size());
  host_states_.resize(states);
  tail_.resize(1 + blocks_.size() + 2 * states + 4);
  elements_ = slices < parameters.slices.size() ? parameters.slices[slices].offset : parameters.count;
  if (blocks_.empty()) return;
  levels_ = Buffer(b_.memory(), layout_.bytes());
  units_ = Buffer(b_.memory(), blocks_.size() * sizeof(IntegerBlock));
  maxima_ = Buffer(b_.memory(), blocks_.size() * sizeof(std::uint32_t));
}

TUTTI_CORE_FUNCTION void IntegerSums::begin(bool repeats) {
  attempts_ = repeats ? attempts_ + 1 : 1;
  if (!repeats) use_levels();
  upload_units();
  std::fill(tail_.begin(), tail_.end(), 0);
  tail_.back() = -left_out_;
  added_ = waiting_ = false;
}

TUTTI_CORE_FUNCTION void IntegerSums::use_levels() {
  b_.memory().copy_out(host_levels_.data(), levels_.data(), layout_.bytes());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    provisional_[i] = host_levels_[i] <= 0;
    blocks_[i].exponent =
        provisional_[i] != 0 ? integer_sums::first_exponent : integer_level::exponent_of(host_levels_[i]);
  }
}

TUTTI_CORE_FUNCTION void IntegerSums::upload_units() {
  b_.memory().copy_in(units_.data(), blocks_.data(), units_.bytes());
}

TUTTI_CORE_FUNCTION void IntegerSums::reserve_earlier() {
  if (earlier_.bytes() == 0) earlier_ = Buffer(b_.memory(), elements_ * sizeof(std::int32_t));
}

TUTTI_CORE_FUNCTION void IntegerSums::begin_part(bool last, void* gradients) {
  if (blocks_.empty()) return;
  collect_maxima();
  if (!last) reserve_earlier();
  std::fill(taken_.begin(), taken_.end(), std::uint8_t{0});
  b_.memory().zero(maxima_.data(), maxima_.bytes());
  taken_from_ = static_cast<const float*>(gradients);
  taken_to_ = static_cast<std::int32_t*>(last ? gradients : earlier_.data());
}

TUTTI_CORE_FUNCTION void IntegerSums::take(const float* place, const float* values, std::size_t count) {
  const auto begin = static_cast<std::size_t>(place - taken_from_), end = begin + count;
  const auto after = std::upper_bound(blocks_.begin(), blocks_.end(), begin,
                                      [](std::size_t e, const IntegerBlock& b) { return e < b.begin; });
  auto i = static_cast<std::size_t>(after - blocks_.begin()) - 1;
  auto* const maxima = static_cast<std::uint32_t*>(maxima_.data());
  for (std::size_t at = begin; at < end; ++i) {
    if (i >= blocks_.size() || at >= blocks_[i].begin + blocks_[i].count) return;  // not trained
    IntegerBlock piece = blocks_[i];
    const std::size_t stop = std::min<std::size_t>(end, piece.begin + piece.count);
    piece.begin = 0;
    piece.count = static_cast<std::uint32_t>(stop - at);
    std::uint32_t greatest = 0;
    const std::int32_t* const plus = added_ ? static_cast<const std::int32_t*>(earlier_.data()) + at : nullptr;
    b_.piece_to_integers({&piece, 1, values + (at - begin), taken_to_ + at, plus, &greatest});
    std::atomic_ref<std::uint8_t>(taken_[i]).store(1, std::memory_order_relaxed);
    const std::atomic_ref<std::uint32_t> most(maxima[i]);
    for (std::uint32_t known = most.load(std::memory_order_relaxed);
         known < greatest && !most.compare_exchange_weak(known, greatest, std::memory_order_relaxed);) {
    }
    at = stop;
  }
}

// Converts blocks [begin, end) that take() has not got.
TUTTI_CORE_FUNCTION void IntegerSums::convert_blocks(std::size_t begin, std::size_t end, const void* gradients,
                                                     std::int32_t* to) {
  const auto* const plus = added_ ? static_cast<const std::int32_t*>(earlier_.data()) : nullptr;
  for (std::size_t i = begin; i < end;) {
    const std::size_t first = i;
    while (i < end && taken_[i] == taken_[first]) ++i;
    if (taken_[first] == 0)
      b_.to_integers({static_cast<const IntegerBlock*>(units_.data()) + first, i - first,
                      static_cast<const float*>(gradients), to, plus,
                      static_cast<std::uint32_t*>(maxima_.data()) + first});
  }
  if (end < blocks_.size()) return;
  waiting_ = true;
  std::fill(taken_.begin(), taken_.end(), std::uint8_t{0});
}

TUTTI_CORE_FUNCTION void IntegerSums::add(std::size_t first, std::size_t last, const void* gradients) {
  if (first >= last) return;
  if (first == 0) collect_maxima();
  reserve_earlier();
  convert_blocks(first_block_[first], first_block_[last], gradients, static_cast<std::int32_t*>(earlier_.data()));
  if (first_block_[last] == blocks_.size()) added_ = true;
}

TUTTI_CORE_FUNCTION void IntegerSums::convert(std::size_t first, std::size_t last, void* gradients) {
  if (first >= last) return;
  if (first == 0) collect_maxima();
  convert_blocks(first_block_[first], first_block_[last], gradients, static_cast<std::int32_t*>(gradients));
}

// Adds the maxima of the last part to the bounds.
TUTTI_CORE_FUNCTION void IntegerSums::collect_maxima() {
  if (!std::exchange(waiting_, false)) return;
  b_.memory().copy_out(host_maxima_.data(), maxima_.data(), maxima_.bytes());
  std::int64_t* const bounds = tail_.data() + 1;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (host_maxima_[i] >= 0x7f800000U)
      ++tail_[0];
    else
      bounds[i] = std::min(bounds[i] + integer_sums::units(host_maxima_[i], blocks_[i].exponent), integer_sums::most);
  }
}

TUTTI_CORE_FUNCTION void IntegerSums::end_rank(const void* states) {
  if (states_ == 0) return;
  b_.memory().copy_out(host_states_.data(), states, states_ * sizeof(float));
  std::int64_t* const limbs = tail_.data() + 1 + blocks_.size();
  for (std::size_t i = 0; i < states_; ++i) {
    const auto x = static_cast<double>(host_states_[i]);
    if (!(math::fabs(x) <= integer_sums::most_state)) {
      ++tail_[0];
      continue;
    }
    const double high = math::floor(x * integer_sums::coarse);
    const double rest = x - high / integer_sums::coarse;  // exact: 0 <= rest < 2^-8
    limbs[2 * i] += static_cast<std::int64_t>(high);
    limbs[2 * i + 1] += math::llround(rest * integer_sums::fine);
  }
}

TUTTI_CORE_FUNCTION void IntegerSums::add_metrics(const std::array<double, 4>& of_part) {
  std::int64_t* const sums = tail_.data() + tail_.size() - of_part.size();
  // A loss that is not finite is counted elsewhere; the sum of a greater one has no use.
  const double loss = of_part[0];
  if (math::is_finite(loss)) sums[0] += math::llround(std::clamp(loss, -0x1p26, 0x1p26) * 0x1p24);
  for (std::size_t i = 1; i < of_part.size(); ++i) sums[i] += math::llround(of_part[i]);
}

TUTTI_CORE_FUNCTION std::array<double, 4> IntegerSums::metrics() const {
  const std::int64_t* const sums = tail_.data() + tail_.size() - 4;
  return {static_cast<double>(sums[0]) * 0x1p-24, static_cast<double>(sums[1]), static_cast<double>(sums[2]),
          static_cast<double>(sums[3])};
}

TUTTI_CORE_FUNCTION std::span<std::int64_t> IntegerSums::tail() {
  collect_maxima();
  return tail_;
}

TUTTI_CORE_FUNCTION SumCheck IntegerSums::check() {
  collect_maxima();  // one process does not call tail()
  if (tail_[0] != 0) return SumCheck::not_finite;
  bool repeats = false;
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    if (change_unit(i)) repeats = true;
  if (repeats) {
    if (attempts_ >= most_attempts)
      fail<DeviceError>("logical ranks", "equal gradients if a step is repeated",
                        {"other gradients, ", attempts_, " times"},
                        "check the device; a backend or a custom op may not be deterministic");
    return SumCheck::repeat;
  }
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const std::int64_t bound = tail_[1 + i];
    std::int32_t& level = host_levels_[i];
    if (level == 0) continue;  // all its gradients have been zero so far
    level = integer_level::next_level(level, bound != 0 ? integer_level::level_of(bound, blocks_[i].exponent) : 0);
  }
  b_.memory().copy_in(levels_.data(), host_levels_.data(), layout_.bytes());
  return SumCheck::fits;
}

// Changes the unit of a block if its sum needs another one. Returns whether it did.
TUTTI_CORE_FUNCTION bool IntegerSums::change_unit(std::size_t i) {
  const std::int64_t bound = tail_[1 + i];
  std::int32_t& exponent = blocks_[i].exponent;
  const bool provisional = provisional_[i] != 0;
  if (bound == 0) return false;  // a sum of zeros is exact in any unit
  if (bound >= integer_sums::most) {
    exponent = std::min(exponent + integer_sums::jump, integer_level::greatest_exponent);
    provisional_[i] = 1;
    return true;
  }
  if (provisional && bound < integer_sums::precise && exponent > integer_level::least_exponent) {
    exponent = std::max(exponent - integer_sums::jump, integer_level::least_exponent);
    return true;
  }
  if (!provisional && bound <= integer_level::greatest_sum) return false;
  host_levels_[i] = integer_level::level_of(bound, exponent);
  exponent = integer_level::exponent_of(host_levels_[i]);
  provisional_[i] = 0;
  return true;
}

TUTTI_CORE_FUNCTION void IntegerSums::restore(void* gradients) { restore(0, elements_, gradients); }

TUTTI_CORE_FUNCTION void IntegerSums::restore(std::size_t begin, std::size_t end, void* gradients) {
  const auto first_after = [&](std::size_t element) {
    const auto at = std::lower_bound(blocks_.begin(), blocks_.end(), element,
                                     [](const IntegerBlock& b, std::size_t e) { return b.begin < e; });
    return static_cast<std::size_t>(at - blocks_.begin());
  };
  const std::size_t first = first_after(begin), last = first_after(end);
  if (first >= last) return;
  b_.from_integers({static_cast<const IntegerBlock*>(units_.data()) + first, last - first,
                    static_cast<const std::int32_t*>(gradients), static_cast<float*>(gradients)});
}

TUTTI_CORE_FUNCTION void IntegerSums::take_states(void* states) {
  if (states_ == 0) return;
  const std::int64_t* const limbs = tail_.data() + 1 + blocks_.size();
  for (std::size_t i = 0; i < states_; ++i) {
    const double sum = static_cast<double>(limbs[2 * i]) / integer_sums::coarse +
                       static_cast<double>(limbs[2 * i + 1]) / integer_sums::fine;
    host_states_[i] = static_cast<float>(sum / ranks_);
  }
  b_.memory().copy_in(states, host_states_.data(), states_ * sizeof(float));
}

}  // namespace tutti
