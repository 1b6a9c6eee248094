// SPDX-License-Identifier: MIT
// optimised
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tutti/data/augment.hpp>
#include <tutti/data/augment/col_out.hpp>
#include <tutti/data/augment/mix.hpp>
#include <tutti/data/loader.hpp>

#include "data/chi_square.hpp"
#include "loader_batches.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

// Which of `size` rows stay.
std::vector<bool> flags(const std::vector<KeptRange>& kept, int size) {
  std::vector<bool> all(static_cast<std::size_t>(size));
  std::int32_t end = -1;  // ranges are apart
  for (const KeptRange& r : kept) {
    REQUIRE(r.begin > end);
    REQUIRE(r.length > 0);
    end = r.begin + r.length;
    REQUIRE(end <= size);
    for (std::int32_t i = r.begin; i < end; ++i) all[static_cast<std::size_t>(i)] = true;
  }
  return all;
}

// The numbers of the rows or columns that stay.
std::vector<std::int64_t> numbers(const std::vector<KeptRange>& kept) {
  std::vector<std::int64_t> all;
  for (const KeptRange& r : kept)
    for (std::int32_t i = 0; i < r.length; ++i) all.push_back(r.begin + i);
  return all;
}

constexpr ColOut some{.rows = 0.25, .columns = 0.5};  // of 5 x 5 pixels 3 x 2 stay

LoaderOptions leaving_out(std::int64_t g, int rank, int world, int threads, int logical) {
  LoaderOptions o = options_of(g, rank, world, threads);
  o.placement.logical_ranks = logical;
  o.mix = mixer({.mixup_alpha = 0.4});
  o.col_out = some;
  return o;
}

// The images of each step of all ranks together, in the order of the ranks.
std::vector<std::vector<std::uint8_t>> steps(int world, int threads, int logical, int n, Position from = {}) {
  const Augmented data(numbered(103), Augment::cifar());
  std::vector<std::vector<std::uint8_t>> all(static_cast<std::size_t>(n));
  for (int rank = 0; rank < world; ++rank) {
    Loader loader(data, leaving_out(16, rank, world, threads, logical));
    loader.start(from);
    for (auto& images : all) {
      const Batch& b = loader.next();
      REQUIRE(b.schema->height == 3);
      REQUIRE(b.schema->width == 2);
      REQUIRE(b.images.size() == b.labels.size() * 18);
      images.insert(images.end(), b.images.begin(), b.images.end());
    }
  }
  return all;
}

}  // namespace

TEST_CASE("100,000 draws: each choice of rows is equally likely, as with a random permutation of them") {
  // 4 of 7 rows: 35 choices, told apart by their bits.
  std::vector<double> counts(128), choices(128), rows(160);
  for (unsigned c = 0; c < 128; ++c) choices[c] = std::popcount(c) == 4 ? 1 / 35.0 : 0;
  double together = 0;
  std::vector<KeptRange> kept;
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    Rng rng = batch_rng(9, Purpose::mixing, i, 0);
    draw_kept(7, 4, rng, kept);
    unsigned choice = 0;
    for (const std::int64_t row : numbers(kept)) choice |= 1U << row;
    ++counts[choice];
    draw_kept(160, ColOut::kept(160, 0.05), rng, kept);
    const std::vector<bool> stays = flags(kept, 160);
    REQUIRE(std::count(stays.begin(), stays.end(), true) == 152);
    for (std::size_t r = 0; r < 160; ++r) rows[r] += stays[r] ? 0 : 1;
    together += !stays[17] && !stays[18] ? 1 : 0;
  }
  CHECK(chi_square(counts, choices).passes());
  // 8 different rows leave at a time, so the expected sum is 152 and not 159.
  ChiSquare of_rows = chi_square(rows, std::vector<double>(160, 1 / 160.0));
  of_rows.sum *= 159.0 / 152;
  CHECK(of_rows.passes());
  const double want = 100'000.0 * 8 * 7 / (160 * 159);
  CHECK(std::abs(together - want) < 3 * std::sqrt(want));
  auto wrong = counts;
  wrong[0b1111] *= 0.85;
  CHECK_FALSE(chi_square(wrong, choices).passes());
}

TEST_CASE("as many rows stay as in Composer, which rounds down") {
  for (const auto& [size, kept] : {std::array{106, 100}, {108, 102}, {160, 152}, {176, 167}, {224, 212}, {32, 30}})
    CHECK(ColOut::kept(size, 0.05) == kept);
  CHECK(ColOut::kept(176, 0.15) == 149);
  CHECK(ColOut::kept(176, 0) == 176);
  std::vector<KeptRange> all;
  Rng rng(1, Purpose::mixing), copy = rng;
  draw_kept(5, 5, rng, all);
  CHECK(all == std::vector<KeptRange>{{0, 5}});
  CHECK(rng.next() == copy.next());
}

TEST_CASE("the pixels that stay are those of the rows and columns that were drawn, also in the image's own memory") {
  Schema schema = tiny();
  schema.height = 20;
  schema.width = 30;
  ColOutDraw draw;
  for (std::uint64_t i = 0; i < 100; ++i) {
    Rng rng = batch_rng(5, Purpose::mixing, i, 0);
    draw_col_out({0.2, 0.3}, schema, rng, draw);
    const auto rows = numbers(draw.rows), columns = numbers(draw.columns);
    REQUIRE(rows.size() == 16);
    REQUIRE(columns.size() == 21);
    std::vector<std::uint8_t> image(1800), want, apart(1008);
    for (auto& p : image) p = static_cast<std::uint8_t>(rng.next());
    for (const std::int64_t y : rows)
      for (const std::int64_t x : columns)
        for (std::int64_t c = 0; c < 3; ++c) want.push_back(image[static_cast<std::size_t>((y * 30 + x) * 3 + c)]);
    leave_out(draw, schema, image.data(), apart.data());
    REQUIRE(apart == want);
    leave_out(draw, schema, image.data(), image.data());
    image.resize(1008);
    REQUIRE(image == want);
  }
}

TEST_CASE("with logical ranks, the smaller images have the same bytes on any number of processes and threads") {
  const auto expected = steps(1, 0, 5, 9);
  for (const int world : {1, 2, 3, 5})
    for (const int threads : {1, 3}) CHECK(steps(world, threads, 5, 9) == expected);
  // A run that continues in the middle of an epoch.
  CHECK(steps(2, 2, 5, 1, {0, 3 * 16}).front() == expected[3]);
  // Each rank draws its own rows.
  CHECK(steps(1, 1, 0, 1) != steps(2, 1, 0, 1));
}

TEST_CASE("a loader leaves out the same pixels of all images of a rank, after they are mixed") {
  const Augmented data(numbered(103), Augment::cifar());
  Loader plain(data, options_of(16, 0, 1, 1)), mixes(data, leaving_out(16, 0, 1, 1, 0));
  LoaderOptions o = leaving_out(16, 0, 1, 1, 0);
  o.mix = {};
  Loader alone(data, o);
  CHECK(alone.schema()->height == 3);
  CHECK(alone.schema()->width == 2);
  for (std::uint64_t step = 0; step < 3; ++step) {
    const Batch& b = plain.next();
    for (Loader* loader : {&mixes, &alone}) {
      std::vector<std::uint8_t> images(b.images.begin(), b.images.end()), want;
      std::vector<MixedLabel> labels(b.labels.size(), {1, 1, 1});
      RankRows rows{images, labels, *b.schema, batch_rng(42, Purpose::mixing, step * 16, 0)};
      if (loader == &mixes) mixer({.mixup_alpha = 0.4})(rows);
      ColOutDraw draw;
      draw_col_out(some, *b.schema, rows.rng, draw);
      for (std::size_t i = 0; i < labels.size(); ++i) {
        want.resize(want.size() + 18);
        leave_out(draw, *b.schema, images.data() + i * 75, want.data() + i * 18);
      }
      const Batch& got = loader->next();
      CHECK(std::vector<std::uint8_t>(got.images.begin(), got.images.end()) == want);
      CHECK(got.mixed.empty() == (loader == &alone));
      CHECK(std::equal(got.labels.begin(), got.labels.end(), b.labels.begin(), b.labels.end()));
    }
  }
}

TEST_CASE("ColOut works on images of several sizes, and wrong shares are refused") {
  LoaderOptions o = options_of(16, 0, 1, 2);
  o.col_out = {0.25, 0.5};
  Augment larger;
  larger.pad = 4;
  larger.height = larger.width = 13;
  o.later.push_back({1, Augmented(numbered(40), larger)});
  Loader loader(numbered(40), o);
  for (int step = 0; step < 5; ++step) {
    const Batch& b = loader.next();
    CHECK(b.schema->height == (b.epoch == 0 ? 3 : 9));
    CHECK(b.schema->width == (b.epoch == 0 ? 2 : 6));
    CHECK(b.images.size() == b.labels.size() * static_cast<std::size_t>(b.schema->image_bytes()));
  }
  for (const ColOut bad : {ColOut{-0.1, 0}, {0, 0.91}, {NAN, 0}, {0, 0.9}}) {
    LoaderOptions with = options_of(16, 0, 1, 1);
    with.col_out = bad;
    CHECK_THROWS_AS(Loader(numbered(40), with), UsageError);
  }
}
