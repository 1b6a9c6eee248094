// SPDX-License-Identifier: MIT
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/engine/step/integer_sums.hpp>

// Sums of logical ranks as several processes make them, in one program: IntegerSums of each process, and what the
// strategy does between them.
namespace tutti::testing {

// The gradients [arena] of each micro-batch of a logical rank, and its running statistics.
struct LogicalRank {
  std::vector<std::vector<float>> parts;
  std::vector<float> states;
};

// Tensors with one element, less than a register, a whole block, and several blocks; the last one is not trained.
inline ArenaLayout tensors_for_sums() {
  ArenaLayout l;
  l.append("weight", Shape{3, 3000});
  l.append("one", Shape{1});
  l.append("bias", Shape{77});
  l.append("block", Shape{IntegerBlock::elements});
  l.append("frozen", Shape{50}, false);
  return l;
}
inline constexpr std::size_t trained_for_sums = 4;

// Random gradients of a standard deviation that differs from tensor to tensor. Gaps are zero.
inline std::vector<float> random_gradients(const ArenaLayout& l, std::uint64_t seed, float factor = 1) {
  Rng r(seed, Purpose::user);
  std::vector<float> g(l.count);
  float deviation = factor;
  for (std::size_t s = 0; s < trained_for_sums; ++s, deviation /= 37)
    for (std::size_t i = 0; i < l.slices[s].count; ++i)
      g[l.slices[s].offset + i] = deviation * static_cast<float>(r.normal());
  return g;
}
inline std::vector<LogicalRank> random_ranks(const ArenaLayout& l, int ranks, std::size_t states, std::uint64_t seed,
                                             float factor = 1) {
  std::vector<LogicalRank> all(static_cast<std::size_t>(ranks));
  Rng r(seed, Purpose::user);
  for (std::size_t v = 0; v < all.size(); ++v) {
    for (std::size_t p = 0; p < 1 + (v + seed) % 3; ++p)
      all[v].parts.push_back(random_gradients(l, 1000 * seed + 10 * v + p, factor));
    for (std::size_t i = 0; i < states; ++i) all[v].states.push_back(static_cast<float>(r.normal()));
  }
  return all;
}

// What a step leaves on each process.
struct StepSums {
  SumCheck check = SumCheck::fits;
  int attempts = 0;
  std::vector<float> gradients, states;
  std::vector<std::int32_t> levels;
  std::vector<std::int64_t> tail;
};

class IntegerProcesses {
 public:
  // ranks_of: the number of logical ranks of each process, in order; 0 is possible. gives: two threads give every
  // second tensor to take(), in pieces, on a backend of the host.
  IntegerProcesses(Backend& backend, const ArenaLayout& layout, std::size_t states, std::vector<int> ranks_of,
                   bool gives = false)
      : b_(backend), layout_(layout), states_(states), ranks_of_(std::move(ranks_of)), gives_(gives) {
    const int ranks = std::accumulate(ranks_of_.begin(), ranks_of_.end(), 0);
    for (std::size_t p = 0; p < ranks_of_.size(); ++p) {
      sums_.push_back(std::make_unique<IntegerSums>(b_, layout_, trained_for_sums, states_, ranks));
      arenas_.emplace_back(b_.memory(), layout_.bytes());
    }
    states_buffer_ = Buffer(b_.memory(), states_ * sizeof(float));
  }

  // Runs a step, with repetitions. All processes must come to the same result. bucket: slices that become final
  // together.
  StepSums step(const std::vector<LogicalRank>& ranks, std::size_t bucket = 1) {
    StepSums r;
    do {
      attempt(ranks, r.attempts++ > 0, bucket);
      add_up();
      r.check = sums_[0]->check();
      for (std::size_t p = 1; p < sums_.size(); ++p) CHECK(sums_[p]->check() == r.check);
      REQUIRE(r.attempts <= IntegerSums::most_attempts);
    } while (r.check == SumCheck::repeat);
    for (std::size_t p = 0; p < sums_.size(); ++p) {
      if (r.check == SumCheck::fits) {
        sums_[p]->restore(arenas_[p].data());
        sums_[p]->take_states(states_buffer_.data());
      }
      const auto gradients = fetch<float>(arenas_[p].data(), layout_.count);
      const auto states = fetch<float>(states_buffer_.data(), states_);
      const auto levels = fetch<std::int32_t>(sums_[p]->levels(), sums_[p]->layout().count);
      if (p == 0) {
        r.gradients = gradients;
        r.states = states;
        r.levels = levels;
        r.tail = tail_;
        continue;
      }
      CHECK(same_bits(r.gradients, gradients));
      CHECK(same_bits(r.states, states));
      CHECK(r.levels == levels);
    }
    return r;
  }
  [[nodiscard]] IntegerSums& sums(std::size_t process) { return *sums_[process]; }

  static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
  }

 private:
  template <class T>
  std::vector<T> fetch(const void* from, std::size_t count) {
    std::vector<T> host(count);
    b_.memory().copy_out(host.data(), from, count * sizeof(T));
    return host;
  }

  void attempt(const std::vector<LogicalRank>& ranks, bool repeats, std::size_t bucket) {
    std::size_t next = 0;
    for (std::size_t p = 0; p < sums_.size(); ++p) {
      IntegerSums& s = *sums_[p];
      void* const arena = arenas_[p].data();
      s.begin(repeats);
      const auto convert = [&] {
        for (std::size_t i = 0; i < trained_for_sums; i += bucket)
          s.convert(i, std::min(i + bucket, trained_for_sums), arena);
      };
      const std::size_t end = next + static_cast<std::size_t>(ranks_of_[p]);
      if (next == end) {
        b_.memory().zero(arena, layout_.bytes());
        convert();
      }
      for (; next < end; ++next) {
        const LogicalRank& rank = ranks[next];
        for (std::size_t i = 0; i < rank.parts.size(); ++i) {
          b_.memory().copy_in(arena, rank.parts[i].data(), layout_.bytes());
          if (gives_) give(s, next + 1 == end && i + 1 == rank.parts.size(), rank.parts[i], static_cast<float*>(arena));
          if (next + 1 == end && i + 1 == rank.parts.size())
            convert();
          else if (bucket % 2 == 0)
            s.add(arena);
          else
            for (std::size_t k = 0; k < trained_for_sums; ++k) s.add(k, k + 1, arena);
        }
        b_.memory().copy_in(states_buffer_.data(), rank.states.data(), states_ * sizeof(float));
        s.end_rank(states_buffer_.data());
      }
    }
  }
  // The arena has other values where take() gets them. The last tensor is not trained.
  void give(IntegerSums& s, bool last, const std::vector<float>& gradients, float* arena) {
    s.begin_part(last, arena);
    const auto pieces = [&](std::size_t first) {
      constexpr std::size_t piece = 720;
      for (std::size_t k = 0; k <= trained_for_sums; k += 2) {
        const Slice& slice = layout_.slices[k];
        for (std::size_t at = first * piece; at < slice.count; at += 2 * piece) {
          const std::size_t count = std::min(piece, slice.count - at), from = slice.offset + at;
          if (k < trained_for_sums) std::fill_n(arena + from, count, 1e30F);
          s.take(arena + from, gradients.data() + from, count);
        }
      }
    };
    std::thread other([&] { pieces(1); });
    pieces(0);
    other.join();
  }
  // The sums over the processes, the last one first.
  void add_up() {
    std::vector<std::uint32_t> all(layout_.count);
    tail_.clear();
    for (std::size_t p = sums_.size(); p-- > 0;) {
      const auto mine = fetch<std::uint32_t>(arenas_[p].data(), layout_.count);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += mine[i];
      const std::span<std::int64_t> tail = sums_[p]->tail();
      tail_.resize(tail.size());
      for (std::size_t i = 0; i < tail_.size(); ++i) tail_[i] += tail[i];
    }
    for (std::size_t p = 0; p < sums_.size(); ++p) {
      b_.memory().copy_in(arenas_[p].data(), all.data(), layout_.bytes());
      std::copy(tail_.begin(), tail_.end(), sums_[p]->tail().begin());
    }
  }

  Backend& b_;
  ArenaLayout layout_;
  std::size_t states_;
  std::vector<int> ranks_of_;
  bool gives_;
  std::vector<std::unique_ptr<IntegerSums>> sums_;
  std::vector<Buffer> arenas_;
  Buffer states_buffer_;
  std::vector<std::int64_t> tail_;
};

}  // namespace tutti::testing
