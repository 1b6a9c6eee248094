// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <numbers>

#include <tutti/core/math.hpp>

namespace tutti {

// The use of a random number. Streams with different purposes never share numbers.
enum class Purpose : std::uint32_t {
  init = 1,
  shuffle = 2,
  augment = 3,
  synthetic = 4,
  dropout = 5,
  mixing = 6,
  user = 1000
};

// Philox4x32-10, a counter-based generator: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
[[nodiscard]] constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> c,
                                                                std::array<std::uint32_t, 2> k) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<std::uint32_t>(p0)};
    k[0] += 0x9E3779B9U;
    k[1] += 0xBB67AE85U;
  }
  return c;
}

// A stream of random numbers that is a pure function of (seed, epoch, index, purpose): every rank and thread that
// computes it gets the same numbers. A stream has at most 2^32 blocks of four numbers. Seed and index are 64 bits wide;
// epoch and purpose are folded into the counter.
class Rng {
 public:
  Rng(std::uint64_t seed, Purpose purpose, std::uint64_t epoch = 0, std::uint64_t index = 0) noexcept
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        counter_{0, static_cast<std::uint32_t>(index),
                 static_cast<std::uint32_t>(index >> 32) ^ (static_cast<std::uint32_t>(purpose) << 16),
                 static_cast<std::uint32_t>(epoch)} {}

  [[nodiscard]] std::uint32_t next() noexcept {
    if (used_ == 4) {
      block_ = philox4x32(counter_, key_);
      ++counter_[0];
      used_ = 0;
    }
    return block_[static_cast<std::size_t>(used_++)];
  }
  [[nodiscard]] std::uint64_t next64() noexcept {
    const std::uint64_t hi = next();
    return (hi << 32) | next();
  }
  // Returns the epoch that it was made for.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return counter_[3]; }

  // Returns a uniform number in [0, 1) with 24 bits.
  [[nodiscard]] float uniform() noexcept { return static_cast<float>(next() >> 8) * 0x1p-24F; }
  [[nodiscard]] double uniform53() noexcept { return static_cast<double>(next64() >> 11) * 0x1p-53; }
  // Returns a uniform integer in [0, n), unbiased (Lemire 2019); 0 for n = 0.
  [[nodiscard]] std::uint32_t below(std::uint32_t n) noexcept {
    if (n == 0) return 0;
    std::uint64_t m = std::uint64_t{next()} * n;
    if (static_cast<std::uint32_t>(m) < n) {
      const std::uint32_t threshold = (0U - n) % n;
      while (static_cast<std::uint32_t>(m) < threshold) m = std::uint64_t{next()} * n;
    }
    return static_cast<std::uint32_t>(m >> 32);
  }
  // Returns a random bit that flips in every next epoch. Takes no number from the stream.
  [[nodiscard]] bool alternating_coin() const noexcept {
    return ((philox4x32({~std::uint32_t{0}, counter_[1], counter_[2], 0}, key_)[0] ^ counter_[3]) & 1U) != 0;
  }
  // Returns a standard normal number, by Box and Muller.
  [[nodiscard]] double normal() noexcept {
    const double u = 1.0 - uniform53();
    const double v = uniform53();
    return math::sqrt(-2.0 * math::log(u)) * math::cos(2.0 * std::numbers::pi * v);
  }

 private:
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> counter_;
  std::array<std::uint32_t, 4> block_{};
  int used_ = 4;
};

// Returns the random numbers that a rank uses in a training step for all its rows together, for example for dropout or
// for mixing images: a pure function of (seed, purpose, step, logical rank). step: number of the update, from 0, or
// another number that no other step of the run has with this purpose. Below 2^48: the bits above tell purposes apart.
// logical_rank: as in Placement::logical(), below 2^32; without logical ranks it is the rank. Numbers of a single
// sample come from Rng(seed, purpose, epoch, index) instead. A purpose belongs to one of the two kinds.
[[nodiscard]] inline Rng batch_rng(std::uint64_t seed, Purpose purpose, std::uint64_t step,
                                   std::uint64_t logical_rank) noexcept {
  return {seed, purpose, logical_rank, step};
}

}  // namespace tutti
