// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include <tutti/core/ignored_label.hpp>
#include <tutti/data/augment.hpp>
#include <tutti/data/augment/mix.hpp>
#include <tutti/data/loader.hpp>

#include "loader_batches.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

const BatchMix both{.mixup_alpha = 0.4, .cutmix_alpha = 1, .probability = 0.9};

// The rows of a step: bytes of the images, then labels.
struct Rows {
  std::vector<std::uint8_t> images;
  std::vector<std::tuple<std::int32_t, std::int32_t, float>> labels;
  bool operator==(const Rows&) const = default;
  void add(const Batch& b) {
    REQUIRE(b.mixed.size() == b.labels.size());
    images.insert(images.end(), b.images.begin(), b.images.end());
    for (std::size_t i = 0; i < b.labels.size(); ++i) {
      CHECK(b.mixed[i].first == b.labels[i]);
      labels.emplace_back(b.mixed[i].first, b.mixed[i].second, b.mixed[i].share);
    }
  }
};

LoaderOptions mixing(std::int64_t g, int rank, int world, int threads, int logical) {
  LoaderOptions o = options_of(g, rank, world, threads);
  o.placement.logical_ranks = logical;
  o.mix = mixer(both);
  return o;
}

// The rows of each step of all ranks together, in the order of the ranks.
std::vector<Rows> steps(int world, int threads, int logical, int n, Position from = {}) {
  const Augmented data(numbered(103), Augment::cifar());
  std::vector<Rows> all(static_cast<std::size_t>(n));
  for (int rank = 0; rank < world; ++rank) {
    Loader loader(data, mixing(16, rank, world, threads, logical));
    loader.start(from);
    for (Rows& r : all) r.add(loader.next());
  }
  return all;
}

}  // namespace

TEST_CASE("with logical ranks, mixed batches have the same bytes on any number of processes and threads") {
  const auto expected = steps(1, 0, 5, 9);
  int mixed = 0;
  for (const Rows& r : expected)
    for (const auto& [first, second, share] : r.labels) mixed += first != second && share < 1 ? 1 : 0;
  CHECK(mixed > 80);
  for (const int world : {1, 2, 3, 5})
    for (const int threads : {1, 3}) CHECK(steps(world, threads, 5, 9) == expected);
  // A run that continues in the middle of an epoch, and of the next one.
  CHECK(steps(2, 2, 5, 1, {0, 3 * 16}).front() == expected[3]);
  CHECK(steps(2, 2, 5, 1, {1, 16}).front() == expected[8]);
}

TEST_CASE("without logical ranks, each rank mixes its own rows, and other ranks and steps mix differently") {
  const auto one = steps(1, 1, 0, 2), two = steps(2, 1, 0, 2);
  CHECK(one[0] != two[0]);
  CHECK(std::get<2>(one[0].labels[0]) != std::get<2>(one[1].labels[0]));
  CHECK(std::get<2>(two[0].labels[0]) == std::get<2>(two[0].labels[7]));
  CHECK(std::get<2>(two[0].labels[0]) != std::get<2>(two[0].labels[8]));
}

TEST_CASE("mixing changes neither the plain labels nor a loader without it, and mixes what was read") {
  const Augmented data(numbered(103), Augment::cifar());
  Loader plain(data, options_of(16, 0, 1, 1)), mixes(data, mixing(16, 0, 1, 1, 0));
  for (int step = 0; step < 3; ++step) {
    const Batch &b = plain.next(), &m = mixes.next();
    CHECK(b.mixed.empty());
    Rows want;
    std::vector<std::uint8_t> images(b.images.begin(), b.images.end());
    std::vector<MixedLabel> labels;
    for (const std::int32_t l : b.labels) labels.push_back({l, l, 1});
    RankRows rows{images, labels, *b.schema, batch_rng(42, Purpose::mixing, static_cast<std::uint64_t>(step) * 16, 0)};
    mixer(both)(rows);
    want.images = images;
    for (const MixedLabel& l : labels) want.labels.emplace_back(l.first, l.second, l.share);
    Rows got;
    got.add(m);
    CHECK(got == want);
  }
}

TEST_CASE("the numbers of mixing are those of no other purpose and no other step, in any epoch") {
  LoaderOptions o = options_of(16, 0, 1, 1);
  std::vector<std::uint64_t> drawn;
  o.mix = [&](RankRows& rows) { drawn.push_back(rows.rng.next64()); };
  // In bits above the 48th, an epoch would change the purpose.
  for (const std::int64_t epoch : {0, 1, 65536, 3 << 16, (3 << 16) + 1}) {
    Loader loader(Augmented(numbered(103), Augment::cifar()), o);
    loader.start({epoch, 0});
    (void)loader.next();
  }
  drawn.push_back(batch_rng(o.seed, Purpose::dropout, 0, 0).next64());
  drawn.push_back(batch_rng(o.seed, Purpose::dropout, std::uint64_t{1} << 32, 0).next64());
  std::sort(drawn.begin(), drawn.end());
  CHECK(std::adjacent_find(drawn.begin(), drawn.end()) == drawn.end());
}

TEST_CASE("records that could not be read are filled before the batch is mixed") {
  Troubled data;
  data.several = {3, 40, 41};
  LoaderOptions o = mixing(100, 0, 1, 2, 0);
  o.skip_bad_records = true;
  o.mix = mixer({.mixup_alpha = 1000});
  Loader loader(data, o);
  const Batch& b = loader.next();
  CHECK(b.skipped == 3);
  CHECK(loader.take_skip_messages().size() == 3);
  int ignored = 0, mixed = 0;
  for (const MixedLabel& l : b.mixed) {
    ignored += l.first == ignored_label ? 1 : 0;
    CHECK((l.first == ignored_label) == (l.second == ignored_label));
    mixed += l.share < 1 ? 1 : 0;
  }
  CHECK(ignored == 3);
  CHECK(mixed >= 94);
}

TEST_CASE("what a mixer throws comes from next()") {
  LoaderOptions o = options_of(16, 0, 1, 1);
  o.mix = [](RankRows&) { fail<DataError>("mixer", "rows", "none"); };
  Loader loader(numbered(40), o);
  CHECK_THROWS_AS((void)loader.next(), DataError);
}
