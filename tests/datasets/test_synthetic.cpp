// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include <tutti/datasets/synthetic/synthetic.hpp>

using namespace tutti;

namespace {

struct Drawn {
  std::vector<std::uint8_t> image;
  std::int32_t label = -1;
  bool operator==(const Drawn&) const = default;
};

Drawn sample(const Synthetic& d, std::int64_t i, std::uint64_t rng_seed = 0) {
  Drawn s{std::vector<std::uint8_t>(static_cast<std::size_t>(d.schema().image_bytes())), -1};
  Rng rng(rng_seed, Purpose::augment);
  d.read(i, rng, Sample{s.image, s.label});
  return s;
}

SyntheticOptions options_of(bool learnable) {
  SyntheticOptions o;
  o.size = 500;
  o.height = 9;
  o.width = 11;
  o.classes = 7;
  o.seed = 3;
  o.learnable = learnable;
  return o;
}

}  // namespace

TEST_CASE("a synthetic image depends only on seed and index") {
  static_assert(Dataset<Synthetic>);
  for (const bool learnable : {false, true}) {
    SyntheticOptions o = options_of(learnable);
    const Synthetic a(o), b(o);
    o.seed = 4;
    const Synthetic other(o);
    std::set<std::vector<std::uint8_t>> all;
    for (std::int64_t i = 0; i < 50; ++i) {
      CHECK(sample(a, i) == sample(b, i, 99));
      CHECK(sample(a, i).label == i % 7);
      CHECK(sample(a, i).image != sample(other, i).image);
      all.insert(sample(a, i).image);
    }
    CHECK(all.size() == 50);
    // The test set begins after the last image of the training set.
    o.seed = 3;
    o.first = 40;
    CHECK(sample(Synthetic(o), 5).image == sample(a, 45).image);
  }
}

TEST_CASE("synthetic pixels have the schema's mean and deviation") {
  for (const bool learnable : {false, true}) {
    const Synthetic d(options_of(learnable));
    double sum = 0, squares = 0, n = 0;
    for (std::int64_t i = 0; i < d.size(); ++i)
      for (const double p : sample(d, i).image) sum += p, squares += p * p, n += 1;
    const double mean = sum / n, stddev = std::sqrt(squares / n - mean * mean);
    CHECK(std::abs(mean - d.schema().mean[0]) < (learnable ? 8 : 1));
    CHECK(std::abs(stddev - d.schema().stddev[0]) < (learnable ? 5 : 1));
  }
}

TEST_CASE("the mean image of each class separates learnable classes, but not random classes") {
  for (const bool learnable : {false, true}) {
    const Synthetic d(options_of(learnable));
    const auto pixels = static_cast<std::size_t>(d.schema().image_bytes());
    std::array<std::vector<double>, 7> mean;
    mean.fill(std::vector<double>(pixels));
    for (std::int64_t i = 0; i < 350; ++i) {
      const Drawn s = sample(d, i);
      for (std::size_t k = 0; k < pixels; ++k) mean[static_cast<std::size_t>(s.label)][k] += s.image[k] / 50.0;
    }
    int right = 0;
    for (std::int64_t i = 350; i < 500; ++i) {
      const Drawn s = sample(d, i);
      std::size_t best = 0;
      double least = 1e30;
      for (std::size_t c = 0; c < 7; ++c) {
        double distance = 0;
        for (std::size_t k = 0; k < pixels; ++k) distance += std::pow(s.image[k] - mean[c][k], 2);
        if (distance < least) least = distance, best = c;
      }
      right += best == static_cast<std::size_t>(s.label) ? 1 : 0;
    }
    if (learnable)
      CHECK(right == 150);
    else
      CHECK(right < 50);
  }
}

TEST_CASE("invalid options of synthetic data are refused") {
  const auto build = [](auto change) {
    SyntheticOptions o;
    change(o);
    (void)Synthetic(o);
  };
  CHECK_THROWS_AS(build([](SyntheticOptions& o) { o.size = 0; }), UsageError);
  CHECK_THROWS_AS(build([](SyntheticOptions& o) { o.channels = 0; }), UsageError);
  CHECK_THROWS_AS(build([](SyntheticOptions& o) { o.channels = -1; }), UsageError);
  CHECK_THROWS_AS(build([](SyntheticOptions& o) { o.channels = 1 << 30; }), UsageError);
  CHECK_THROWS_AS(build([](SyntheticOptions& o) { o.height = 0; }), UsageError);
  CHECK_THROWS_AS(build([](SyntheticOptions& o) { o.classes = 0; }), UsageError);
  CHECK_THROWS_AS(build([](SyntheticOptions& o) { o.first = -1; }), UsageError);
  CHECK_NOTHROW(build([](SyntheticOptions& o) { o.channels = 1, o.height = o.width = 1, o.learnable = true; }));
}
