// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>

// Who reads which sample when. An epoch is a permutation of the samples that depends on (seed, epoch) only; a step
// takes the next global_batch indices of it, and the ranks divide these among themselves. So what has been seen is
// always a prefix of the permutation, one integer says how far the job is, and the number of ranks as well as the
// global batch may change between any two steps without losing or repeating a sample. The last step of an epoch is
// short: nothing is padded.
namespace tutti {

// How far a job is: `consumed` samples of the epoch's permutation have been seen, by all ranks together.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;
  friend bool operator==(const Position&, const Position&) = default;
};

// How a step is divided.
struct Placement {
  std::int64_t global_batch = 128;  // samples of a step, all ranks together
  int rank = 0;
  int world = 1;
  friend bool operator==(const Placement&, const Placement&) = default;

  void check() const {
    if (global_batch < 1) fail<UsageError>("sampler", "a global batch of 1 or more", std::to_string(global_batch));
    if (world < 1 || rank < 0 || rank >= world)
      fail<UsageError>("sampler", "a rank in [0, world size)",
                       "rank " + std::to_string(rank) + " of " + std::to_string(world));
  }
};

// The part [begin, begin + count) of `total` that belongs to a rank: parts differ by at most one, longer ones first.
struct Part {
  std::int64_t begin = 0, count = 0;
};
[[nodiscard]] constexpr Part part_of(std::int64_t total, int rank, int world) noexcept {
  const std::int64_t each = total / world, extra = total % world;
  return {rank * each + std::min<std::int64_t>(rank, extra), each + (rank < extra ? 1 : 0)};
}

// Samples of the step that starts at p.
[[nodiscard]] constexpr std::int64_t step_count(Position p, std::int64_t size, std::int64_t global_batch) noexcept {
  return std::min(global_batch, size - p.consumed);
}

// The position after the step that starts at p; after the last one it is {epoch + 1, 0}.
[[nodiscard]] constexpr Position advance(Position p, std::int64_t size, std::int64_t global_batch) noexcept {
  p.consumed += step_count(p, size, global_batch);
  return p.consumed >= size ? Position{p.epoch + 1, 0} : p;
}

[[nodiscard]] constexpr std::int64_t steps_per_epoch(std::int64_t size, std::int64_t global_batch) noexcept {
  return size / global_batch + (size % global_batch != 0 ? 1 : 0);
}

// Fills `out` with the permutation of [0, out.size()) of an epoch, by Fisher and Yates.
inline void permutation(std::uint64_t seed, std::int64_t epoch, std::span<std::int64_t> out) {
  std::iota(out.begin(), out.end(), std::int64_t{0});
  Rng rng(seed, Purpose::shuffle, static_cast<std::uint64_t>(epoch));
  for (std::size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[rng.below(static_cast<std::uint32_t>(i))]);
}

// One rank's part of a step; the count of the whole step is what the loss is divided by.
struct Share {
  std::span<const std::int64_t> indices;
  std::int64_t global_count = 0;
};

// Keeps the permutation of one epoch. Without shuffling the order is 0, 1, 2, ...
class Sampler {
 public:
  Sampler(std::int64_t size, std::uint64_t seed, bool shuffle) : seed_(seed), shuffle_(shuffle) {
    if (size < 1 || size > std::numeric_limits<std::uint32_t>::max())
      fail<DataError>("sampler", "1 to 2^32 - 1 samples", std::to_string(size));
    order_.resize(static_cast<std::size_t>(size));
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
  }

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(order_.size()); }

  // Throws UsageError unless p lies in an epoch of this data set.
  void check(Position p) const {
    if (p.epoch < 0 || p.consumed < 0 || p.consumed >= size())
      fail<UsageError>("sampler", "a position in an epoch of " + std::to_string(size()) + " samples",
                       "epoch " + std::to_string(p.epoch) + ", " + std::to_string(p.consumed) + " consumed",
                       "the data set may not be the one the run was started with");
  }

  // The span is valid until share() is asked for another epoch.
  [[nodiscard]] Share share(Position p, const Placement& placement) {
    check(p);
    placement.check();
    if (shuffle_ && p.epoch != epoch_) {
      permutation(seed_, p.epoch, order_);
      epoch_ = p.epoch;
    }
    const std::int64_t count = step_count(p, size(), placement.global_batch);
    const Part part = part_of(count, placement.rank, placement.world);
    return {std::span<const std::int64_t>(order_).subspan(static_cast<std::size_t>(p.consumed + part.begin),
                                                          static_cast<std::size_t>(part.count)),
            count};
  }

 private:
  std::uint64_t seed_;
  bool shuffle_;
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> order_;
};

}  // namespace tutti
