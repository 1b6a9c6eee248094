// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

#include <tutti/data/sampler.hpp>

using namespace tutti;

namespace {

// Returns whether every index from 0 to n - 1 occurs exactly once.
bool exactly_once(std::vector<std::int64_t> seen, std::int64_t n) {
  std::sort(seen.begin(), seen.end());
  if (static_cast<std::int64_t>(seen.size()) != n) return false;
  for (std::int64_t i = 0; i < n; ++i)
    if (seen[static_cast<std::size_t>(i)] != i) return false;
  return true;
}

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

TEST_CASE("a permutation depends on seed and epoch only") {
  std::vector<std::int64_t> a(100), b(100), c(100), d(100);
  permutation(1, 2, a);
  permutation(1, 2, b);
  permutation(1, 3, c);
  permutation(2, 2, d);
  CHECK(a == b);
  CHECK(a != c);
  CHECK(a != d);
  CHECK(exactly_once(a, 100));
  // A caller may ask the sampler for epochs in any order.
  Sampler s(100, 1, true);
  const auto of = [&](std::int64_t epoch) {
    const auto i = s.share({epoch, 0}, {100, 0, 1}).indices;
    return std::vector<std::int64_t>(i.begin(), i.end());
  };
  CHECK(of(3) == c);
  CHECK(of(2) == a);
  CHECK(of(3) == c);
}

TEST_CASE("permutations are close to uniform") {
  constexpr std::size_t n = 8;
  std::array<std::array<int, n>, n> count{};  // [position][value]
  constexpr int epochs = 8000;
  for (int e = 0; e < epochs; ++e) {
    std::array<std::int64_t, n> p;
    permutation(17, e, p);
    for (std::size_t i = 0; i < n; ++i) ++count[i][static_cast<std::size_t>(p[i])];
  }
  for (const auto& row : count)
    for (const int c : row) {
      CHECK(c > 850);  // mean 1000, standard deviation 30
      CHECK(c < 1150);
    }
}

TEST_CASE("without blocks the order is the recorded one") {
  std::vector<std::int64_t> a(1000), b(1000), first{815, 850, 738, 758, 823, 190, 679, 469};
  permutation(1, 0, a);
  CHECK(std::equal(first.begin(), first.end(), a.begin()));
  permutation(1, 0, b, 1);
  CHECK(a == b);
  permutation(1, 0, b, 25);  // 40 blocks do not exceed a window
  CHECK(a == b);
}

TEST_CASE("the order by blocks is used only if there are more blocks than a window has") {
  const auto by_blocks = [](std::int64_t n, std::int64_t block) {
    // permutation() must not depend on the previous contents of the memory.
    std::vector<std::int64_t> plain(static_cast<std::size_t>(n), -7), order(static_cast<std::size_t>(n), -7);
    permutation(1, 0, plain);
    permutation(1, 0, order, block);
    REQUIRE(exactly_once(order, n));
    return order != plain;
  };
  CHECK_FALSE(by_blocks(40 * 25, 25));
  CHECK(by_blocks(40 * 25 + 1, 25));
  CHECK(by_blocks(1000, 2));
  CHECK_FALSE(by_blocks(1000, 1));
}

TEST_CASE("positions are cut into smaller parts if 32 bits allow it") {
  constexpr std::uint64_t all = std::uint64_t{1} << 32;
  CHECK(detail::spare_bits(all) == 0);
  CHECK(detail::spare_bits(all / 2 + 1) == 0);
  CHECK(detail::spare_bits(all / 2) == 1);
  CHECK(detail::spare_bits(all / 4 + 1) == 1);
  CHECK(detail::spare_bits(all / 4) == 2);
  CHECK(detail::spare_bits(1281167) == 11);
  CHECK(detail::spare_bits(1) == 32);
}

TEST_CASE("an order by blocks is a permutation for any size and block") {
  for (const std::int64_t block : {2, 3, 7, 10, 256})
    for (const std::int64_t n : {std::int64_t{1}, block, 40 * block - 1, 40 * block, 40 * block + 1, 41 * block - 1,
                                 41 * block, 100 * block + 1, 123 * block + block / 2, 57 * block - 1})
      for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<std::int64_t> order(static_cast<std::size_t>(n));
        permutation(9, epoch, order, block);
        REQUIRE(exactly_once(order, n));
      }
}

TEST_CASE("an order by blocks depends on seed and epoch only, and is the recorded one") {
  std::vector<std::int64_t> a(1281167), b(1281167);
  permutation(1, 0, a, 256);
  const std::vector<std::int64_t> first{551932, 125313, 1230764, 257542, 601100, 90722, 167014, 823405};
  CHECK(std::equal(first.begin(), first.end(), a.begin()));
  CHECK(a.back() == 634499);
  std::uint64_t all = 0;
  for (const std::int64_t i : a) all = (all ^ static_cast<std::uint64_t>(i)) * 1099511628211U;
  CHECK(all == 16363082264347700265U);
  Sampler s(1281167, 1, true, 256);
  CHECK(std::ranges::equal(s.share({0, 0}, {1281167, 0, 1}).indices, a));
  // With this size the last block contains only one sample.
  std::vector<std::int64_t> short_block(50 * 4 + 1);
  permutation(1, 0, short_block, 4);
  const std::vector<std::int64_t> begins{14, 159, 139, 5, 3, 98, 78, 93};
  CHECK(std::equal(begins.begin(), begins.end(), short_block.begin()));
  // With this size the last block contains as many samples as the other blocks.
  std::vector<std::int64_t> whole_blocks(50 * 4);
  permutation(1, 0, whole_blocks, 4);
  const std::vector<std::int64_t> begins_whole{151, 149, 168, 33, 104, 173, 5, 199};
  CHECK(std::equal(begins_whole.begin(), begins_whole.end(), whole_blocks.begin()));
  permutation(1, 1, b, 256);
  CHECK(a != b);
  permutation(2, 0, b, 256);
  CHECK(a != b);
}

TEST_CASE("samples that are loaded at the same time come from few blocks, and nearby samples are mixed") {
  constexpr std::int64_t block = 64, n = 400 * block + 17, blocks = 401;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    std::vector<std::int64_t> order(n);
    permutation(5, epoch, order, block);
    // All positions form a circle. For each block, the code finds the arc of this circle that contains the block's
    // samples: the arc begins after the longest gap.
    std::vector<std::vector<std::int64_t>> places(blocks);
    for (std::int64_t p = 0; p < n; ++p)
      places[static_cast<std::size_t>(order[static_cast<std::size_t>(p)] / block)].push_back(p);
    std::vector<std::int64_t> change(2 * n + 1);
    std::int64_t touched = 0;
    for (const auto& of_block : places) {
      std::int64_t gap = of_block.front() + n - of_block.back(), from = of_block.front(), to = of_block.back();
      for (std::size_t k = 1; k < of_block.size(); ++k)
        if (of_block[k] - of_block[k - 1] > gap) {
          gap = of_block[k] - of_block[k - 1];
          from = of_block[k];
          to = of_block[k - 1] + n;
        }
      ++change[static_cast<std::size_t>(from)];
      --change[static_cast<std::size_t>(to + 1)];
      touched += to - from + 1;
    }
    std::int64_t most = 0, open = 0;
    std::vector<std::int64_t> opened(2 * n + 1);
    for (std::size_t p = 0; p < opened.size(); ++p) opened[p] = open += change[p];
    for (std::size_t p = 0; p < n; ++p) most = std::max(most, opened[p] + opened[p + n]);
    CHECK(most <= blocks_in_flight + 2);
    CHECK(most >= blocks_in_flight - 5);
    CHECK(touched / blocks > 35 * block);  // the samples of a block are spread over the window

    // A batch of 256 contains only a few samples of any block, also at the start of an epoch.
    for (std::int64_t p = 0; p + 256 <= n; p += 256) {
      std::vector<int> count(blocks);
      int largest = 0, different = 0;
      for (std::int64_t k = p; k < p + 256; ++k) {
        int& c = count[static_cast<std::size_t>(order[static_cast<std::size_t>(k)] / block)];
        different += c == 0;
        largest = std::max(largest, ++c);
      }
      CHECK(largest <= 24);  // mean 6
      CHECK(different >= 36);
    }
    // Samples that are neighbours in the files are not neighbours in the order.
    std::int64_t follows = 0;
    for (std::size_t p = 1; p < n; ++p) follows += order[p] == order[p - 1] + 1;
    CHECK(follows < n / 500);
  }
  // Over many epochs the first and the last sample are uniformly distributed.
  std::array<int, 10> tenth{};
  for (int e = 0; e < 2000; ++e) {
    std::array<std::int64_t, 500> order;
    permutation(3, e, order, 5);
    ++tenth[static_cast<std::size_t>(order[0] / 50)];
    ++tenth[static_cast<std::size_t>(order[499] / 50)];
  }
  for (const int c : tenth) {
    CHECK(c > 300);  // mean 400, standard deviation 19
    CHECK(c < 500);
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
