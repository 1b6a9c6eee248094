// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>

#include "arguments.hpp"

// The work of one rank: for each size, runs the ways to sum in turns, times them and verifies their results.
namespace tutti::bench {

// One way to sum, as a rank calls it.
struct Way {
  std::string name;
  std::span<float> data;
  std::function<void(std::span<float>)> all_reduce;
  // bring copies `data` to the place of the sum, and fetch copies the sum back, if the way does not sum in `data`
  // itself. These copies are not timed.
  std::function<void(std::span<float>)> bring = {}, fetch = {};
};

// The data and functions of one rank for the sweep.
struct Rank {
  int rank, size;
  std::vector<Way> ways;
  std::function<void()> barrier;
  // Gathers the microseconds of each rank. Returns those of all ranks, in the order of the ranks, on rank 0.
  std::function<std::vector<double>(const std::vector<double>&)> collect;
};

// Numbers with sums that float represents exactly: they are small, and each further sum multiplies them by the number
// of ranks.
class Values {
 public:
  Values(std::span<float> data, int rank, int size) : data_(data), rank_(rank), size_(size) {}
  // Call it before each sum.
  void prepare() {
    if (factor_ * 7 * size_ < (1 << 24) && filled_) return;
    for (std::size_t i = 0; i < data_.size(); ++i)
      data_[i] = static_cast<float>((i & 3U) + 1) * (1.F + static_cast<float>(rank_));
    filled_ = true;
    factor_ = 0;
  }
  // Call it after each sum. Throws if the sum is wrong.
  void check(const std::string& what) {
    factor_ = factor_ == 0 ? size_ * (size_ + 1) / 2 : factor_ * size_;
    const auto f = static_cast<float>(factor_);
    std::uint32_t wrong = 0;
    for (std::size_t i = 0; i < data_.size(); ++i) wrong |= data_[i] == static_cast<float>((i & 3U) + 1) * f ? 0U : 1U;
    if (wrong != 0)
      fail("allreduce", "correct sums",
           "wrong sums from " + what + " at " + std::to_string(data_.size() * 4) + " bytes");
  }

 private:
  std::span<float> data_;
  int rank_, size_;
  int factor_ = 0;
  bool filled_ = false;
};

inline void header(const Args& a, const Rank& r) {
  if (a.osu) return;
  std::printf("# all-reduce, f32, in place, %d ranks, %u cores; microseconds, each the mean over the ranks\n", r.size,
              std::thread::hardware_concurrency());
  std::printf("%11s %-8s %11s %11s %11s %11s %11s %9s %8s\n", "bytes", "way", "min", "p50", "mean", "p99", "max",
              "bus GB/s", "speedup");
}

// Prints one line and returns the median. all: the times of all ranks, one for each iteration.
inline double print(const Args& a, const Rank& r, const Way& w, std::size_t bytes, const std::vector<double>& all,
                    double first_median) {
  const std::size_t n = all.size() / static_cast<std::size_t>(r.size);
  std::vector<double> mean(n, 0.);
  std::vector<double> of_rank(static_cast<std::size_t>(r.size), 0.);
  double total = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    mean[i % n] += all[i] / r.size;
    of_rank[i / n] += all[i] / static_cast<double>(n);
    total += all[i] / static_cast<double>(all.size());
  }
  std::sort(mean.begin(), mean.end());
  const auto at = [&](double q) { return mean[static_cast<std::size_t>(q * static_cast<double>(n - 1) + 0.5)]; };
  const double bus = static_cast<double>(bytes) * 2 * (r.size - 1) / r.size / at(0.5) * 1e-3;
  if (a.osu)
    std::printf("%-10zu%18.2f%18.2f%18.2f%12zu\n", bytes, total, *std::min_element(of_rank.begin(), of_rank.end()),
                *std::max_element(of_rank.begin(), of_rank.end()), n);
  else
    std::printf("%11zu %-8s %11.2f %11.2f %11.2f %11.2f %11.2f %9.2f %7.2fx\n", bytes, w.name.c_str(), mean.front(),
                at(0.5), total, at(0.99), mean.back(), bus, first_median > 0 ? first_median / at(0.5) : 1.);
  std::fflush(stdout);
  return at(0.5);
}

// Measures the ways in turns, block by block, so that other load on the machine slows all of them alike.
inline std::vector<std::vector<double>> measure(const Rank& r, std::size_t bytes, std::size_t iterations) {
  constexpr std::size_t blocks = 8;
  const std::size_t block = (iterations + blocks - 1) / blocks;
  // Small sums follow each other without a barrier. Before a large sum the ranks wait for each other.
  const bool meet = bytes >= 65536;
  std::vector<std::vector<double>> times(r.ways.size());
  std::vector<Values> values;
  for (const Way& w : r.ways) values.emplace_back(w.data.first(bytes / 4), r.rank, r.size);
  for (std::size_t b = 0; b <= blocks; ++b)
    for (std::size_t w = 0; w < r.ways.size(); ++w)
      for (std::size_t i = 0; i < block; ++i) {
        const auto data = r.ways[w].data.first(bytes / 4);
        values[w].prepare();
        if (r.ways[w].bring) r.ways[w].bring(data);
        if (meet || i == 0) r.barrier();
        const Stopwatch watch;
        r.ways[w].all_reduce(data);
        const double us = watch.seconds() * 1e6;
        if (r.ways[w].fetch) r.ways[w].fetch(data);
        values[w].check(r.ways[w].name);
        if (b > 0) times[w].push_back(us);  // block 0 warms up
      }
  return times;
}

inline void sweep(const Args& a, const Rank& r) {
  std::vector<std::size_t> sizes;
  for (std::size_t s = a.min / 4 * 4;; s = s > a.max / a.factor ? a.max + 4 : s * a.factor) {
    if (s > a.max) break;
    sizes.push_back(s / 4 * 4);
  }
  if (r.rank == 0) header(a, r);
  std::vector<std::vector<std::vector<double>>> kept(r.ways.size());
  for (const std::size_t bytes : sizes) {
    const std::size_t n =
        a.iterations > 0 ? a.iterations : std::clamp<std::size_t>((std::size_t{1} << 30) / bytes, 16, 4000);
    const auto times = measure(r, bytes, n);
    double first = 0;
    for (std::size_t w = 0; w < r.ways.size(); ++w) {
      auto all = r.collect(times[w]);
      if (r.rank == 0 && !a.osu) {
        const double median = print(a, r, r.ways[w], bytes, all, first);
        if (first == 0) first = median;
      }
      kept[w].push_back(std::move(all));
    }
  }
  for (std::size_t w = 0; a.osu && r.rank == 0 && w < r.ways.size(); ++w) {
    std::printf(
        "\n# OSU MPI Allreduce Latency Test, in tutti's words: %s\n# Size       Avg Latency(us)   Min Latency(us)   "
        "Max Latency(us)  Iterations\n",
        r.ways[w].name.c_str());
    for (std::size_t s = 0; s < sizes.size(); ++s) print(a, r, r.ways[w], sizes[s], kept[w][s], 0);
  }
}

}  // namespace tutti::bench
