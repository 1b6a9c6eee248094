// SPDX-License-Identifier: MIT
// Tests the order of an epoch's samples: permutations, and permutations by blocks of samples that are read together.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/data/sampler.hpp>

#include "exactly_once.hpp"

using namespace tutti;
using test::exactly_once;

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
