// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/core/span_of.hpp>

// The assignment of samples to steps and ranks. An epoch is a permutation of the samples that depends on (seed, epoch)
// only. A step takes the next global_batch indices of it, and the ranks divide these among themselves. So the samples
// seen are always a prefix of the permutation, and one integer holds the progress of the job. The number of ranks and
// the global batch may change between any two steps without losing or repeating a sample. There is no padding: the last
// step of an epoch is short, or continues into the next epoch.
namespace tutti {

// The progress of a job: `consumed` samples of the epoch's permutation have been seen, by all ranks together.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t consumed = 0;
  friend bool operator==(const Position&, const Position&) = default;
};

// What to do with a step that the rest of an epoch does not fill.
enum class EpochEnd : std::uint8_t {
  short_step,  // it takes only the rest: an epoch is whole steps and contains every sample once
  run_on       // it continues with the next epoch: steps are full, as in trainers that read an endless stream
};

// The part [begin, begin + count) of `total` that belongs to a rank. Parts differ by at most one; longer ones come
// first.
struct Part {
  std::int64_t begin = 0, count = 0;
};
[[nodiscard]] constexpr Part part_of(std::int64_t total, int rank, int world) noexcept {  // Returns the rows of a rank.
  const std::int64_t each = total / world, extra = total % world;
  return {rank * each + std::min<std::int64_t>(rank, extra), each + (rank < extra ? 1 : 0)};
}

// How a step is divided.
struct Placement {
  std::int64_t global_batch = 128;  // samples of a step, all ranks together
  int rank = 0;
  int world = 1;
  EpochEnd epoch_end = EpochEnd::short_step;
  // The step computes what so many ranks would, whatever the number of processes is. Each process has a share of these
  // logical ranks, and each logical rank has part_of() the step's rows. 0: each process is one rank.
  int logical_ranks = 0;
  // Shares that are not equal, [world + 1], for example {0, 16, 24}: process r has the logical ranks from bounds[r] to
  // bounds[r + 1]. Without logical ranks it has the rows between these parts of a step, here 0 to 16/24 and 16/24 to 1.
  // A process may have none. Empty: each process has part_of() them.
  std::vector<std::int32_t> bounds{};
  friend bool operator==(const Placement&, const Placement&) = default;

  void check() const {
    if (global_batch < 1) fail<UsageError>("sampler", "a global batch of 1 or more", global_batch);
    if (rank < 0 || rank >= world)
      fail<UsageError>("sampler", "a rank in [0, world size)", {"rank ", rank, " of ", world});
    if (logical_ranks < 0) fail<UsageError>("sampler", "0 logical ranks or more", logical_ranks);
    if (!bounds.empty()) check_bounds();
  }

  // Returns the logical ranks of this process; none if there are more processes than logical ranks, and this is one of
  // the last. Without logical ranks, a process is the logical rank of its number.
  [[nodiscard]] Part logical() const noexcept {
    if (logical_ranks > 0 && !bounds.empty()) {
      const std::int32_t* const of = &bounds[static_cast<std::size_t>(rank)];
      return {of[0], of[1] - of[0]};
    }
    return logical_ranks > 0 ? part_of(logical_ranks, rank, world) : Part{rank, 1};
  }
  // Returns the rows of this process in a step of `count` rows.
  [[nodiscard]] Part rows(std::int64_t count) const noexcept {
    if (logical_ranks == 0 && !bounds.empty()) {
      const std::int32_t* const of = &bounds[static_cast<std::size_t>(rank)];
      const std::int64_t first = count * of[0] / bounds.back();
      return {first, count * of[1] / bounds.back() - first};
    }
    const int ranks = logical_ranks > 0 ? logical_ranks : world;
    const Part of = logical();
    const std::int64_t begin = part_of(count, static_cast<int>(of.begin), ranks).begin;
    return {begin, part_of(count, static_cast<int>(of.begin + of.count), ranks).begin - begin};
  }
  // Returns the rows of logical rank v in a step of `count` rows; without logical ranks, those of this process.
  [[nodiscard]] Part rows_of(std::int64_t v, std::int64_t count) const noexcept {
    return logical_ranks > 0 ? part_of(count, static_cast<int>(v), logical_ranks) : rows(count);
  }
  // Returns the largest number of rows that any process has in a step of at most `count` rows. With bounds, that of
  // this process: a slow one does not need the memory of a fast one. Shares of rows may have one row fewer: a shorter
  // step may have one row more than a longer one, because both ends of a share are rounded down.
  [[nodiscard]] std::int64_t most_rows(std::int64_t count) const noexcept {
    if (logical_ranks == 0 && !bounds.empty()) {
      const std::int32_t* const of = &bounds[static_cast<std::size_t>(rank)];
      return (count * (of[1] - of[0]) + bounds.back() - 1) / bounds.back();
    }
    if (!bounds.empty()) return rows(count).count;
    Placement first = *this;
    first.rank = 0;
    return first.rows(count).count;
  }

 private:
  void check_bounds() const {
    const bool whole = bounds.size() == static_cast<std::size_t>(world) + 1 && bounds.front() == 0 &&
                       (logical_ranks > 0 ? bounds.back() == logical_ranks : bounds.back() > 0) &&
                       std::is_sorted(bounds.begin(), bounds.end());
    if (whole) return;
    std::string got;
    for (const std::int32_t b : bounds) got += (got.empty() ? "" : ", ") + std::to_string(b);
    if (logical_ranks == 0) fail<UsageError>("sampler", {"shares of rows for ", world, " processes, from 0 up"}, got);
    fail<UsageError>("sampler", {"shares of ", logical_ranks, " logical ranks for ", world, " processes, from 0 up"},
                     got);
  }
};

// Returns the samples of the step that starts at p.
[[nodiscard]] constexpr std::int64_t step_count(Position p, std::int64_t size, std::int64_t global_batch,
                                                EpochEnd end = EpochEnd::short_step) noexcept {
  return end == EpochEnd::run_on ? global_batch : std::min(global_batch, size - p.consumed);
}

// Returns the position after the step that starts at p. After the last step of an epoch of whole steps it is {epoch +
// 1, 0}.
[[nodiscard]] constexpr Position advance(Position p, std::int64_t size, std::int64_t global_batch,
                                         EpochEnd end = EpochEnd::short_step) noexcept {
  p.consumed += step_count(p, size, global_batch, end);
  return {p.epoch + p.consumed / size, p.consumed % size};
}

// Returns the steps of an epoch, rounded up if the last step is short. With EpochEnd::run_on, rounds down, as the
// TensorFlow and Horovod trainer does, but returns at least 1.
[[nodiscard]] constexpr std::int64_t steps_per_epoch(std::int64_t size, std::int64_t global_batch,
                                                     EpochEnd end = EpochEnd::short_step) noexcept {
  if (end == EpochEnd::run_on) return std::max<std::int64_t>(size / global_batch, 1);
  return size / global_batch + (size % global_batch != 0 ? 1 : 0);
}

// Returns the number of full steps from p to the end of `epochs` passes. If the last step of an epoch is short, it
// counts too.
[[nodiscard]] constexpr std::int64_t steps_left(Position p, std::int64_t size, std::int64_t global_batch, EpochEnd end,
                                                std::int64_t epochs) noexcept {
  if (p.epoch >= epochs) return 0;
  if (end == EpochEnd::short_step)
    return (epochs - p.epoch - 1) * steps_per_epoch(size, global_batch) +
           steps_per_epoch(size - p.consumed, global_batch);
  return ((epochs - p.epoch) * size - p.consumed) / global_batch;
}

// Fills `out` with the permutation of [0, out.size()) of an epoch, by Fisher and Yates.
TUTTI_CORE_FUNCTION void permutation(std::uint64_t seed, std::int64_t epoch, std::span<std::int64_t> out);

// Blocks with samples in use at once: with blocks of 256, 10,240 samples.
inline constexpr std::int64_t blocks_in_flight = 40;

// Like the other permutation(), for data with adjacent samples that are best read together. The blocks of `block`
// samples are permuted, and each sample is then moved later by a random distance of less than a window of 40 blocks,
// wrapping at the end of the epoch. So at any time at most 42 blocks are started and unfinished (blocks of the first
// window are started twice, because of the wrapping), and samples within the window's length mix. Blocks of 1 and sets
// no larger than the window are permuted uniformly.
TUTTI_CORE_FUNCTION void permutation(std::uint64_t seed, std::int64_t epoch, std::span<std::int64_t> out,
                                     std::int64_t block);

namespace detail {
// Returns the number of bits by which positions below `count` <= 2^32 can be subdivided within 32 bits.
[[nodiscard]] constexpr int spare_bits(std::uint64_t count) noexcept {
  int bits = 0;
  while ((count << (bits + 1)) <= (std::uint64_t{1} << 32)) ++bits;
  return bits;
}
// Throws DataError if a sampler cannot have so many samples.
inline void check_sampler_size(std::int64_t size) {
  if (size < 1 || size > std::numeric_limits<std::uint32_t>::max())
    fail<DataError>("sampler", "1 to 2^32 - 1 samples", size);
}
}  // namespace detail

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void permutation(std::uint64_t seed, std::int64_t epoch, std::span<std::int64_t> out) {
  std::int64_t next = 0;
  for (auto& i : out) i = next++;
  Rng rng(seed, Purpose::shuffle, static_cast<std::uint64_t>(epoch));
  for (std::size_t i = out.size(); i > 1; --i) std::swap(out[i - 1], out[rng.below(static_cast<std::uint32_t>(i))]);
}

TUTTI_CORE_FUNCTION void permutation(std::uint64_t seed, std::int64_t epoch, std::span<std::int64_t> out,
                                     std::int64_t block) {
  const auto n = static_cast<std::int64_t>(out.size());
  if (block <= 1 || (n - 1) / block < blocks_in_flight) return permutation(seed, epoch, out);
  const std::int64_t blocks = (n - 1) / block + 1, rest = n - (blocks - 1) * block;
  const auto at = [&](std::int64_t i) -> std::int64_t& { return out[static_cast<std::size_t>(i)]; };
  Rng rng(seed, Purpose::shuffle, static_cast<std::uint64_t>(epoch));
  for (std::int64_t b = 0; b < blocks; ++b) at(b) = b;
  for (std::int64_t b = blocks; b > 1; --b) std::swap(at(b - 1), at(rng.below(static_cast<std::uint32_t>(b))));
  std::int64_t place_of_short = 0;  // of the last block, which may have fewer samples
  while (at(place_of_short) != blocks - 1) ++place_of_short;
  // Expands blocks to samples from the end: the samples of block position b start no earlier than at b, so no block is
  // overwritten before it is used. Each number holds (position + distance) in the upper half, by which it is sorted,
  // and the sample in the lower half.
  const auto count = static_cast<std::uint64_t>(n);
  const auto window = static_cast<std::uint32_t>(blocks_in_flight * block);
  const int fine = detail::spare_bits(count);  // so that few samples get the same position
  for (std::int64_t b = blocks; b-- > 0;) {
    const std::int64_t begin = b * block - (b > place_of_short ? block - rest : 0);
    const std::int64_t id = at(b);
    for (std::int64_t k = (b == place_of_short ? rest : block); k-- > 0;) {
      const std::uint64_t to = (static_cast<std::uint64_t>(begin + k) + rng.below(window)) % count;
      const std::uint64_t key = (to << fine) | (rng.next() & ((std::uint64_t{1} << fine) - 1));
      at(begin + k) = static_cast<std::int64_t>((key << 32) | static_cast<std::uint64_t>(id * block + k));
    }
  }
  auto* const keys = reinterpret_cast<std::uint64_t*>(out.data());
  std::sort(keys, keys + out.size());
  for (auto& i : out) i &= 0xFFFFFFFF;
}
#endif

// One rank's part of a step. The loss is divided by the count of the whole step.
struct Share {
  std::span<const std::int64_t> indices;
  std::int64_t global_count = 0;
  std::span<const std::int64_t> epochs{};  // of each index, in a step that continues into another epoch; else empty
};

// Keeps the permutation of one epoch. Without shuffling the order is 0, 1, 2, ...
class Sampler {
 public:
  // `block`: how many adjacent samples are best read together.
  Sampler(std::int64_t size, std::uint64_t seed, bool shuffle, std::int64_t block = 1);

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(order_.size()); }

  // Throws UsageError unless p lies in an epoch of this data set.
  void check(Position p) const;

  // The spans are valid until share() is called again.
  [[nodiscard]] Share share(Position p, const Placement& placement);

 private:
  std::span<const std::int64_t> order_of(std::int64_t epoch, std::int64_t from, std::int64_t n);

  std::uint64_t seed_;
  bool shuffle_;
  std::int64_t block_;
  std::int64_t epoch_ = -1;
  std::vector<std::int64_t> order_;
  std::vector<std::int64_t> joined_, epochs_;  // of a step that continues into the next epoch
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION Sampler::Sampler(std::int64_t size, std::uint64_t seed, bool shuffle, std::int64_t block)
    : seed_(seed), shuffle_(shuffle), block_(block) {
  if (block < 1) fail<UsageError>("sampler", "blocks of 1 sample or more", block);
  detail::check_sampler_size(size);
  order_.resize(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) order_[static_cast<std::size_t>(i)] = i;
}
TUTTI_CORE_FUNCTION void Sampler::check(Position p) const {
  if (p.epoch < 0 || p.consumed < 0 || p.consumed >= size())
    fail<UsageError>("sampler", {"a position in an epoch of ", size(), " samples"},
                     {"epoch ", p.epoch, ", ", p.consumed, " consumed"},
                     "use the data set with which the run was started");
}
TUTTI_CORE_FUNCTION Share Sampler::share(Position p, const Placement& placement) {
  check(p);
  placement.check();
  const std::int64_t count = step_count(p, size(), placement.global_batch, placement.epoch_end);
  const Part part = placement.rows(count);
  if (p.consumed + count <= size()) return {order_of(p.epoch, p.consumed + part.begin, part.count), count};
  joined_.clear();
  epochs_.clear();
  for (std::int64_t at = p.consumed + part.begin, left = part.count; left > 0;) {
    const std::int64_t epoch = p.epoch + at / size(), from = at % size(), n = std::min(left, size() - from);
    const auto some = order_of(epoch, from, n);
    joined_.insert(joined_.end(), some.begin(), some.end());
    epochs_.insert(epochs_.end(), some.size(), epoch);
    at += n;
    left -= n;
  }
  return {span_of(joined_), count, span_of(epochs_)};
}
TUTTI_CORE_FUNCTION std::span<const std::int64_t> Sampler::order_of(std::int64_t epoch, std::int64_t from,
                                                                    std::int64_t n) {
  if (shuffle_ && epoch != epoch_) {
    permutation(seed_, epoch, span_of(order_), block_);
    epoch_ = epoch;
  }
  return span_of(order_).subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(n));
}
#endif

}  // namespace tutti
