// SPDX-License-Identifier: MIT
// Tests the exact sums of logical ranks: the same bits for every way to divide them, units, repetitions and errors.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <tutti/engine/cpu/cpu.hpp>
#include <tutti/engine/reference/reference.hpp>

#include "engine/integer_processes.hpp"

using namespace tutti;
using testing::IntegerProcesses;
using testing::LogicalRank;
using testing::StepSums;

namespace {

constexpr float no_number = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();

// One logical rank for each value, which all its elements have.
std::vector<LogicalRank> constant_ranks(const ArenaLayout& l, const std::vector<float>& values,
                                        std::size_t states = 0) {
  std::vector<LogicalRank> all;
  for (const float v : values) {
    std::vector<float> g(l.count);
    for (std::size_t s = 0; s < testing::trained_for_sums; ++s)
      std::fill_n(g.begin() + static_cast<std::ptrdiff_t>(l.slices[s].offset), l.slices[s].count, v);
    all.push_back({{g}, std::vector<float>(states, 1)});
  }
  return all;
}
std::vector<double> exact_sums(const std::vector<LogicalRank>& ranks, std::size_t count) {
  std::vector<double> sum(count);
  for (const LogicalRank& r : ranks)
    for (const auto& part : r.parts)
      for (std::size_t i = 0; i < count; ++i) sum[i] += static_cast<double>(part[i]);
  return sum;
}
double norm(const std::vector<double>& v) {
  double n = 0;
  for (const double x : v) n += x * x;
  return std::sqrt(n);
}
double error(const std::vector<float>& got, const std::vector<double>& exact) {
  std::vector<double> e(exact.size());
  for (std::size_t i = 0; i < e.size(); ++i) e[i] = static_cast<double>(got[i]) - exact[i];
  return norm(e) / norm(exact);
}

}  // namespace

TEST_CASE("blocks cover each trained tensor once and cross none") {
  const ArenaLayout l = testing::tensors_for_sums();
  const IntegerBlocks t = make_integer_blocks(l, testing::trained_for_sums);
  REQUIRE(t.first_block == std::vector<std::size_t>{0, 3, 4, 5, 6});
  for (std::size_t s = 0; s < testing::trained_for_sums; ++s) {
    std::size_t at = l.slices[s].offset;
    for (std::size_t b = t.first_block[s]; b < t.first_block[s + 1]; ++b) {
      CHECK(t.blocks[b].begin == at);
      CHECK(t.blocks[b].count >= 1);
      CHECK(t.blocks[b].count <= 4096);
      at += t.blocks[b].count;
    }
    CHECK(at == l.slices[s].offset + l.slices[s].count);
  }
  CHECK(make_integer_blocks(l, 0).blocks.empty());
}

TEST_CASE("a level bounds its sum, and its unit leaves the room") {
  using namespace integer_level;
  std::int32_t before = 0;
  for (std::int64_t sum = 1; sum < (std::int64_t{1} << 55); sum += 1 + sum / 7) {
    const std::int32_t level = level_of(sum, -60);
    CHECK(level >= before);
    before = level;
    const double bound = std::ldexp(1 + (level % steps) / 64.0, level / steps - zero_exponent);
    CHECK(std::ldexp(static_cast<double>(sum), -60) < bound);
    CHECK(std::ldexp(static_cast<double>(sum), -60) >= bound / (1 + 2.0 / 64));
    const double units = std::ldexp(static_cast<double>(sum), -60 - exponent_of(level));
    CHECK(units < std::ldexp(1.0, 31) / std::exp2(room / 64.0) * 1.07);
    CHECK(units > std::ldexp(1.0, 29) / std::exp2(room / 64.0));
  }
  CHECK(exponent_of(1) == least_exponent);
  CHECK(exponent_of(64 * 1000) == greatest_exponent);
}

TEST_CASE("losses are rounded to multiples of 2^-24, whose sums do not depend on the order") {
  CHECK(round_to_2_24(0.0) == 0);
  CHECK(round_to_2_24(1.5) == 1.5);
  CHECK(round_to_2_24(std::ldexp(3.0, -25)) == std::ldexp(1.0, -23));
  CHECK(round_to_2_24(-std::ldexp(1.2, -24)) == -std::ldexp(1.0, -24));
  CHECK(round_to_2_24(1e30) == 1e30);
  CHECK(std::isnan(round_to_2_24(std::nan(""))));
  Rng r(3, Purpose::user);
  double forward = 0, backward = 0;
  std::vector<double> losses(1000);
  for (double& x : losses) x = round_to_2_24(100 * static_cast<double>(r.uniform()));
  for (std::size_t i = 0; i < losses.size(); ++i) {
    forward += losses[i];
    backward += losses[losses.size() - 1 - i];
  }
  CHECK(forward == backward);
}

TEST_CASE("the reference converts known values") {
  ReferenceBackend b;
  const std::vector<float> from{0, -0.0F, 0.5F, 1.5F, -2.5F, 1e9F, 3e9F, -3e9F, inf, no_number, 1.25F};
  std::vector<std::int32_t> to(from.size()), plus(from.size(), 2147483647);
  std::uint32_t maximum = 0;
  IntegerBlock block{0, 9, 0};
  b.to_integers({&block, 1, from.data(), to.data(), nullptr, &maximum});
  CHECK(to == std::vector<std::int32_t>{0, 0, 0, 2, -2, 1000000000, 2147483520, -2147483520, 2147483520, 0, 0});
  CHECK(maximum == 0x7f800000U);
  block = {10, 1, -2};
  b.to_integers({&block, 1, from.data(), to.data(), plus.data(), &maximum});
  CHECK(to[10] == std::numeric_limits<std::int32_t>::min() + 4);
  CHECK(maximum == 0x3fa00000U);
  std::vector<float> back(2);
  const std::vector<std::int32_t> integers{16777217, -3};
  block = {0, 2, -149};
  b.from_integers({&block, 1, integers.data(), back.data()});
  CHECK(back[0] == std::ldexp(1.0F, -125));
  CHECK(back[1] == -3 * std::numeric_limits<float>::denorm_min());
}

TEST_CASE("the sums do not depend on how logical ranks are divided among processes") {
  ReferenceBackend reference;
  CpuBackend cpu({2});
  const ArenaLayout l = testing::tensors_for_sums();
  const std::size_t states = 9;
  std::vector<StepSums> first;
  int splits = 0;
  for (const std::vector<int>& split : {std::vector<int>{16},
                                        {8, 8},
                                        {5, 5, 6},
                                        {4, 4, 4, 4},
                                        {3, 3, 3, 3, 4},
                                        {1, 15},
                                        {7, 0, 2, 7},
                                        std::vector<int>(16, 1)}) {
    CAPTURE(split.size());
    Backend& backend = splits % 2 == 0 ? static_cast<Backend&>(cpu) : reference;
    IntegerProcesses p(backend, l, states, split, splits % 3 == 2);
    for (std::uint64_t step = 0; step < 6; ++step) {
      // In step 4 the gradients grow by a factor of 1,000.
      const auto ranks = testing::random_ranks(l, 16, states, step + 1, step == 4 ? 10.0F : 0.01F);
      const StepSums r = p.step(ranks, 1 + static_cast<std::size_t>(splits) % 3);
      CHECK(r.check == SumCheck::fits);
      CHECK(r.attempts == (step == 0 || step == 4 ? 2 : 1));
      if (splits == 0) {
        first.push_back(r);
        CHECK(error(r.gradients, exact_sums(ranks, l.count)) < (step == 5 ? 2e-4 : 3e-7));
        continue;
      }
      CHECK(IntegerProcesses::same_bits(r.gradients, first[step].gradients));
      CHECK(IntegerProcesses::same_bits(r.states, first[step].states));
      CHECK(r.levels == first[step].levels);
      CHECK(r.tail == first[step].tail);
      CHECK(r.attempts == first[step].attempts);
    }
    ++splits;
  }
}

TEST_CASE("one repetition finds the units of the first step, and of tensors that had gradients of zero") {
  ReferenceBackend b;
  const ArenaLayout l = testing::tensors_for_sums();
  IntegerProcesses p(b, l, 0, {1, 1});
  StepSums r = p.step(constant_ranks(l, {0, 0}));
  CHECK(r.attempts == 1);
  CHECK(r.gradients == std::vector<float>(l.count));
  CHECK(r.levels == std::vector<std::int32_t>(r.levels.size()));
  r = p.step(constant_ranks(l, {0.125F, -0.5F}));
  CHECK(r.attempts == 2);
  CHECK(r.gradients[0] == -0.375F);
  CHECK(p.step(constant_ranks(l, {0.125F, -0.5F})).attempts == 1);
  // The levels are state: other processes that receive them go on without a repetition.
  IntegerProcesses q(b, l, 0, {2});
  std::copy(r.levels.begin(), r.levels.end(), static_cast<std::int32_t*>(q.sums(0).levels()));
  CHECK(q.step(constant_ranks(l, {0.25F, -0.5F})).attempts == 1);
}

TEST_CASE("gradients of any size are summed after a few repetitions") {
  ReferenceBackend b;
  const ArenaLayout l = testing::tensors_for_sums();
  const float least = std::numeric_limits<float>::denorm_min(), most = std::numeric_limits<float>::max();
  for (const auto& [x, y] :
       {std::pair(least, least), std::pair(3 * least, -2 * least), std::pair(1e-40F, 1e-41F), std::pair(1e-30F, 3e-30F),
        std::pair(1e-12F, 1e-11F), std::pair(0.1F, 0.3F), std::pair(1e6F, 1e7F), std::pair(1e20F, -1e19F),
        std::pair(most, -most / 2), std::pair(most / 4, most / 2), std::pair(1.0F, 1e-20F)}) {
    CAPTURE(x);
    CAPTURE(y);
    for (const bool follows : {false, true}) {
      IntegerProcesses p(b, l, 0, {1, 1});
      if (follows) CHECK(p.step(constant_ranks(l, {1, 1})).check == SumCheck::fits);
      const StepSums r = p.step(constant_ranks(l, {x, y}));
      CHECK(r.check == SumCheck::fits);
      CHECK(r.attempts <= 7);
      // After a step with greater gradients, the unit is still the one for those.
      const double exact = static_cast<double>(x) + static_cast<double>(y),
                   largest = std::fmax(std::fabs(x), std::fabs(y));
      CHECK(std::fabs(static_cast<double>(r.gradients[0]) - exact) <=
            std::fmax(largest, follows ? 2.0 : 0.0) * std::ldexp(1.0, -23));
    }
  }
}

TEST_CASE("a sum that leaves 32 bits repeats the step with a larger unit, as often as it happens") {
  ReferenceBackend b;
  const ArenaLayout l = testing::tensors_for_sums();
  IntegerProcesses p(b, l, 0, {1, 2});
  for (const float factor : {1.0F, 1.25F, 9.0F, 4e4F, 1e30F, 2.0F}) {
    CAPTURE(factor);
    const StepSums r = p.step(constant_ranks(l, {factor, factor, -0.5F * factor}));
    CHECK(r.check == SumCheck::fits);
    if (factor == 1.25F || factor == 2) CHECK(r.attempts == 1);
    if (factor == 9) CHECK(r.attempts == 2);
    if (factor > 2)
      CHECK(static_cast<double>(r.gradients[0]) == doctest::Approx(1.5 * static_cast<double>(factor)).epsilon(1e-7));
  }
  // Only one block of one process leaves the range: all processes repeat.
  IntegerProcesses q(b, l, 0, {1, 1, 1});
  CHECK(q.step(constant_ranks(l, {1, 1, 1})).attempts == 2);
  auto ranks = constant_ranks(l, {1, 1, 1});
  ranks[2].parts[0][4100] = 12345.5F;
  const StepSums r = q.step(ranks);
  CHECK(r.attempts == 2);
  CHECK(r.gradients[4100] == 12347.5F);
  CHECK(r.gradients[0] == 3);
  CHECK(r.levels[1] > r.levels[0]);
  CHECK(r.levels[2] == r.levels[0]);
}

TEST_CASE("the bound is that of the greatest magnitudes, so a sum of opposite gradients counts") {
  ReferenceBackend b;
  const ArenaLayout l = testing::tensors_for_sums();
  IntegerProcesses p(b, l, 0, {1, 1});
  CHECK(p.step(constant_ranks(l, {1, 1})).attempts == 2);
  const StepSums r = p.step(constant_ranks(l, {1e6F, -1e6F}));
  CHECK(r.attempts == 2);
  CHECK(r.gradients[0] == 0);
}

TEST_CASE("a gradient, a loss or a statistic that is not finite ends the step on all processes and keeps the levels") {
  ReferenceBackend b;
  const ArenaLayout l = testing::tensors_for_sums();
  IntegerProcesses p(b, l, 3, {1, 2, 0});
  const StepSums good = p.step(constant_ranks(l, {1, 1, 1}, 3));
  for (const float bad : {no_number, inf, -inf}) {
    auto ranks = constant_ranks(l, {1, 1, 1}, 3);
    ranks[1].parts[0][l.slices[1].offset] = bad;
    StepSums r = p.step(ranks);
    CHECK(r.check == SumCheck::not_finite);
    CHECK(r.attempts == 1);
    CHECK(r.levels == good.levels);
    ranks = constant_ranks(l, {1, 1, 1}, 3);
    ranks[2].states[1] = bad;
    CHECK(p.step(ranks).check == SumCheck::not_finite);
    ranks[2].states[1] = 2e12F;
    CHECK(p.step(ranks).check == SumCheck::not_finite);
  }
  const StepSums again = p.step(constant_ranks(l, {1, 1, 1}, 3));
  CHECK(again.check == SumCheck::fits);
  CHECK(again.attempts == 1);
  // In the first step, too.
  IntegerProcesses q(b, l, 0, {1, 1});
  CHECK(q.step(constant_ranks(l, {no_number, 1})).check == SumCheck::not_finite);
  CHECK(q.step(constant_ranks(l, {1, 1})).attempts == 2);
}

TEST_CASE("levels follow the bound down by their decay, and up at once") {
  ReferenceBackend b;
  const ArenaLayout l = testing::tensors_for_sums();
  IntegerProcesses p(b, l, 0, {1, 1});
  std::int32_t before = p.step(constant_ranks(l, {1, 1})).levels[0];
  for (int i = 0; i < 200; ++i) {
    const StepSums r = p.step(constant_ranks(l, {0.125F, 0.125F}));
    CHECK(r.attempts == 1);
    CHECK(r.levels[0] <= before);
    CHECK(r.levels[0] >= before - std::max(2, (before - 254 * 64) / 8));
    before = r.levels[0];
  }
  CHECK(before == p.step(constant_ranks(l, {0.125F, 0.125F})).levels[0]);
  CHECK(before == doctest::Approx((256 - 2) * 64).epsilon(0.001));
  const StepSums up = p.step(constant_ranks(l, {0.140625F, 0.140625F}));
  CHECK(up.attempts == 1);
  CHECK(up.levels[0] == before + 8);
  // A tensor without gradients keeps a level of 1 or more.
  for (int i = 0; i < 50; ++i) before = p.step(constant_ranks(l, {0, 0})).levels[0];
  CHECK(before == up.levels[0] - 100);
  auto* const levels = static_cast<std::int32_t*>(p.sums(0).levels());
  std::fill_n(levels, up.levels.size(), 2);
  std::copy_n(levels, up.levels.size(), static_cast<std::int32_t*>(p.sums(1).levels()));
  CHECK(p.step(constant_ranks(l, {0, 0})).levels[0] == 1);
  CHECK(p.step(constant_ranks(l, {0, 0})).levels[0] == 1);
}

TEST_CASE("statistics are the mean of all logical ranks, to the precision of f32") {
  ReferenceBackend b;
  const ArenaLayout l = testing::tensors_for_sums();
  for (const int ranks : {1, 3, 5, 64}) {
    IntegerProcesses p(b, l, 40, {ranks - ranks / 2, ranks / 2});
    auto all = constant_ranks(l, std::vector<float>(static_cast<std::size_t>(ranks), 1), 40);
    Rng r(static_cast<std::uint64_t>(ranks), Purpose::user);
    std::vector<double> mean(40);
    for (LogicalRank& rank : all)
      for (std::size_t i = 0; i < 40; ++i) {
        rank.states[i] = static_cast<float>(r.normal()) * std::ldexp(1.0F, static_cast<int>(i) - 15);
        if (i == 39) rank.states[i] = -std::ldexp(1.0F, 40);
        mean[i] += static_cast<double>(rank.states[i]) / ranks;
      }
    const StepSums s = p.step(all);
    for (std::size_t i = 0; i < 40; ++i)
      CHECK(std::fabs(static_cast<double>(s.states[i]) - mean[i]) <=
            std::fabs(mean[i]) * std::ldexp(1.0, -23) + std::ldexp(1.0, -56));
    if (ranks == 1) CHECK(IntegerProcesses::same_bits(s.states, all[0].states));
  }
}

TEST_CASE("the sums are as exact as sums in f32") {
  ReferenceBackend b;
  const ArenaLayout l = testing::tensors_for_sums();
  for (const int ranks : {2, 4, 16, 64}) {
    CAPTURE(ranks);
    IntegerProcesses p(b, l, 0, {ranks});
    double worst = 0;
    for (std::uint64_t step = 1; step < 6; ++step) {
      std::vector<LogicalRank> all;
      for (int v = 0; v < ranks; ++v)
        all.push_back({{testing::random_gradients(l, 100 * step + static_cast<std::uint64_t>(v))}, {}});
      const StepSums r = p.step(all);
      std::vector<float> floats(l.count);
      for (const LogicalRank& rank : all)
        for (std::size_t i = 0; i < l.count; ++i) floats[i] += rank.parts[0][i];
      const auto exact = exact_sums(all, l.count);
      worst = std::max(worst, error(r.gradients, exact) / error(floats, exact));
      for (std::size_t s : {std::size_t{0}, std::size_t{2}, std::size_t{3}}) {
        const auto slice = [&](const auto& v) {
          const auto at = v.begin() + static_cast<std::ptrdiff_t>(l.slices[s].offset);
          return std::vector(at, at + static_cast<std::ptrdiff_t>(l.slices[s].count));
        };
        CHECK(error(slice(r.gradients), slice(exact)) < 1.25 * error(slice(floats), slice(exact)));
      }
    }
    MESSAGE("error of " << ranks << " ranks: " << worst << " of f32's");
    // f32 rounds the sum of two once; the sum of the integers is rounded once too.
    CHECK(worst < (ranks == 2 ? 1.02 : 1.1));
  }
}

TEST_CASE("logical ranks need gradients in f32, and a backend that sums integers") {
  ReferenceBackend b;
  ArenaLayout l = testing::tensors_for_sums();
  l.dtype = DType::f64;
  CHECK_THROWS_WITH_AS(IntegerSums(b, l, testing::trained_for_sums, 0, 2), doctest::Contains("expected f32 or bf16"),
                       UsageError);
  struct Plain final : ReferenceBackend {
    void to_integers(const ToIntegers& c) override { Backend::to_integers(c); }
    void from_integers(const FromIntegers& c) override { Backend::from_integers(c); }
  } plain;
  CHECK_THROWS_WITH_AS(plain.to_integers({}), doctest::Contains("without logical ranks"), UsageError);
  CHECK_THROWS_WITH_AS(plain.from_integers({}), doctest::Contains("without logical ranks"), UsageError);
}

TEST_CASE("repetitions that never agree are an error") {
  ReferenceBackend b;
  const ArenaLayout l = testing::tensors_for_sums();
  IntegerSums s(b, l, testing::trained_for_sums, 0, 1);
  const auto attempts = [&] {
    for (int i = 0; i < 100; ++i) {
      s.begin(i > 0);
      auto g = constant_ranks(l, {std::ldexp(1.0F, 10 * i - 20)})[0].parts[0];
      s.convert(0, testing::trained_for_sums, g.data());
      (void)s.tail();
      REQUIRE(s.check() == SumCheck::repeat);
    }
  };
  CHECK_THROWS_WITH_AS(attempts(), doctest::Contains("equal gradients if a step is repeated"), DeviceError);
}
