// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <tutti/data/sampler.hpp>

#include "exactly_once.hpp"

using namespace tutti;
using test::exactly_once;

namespace {

// Returns the indices of the step at position p, of all ranks in rank order.
std::vector<std::int64_t> whole_step(std::vector<Sampler>& ranks, Position p, std::int64_t g, int world) {
  std::vector<std::int64_t> step;
  for (int r = 0; r < world; ++r) {
    const Share s = ranks[static_cast<std::size_t>(r)].share(p, {g, r, world});
    REQUIRE(s.global_count == step_count(p, ranks[0].size(), g));
    step.insert(step.end(), s.indices.begin(), s.indices.end());
  }
  return step;
}

}  // namespace

TEST_CASE("every sample is seen exactly once an epoch, for all small data sets, batches and numbers of ranks") {
  for (std::int64_t n = 1; n <= 17; ++n)
    for (std::int64_t g = 1; g <= n + 2; ++g)
      for (int w = 1; w <= 6; ++w) {
        std::vector<Sampler> ranks(static_cast<std::size_t>(w), Sampler(n, 5, true));
        Position p;
        for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
          std::vector<std::int64_t> seen;
          std::int64_t steps = 0;
          while (p.epoch == epoch) {
            std::size_t least = 1000, most = 0;
            for (int r = 0; r < w; ++r) {
              const auto count = ranks[static_cast<std::size_t>(r)].share(p, {g, r, w}).indices.size();
              least = std::min(least, count);
              most = std::max(most, count);
            }
            REQUIRE(most - least <= 1);
            const auto step = whole_step(ranks, p, g, w);
            REQUIRE(static_cast<std::int64_t>(step.size()) == std::min(g, n - p.consumed));
            seen.insert(seen.end(), step.begin(), step.end());
            p = advance(p, n, g);
            ++steps;
          }
          REQUIRE(steps == steps_per_epoch(n, g));
          REQUIRE(exactly_once(seen, n));
          REQUIRE(p == Position{epoch + 1, 0});
        }
      }
}

TEST_CASE("with EpochEnd::run_on all steps are full, and the samples are those of consecutive epochs") {
  for (std::int64_t n = 1; n <= 13; ++n)
    for (std::int64_t g = 1; g <= 2 * n + 3; ++g)
      for (const int w : {1, 3}) {
        constexpr std::int64_t epochs = 4;
        std::vector<Sampler> ranks(static_cast<std::size_t>(w), Sampler(n, 5, true));
        std::vector<std::vector<std::int64_t>> seen(static_cast<std::size_t>(2 * epochs + 6 * g / n + 8));
        Position p;
        std::int64_t steps = 0;
        for (; steps_left(p, n, g, EpochEnd::run_on, epochs) > 0; ++steps) {
          REQUIRE(steps_left(p, n, g, EpochEnd::run_on, epochs) == n * epochs / g - steps);
          REQUIRE(p == Position{steps * g / n, steps * g % n});
          std::int64_t count = 0;
          for (int r = 0; r < w; ++r) {
            Sampler& sampler = ranks[static_cast<std::size_t>(r)];
            // A run that resumes at this position must read the same samples in this step.
            Sampler anew(n, 5, true);
            const Placement placement{g, r, w, EpochEnd::run_on};
            const Share s = sampler.share(p, placement), again = anew.share(p, placement);
            REQUIRE(std::ranges::equal(s.indices, again.indices));
            REQUIRE(std::ranges::equal(s.epochs, again.epochs));
            REQUIRE(s.global_count == g);
            REQUIRE((s.epochs.empty() || s.epochs.size() == s.indices.size()));
            count += static_cast<std::int64_t>(s.indices.size());
            for (std::size_t i = 0; i < s.indices.size(); ++i)
              seen[static_cast<std::size_t>(s.epochs.empty() ? p.epoch : s.epochs[i])].push_back(s.indices[i]);
          }
          REQUIRE(count == g);
          p = advance(p, n, g, EpochEnd::run_on);
        }
        REQUIRE(steps == n * epochs / g);
        // A complete epoch contains every sample once. If only one rank reads, the samples are in the order of the
        // permutation.
        for (std::int64_t e = 0; e < p.epoch; ++e) {
          REQUIRE(exactly_once(seen[static_cast<std::size_t>(e)], n));
          std::vector<std::int64_t> order(static_cast<std::size_t>(n));
          permutation(5, e, order);
          if (w == 1) REQUIRE(seen[static_cast<std::size_t>(e)] == order);
        }
        REQUIRE(static_cast<std::int64_t>(seen[static_cast<std::size_t>(p.epoch)].size()) == p.consumed);
      }
}

TEST_CASE("the numbers of steps are those of the published runs") {
  constexpr std::int64_t imagenet = 1281167;
  const struct {
    std::int64_t devices, epochs, per_epoch, all;
  } runs[] = {{32, 90, 156, 14075}, {256, 90, 19, 1759}, {160, 90, 31, 2815}, {8, 90, 625, 56301}, {4, 5, 1251, 6255}};
  for (const auto& r : runs) {
    CHECK(steps_per_epoch(imagenet, r.devices * 256, EpochEnd::run_on) == r.per_epoch);
    CHECK(steps_left({}, imagenet, r.devices * 256, EpochEnd::run_on, r.epochs) == r.all);
  }
  CHECK(steps_per_epoch(100, 256, EpochEnd::run_on) == 1);
  // Also checks the numbers of steps of the elastic trainers; their epochs consist of whole steps.
  const struct { std::int64_t workers, steps; } cifar[] = {{1, 391}, {2, 196}, {3, 131}, {4, 98}, {8, 49}};
  for (const auto& c : cifar) CHECK(steps_per_epoch(50000, c.workers * 128) == c.steps);
  CHECK(steps_per_epoch(imagenet, 4096) == 313);
  CHECK(steps_left({}, 50000, 128, EpochEnd::short_step, 3) == 3 * 391);
  CHECK(steps_left({1, 128}, 50000, 128, EpochEnd::short_step, 3) == 2 * 391 - 1);
  CHECK(steps_left({3, 0}, 50000, 128, EpochEnd::short_step, 3) == 0);
  // The run asks for fewer epochs than it has already trained.
  CHECK(steps_left({3, 128}, 50000, 128, EpochEnd::short_step, 3) == 0);
  CHECK(steps_left({4, 0}, 50000, 128, EpochEnd::run_on, 3) == 0);
}

TEST_CASE("changing from 4 to 3 to 5 ranks within an epoch, with other batch sizes, loses and repeats no sample") {
  constexpr std::int64_t n = 1000;
  for (const bool shuffle : {true, false}) {
    Position p{3, 0};
    std::vector<std::int64_t> seen;
    const auto run = [&](int world, std::int64_t g, int steps) {
      // These samplers stand for new processes, which know only the position.
      std::vector<Sampler> ranks(static_cast<std::size_t>(world), Sampler(n, 11, shuffle));
      for (int i = 0; i < steps && p.epoch == 3; ++i) {
        const auto step = whole_step(ranks, p, g, world);
        seen.insert(seen.end(), step.begin(), step.end());
        p = advance(p, n, g);
      }
    };
    run(4, 64, 5);
    run(3, 50, 4);
    run(5, 128, 1000);
    CHECK(p == Position{4, 0});
    CHECK(exactly_once(seen, n));
    // The samples are also in the order of the permutation, for every assignment to ranks.
    std::vector<std::int64_t> order(n);
    if (shuffle)
      permutation(11, 3, order);
    else
      std::iota(order.begin(), order.end(), std::int64_t{0});
    CHECK(seen == order);
  }
}

TEST_CASE("without shuffling the order is that of the data set") {
  Sampler s(10, 1, false);
  const auto share = s.share({4, 3}, {4, 1, 2});
  CHECK(share.global_count == 4);
  CHECK(std::vector<std::int64_t>(share.indices.begin(), share.indices.end()) == std::vector<std::int64_t>{5, 6});
}

TEST_CASE("the default is one rank with 128 samples a step") {
  CHECK(Placement{} == Placement{128, 0, 1, EpochEnd::short_step});
  CHECK(Position{} == Position{0, 0});
  CHECK(Part{}.begin + Part{}.count + Share{}.global_count == 0);
}

TEST_CASE("only a step that continues in the next epoch reports the epochs of its samples") {
  Sampler s(10, 1, true);
  const Placement placement{4, 0, 1, EpochEnd::run_on};
  CHECK(s.share({0, 6}, placement).epochs.empty());
  const auto epochs = s.share({0, 7}, placement).epochs;
  CHECK(std::vector<std::int64_t>(epochs.begin(), epochs.end()) == std::vector<std::int64_t>{0, 0, 0, 1});
}

TEST_CASE("ranks without rows take part in a short step") {
  Sampler s(10, 1, true);
  CHECK(s.share({0, 8}, {8, 1, 4}).indices.size() == 1);
  CHECK(s.share({0, 8}, {8, 2, 4}).indices.empty());
  CHECK(s.share({0, 8}, {8, 3, 4}).global_count == 2);
}

TEST_CASE("invalid arguments are refused") {
  CHECK_THROWS_AS(Sampler(0, 1, true), DataError);
  CHECK_THROWS_AS(Sampler(std::int64_t{1} << 32, 1, true), DataError);
  CHECK_THROWS_AS(Sampler(10, 1, true, 0), UsageError);
  CHECK_NOTHROW(detail::check_sampler_size(1));
  CHECK_NOTHROW(detail::check_sampler_size((std::int64_t{1} << 32) - 1));
  Sampler s(10, 1, true);
  CHECK_THROWS_AS((void)s.share({0, 10}, {4, 0, 1}), UsageError);
  CHECK_THROWS_AS((void)s.share({-1, 0}, {4, 0, 1}), UsageError);
  CHECK_THROWS_AS((void)s.share({0, -1}, {4, 0, 1}), UsageError);
  CHECK_THROWS_AS((void)s.share({0, 0}, {0, 0, 1}), UsageError);
  CHECK_THROWS_AS((void)s.share({0, 0}, {4, 2, 2}), UsageError);
  CHECK_THROWS_AS((void)s.share({0, 0}, {4, -1, 2}), UsageError);
  CHECK_THROWS_AS((void)s.share({0, 0}, {4, 0, 0}), UsageError);
}

TEST_CASE("logical ranks have the same rows on any number of processes") {
  for (const int logical : {1, 2, 3, 4, 7, 16})
    for (const std::int64_t count : {0, 1, 3, 64, 65, 128})
      for (int world = 1; world <= 9; ++world) {
        std::int64_t next = 0, next_rank = 0, most = 0;
        for (int rank = 0; rank < world; ++rank) {
          const Placement p{.rank = rank, .world = world, .logical_ranks = logical};
          CHECK(p.logical().begin == next_rank);
          next_rank += p.logical().count;
          const Part rows = p.rows(count);
          CHECK(rows.begin == next);
          std::int64_t of_ranks = 0;
          for (std::int64_t v = 0; v < p.logical().count; ++v)
            of_ranks += part_of(count, static_cast<int>(p.logical().begin + v), logical).count;
          CHECK(rows.count == of_ranks);
          next += rows.count;
          most = std::max(most, rows.count);
          CHECK(p.most_rows(count) == Placement{.world = world, .logical_ranks = logical}.rows(count).count);
        }
        CHECK(next == count);
        CHECK(next_rank == logical);
        CHECK(most == Placement{.world = world, .logical_ranks = logical}.most_rows(count));
      }
  // Without logical ranks each process is one.
  const Placement plain{.rank = 2, .world = 3};
  CHECK(plain.logical().begin == 2);
  CHECK(plain.rows(10).begin == 7);
  CHECK(plain.rows(10).count == 3);
  CHECK(plain.most_rows(10) == 4);
  CHECK_THROWS_AS(Placement{.logical_ranks = -1}.check(), UsageError);
}

TEST_CASE("processes have the logical ranks between their bounds, and the rows of these") {
  for (const std::vector<std::int32_t>& bounds : std::vector<std::vector<std::int32_t>>{
           {0, 16, 24}, {0, 1, 24}, {0, 24, 24}, {0, 0, 24}, {0, 6, 12, 18, 24}, {0, 7, 7, 23, 24}})
    for (const std::int64_t count : {0, 5, 24, 100, 1000}) {
      const int world = static_cast<int>(bounds.size()) - 1;
      std::int64_t next = 0;
      for (int rank = 0; rank < world; ++rank) {
        Placement p{.rank = rank, .world = world, .logical_ranks = 24};
        p.bounds = bounds;
        CHECK_NOTHROW(p.check());
        const auto at = static_cast<std::size_t>(rank);
        CHECK(p.logical().begin == bounds[at]);
        CHECK(p.logical().count == bounds[at + 1] - bounds[at]);
        std::int64_t rows = 0;
        for (std::int32_t v = bounds[at]; v < bounds[at + 1]; ++v) rows += part_of(count, v, 24).count;
        CHECK(p.rows(count).begin == next);
        CHECK(p.rows(count).count == rows);
        CHECK(p.most_rows(count) == rows);
        next += rows;
      }
      CHECK(next == count);
    }
  Placement p{.rank = 1, .world = 2, .logical_ranks = 24};
  for (const std::vector<std::int32_t>& wrong : std::vector<std::vector<std::int32_t>>{
           {0, 24}, {0, 8, 16, 24}, {1, 8, 24}, {0, 8, 23}, {0, 25, 24}, {0, 8, 25}, {0, -1, 24}}) {
    p.bounds = wrong;
    CHECK_THROWS_AS(p.check(), UsageError);
  }
  CHECK_THROWS_WITH_AS(p.check(),
                       doctest::Contains("shares of 24 logical ranks for 2 processes, from 0 up, got 0, -1, "
                                         "24"),
                       UsageError);
}

TEST_CASE("shares of rows give each row of a step to one process, in proportion also in a short step") {
  for (const std::vector<std::int32_t>& bounds :
       {std::vector<std::int32_t>{0, 12, 16}, {0, 0, 5, 16}, {0, 1, 1, 2}, {0, 2, 3, 5}})
    // With the last bounds, the second process has 1 of 2 rows and none of 3.
    for (const std::int64_t count : {16, 7, 3, 1, 1000}) {
      CAPTURE(count);
      Placement p{.global_batch = 16, .world = static_cast<int>(bounds.size()) - 1};
      p.bounds = bounds;
      std::int64_t end = 0;
      for (; p.rank < p.world; ++p.rank) {
        const Part part = p.rows(count);
        CHECK(part.begin == end);
        end += part.count;
        const auto r = static_cast<std::size_t>(p.rank);
        const double exact = static_cast<double>(count) * (bounds[r + 1] - bounds[r]) / bounds.back();
        CHECK(std::abs(static_cast<double>(part.count) - exact) < 1);
        CHECK(p.rows_of(p.rank, count).count == part.count);
        for (std::int64_t fewer = 0; fewer <= std::min<std::int64_t>(count, 16); ++fewer)
          CHECK(p.rows(fewer).count <= p.most_rows(count));
        CHECK(p.most_rows(count) <= part.count + 1);
        CHECK(p.logical().begin == p.rank);
      }
      CHECK(end == count);
    }
  Placement wrong{.world = 2};
  wrong.bounds = {0, 0, 0};
  CHECK_THROWS_WITH_AS(wrong.check(), doctest::Contains("shares of rows for 2 processes"), UsageError);
}
