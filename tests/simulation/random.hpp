// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace tutti::simulation {

// A stream of random numbers (SplitMix64: Steele et al., "Fast splittable pseudorandom number generators", 2014). It
// does not use tutti's generators, which are part of the simulated program.
class Random {
 public:
  explicit Random(std::uint64_t seed, std::uint64_t stream = 0) : state_(seed * 0x9E3779B97F4A7C15ULL + stream) {
    for (int i = 0; i < 4; ++i) (void)next();
  }
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // Returns a number of [0, n).
  std::uint64_t below(std::uint64_t n) { return n == 0 ? 0 : next() % n; }
  // Returns a number of [first, last].
  std::int64_t between(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(last - first + 1)));
  }
  // Returns true once in n times on average, and never for 0.
  bool one_in(std::uint64_t n) { return n != 0 && next() % n == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace tutti::simulation
