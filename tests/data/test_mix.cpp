// SPDX-License-Identifier: MIT
// optimised
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include <tutti/core/ignored_label.hpp>
#include <tutti/data/augment/mix.hpp>

#include "data/chi_square.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

using Bytes = std::vector<std::uint8_t>;

Schema images(int width, int height) {
  Schema s;
  s.name = "images";
  s.channels = 3;
  s.width = width;
  s.height = height;
  s.classes = 1000;
  return s;
}

Bytes noise(std::size_t n) {
  Bytes v(n);
  Rng rng(4, Purpose::user);
  for (auto& b : v) b = static_cast<std::uint8_t>(rng.next());
  return v;
}

std::vector<MixedLabel> plain(const std::vector<std::int32_t>& labels) {
  std::vector<MixedLabel> all;
  for (const std::int32_t l : labels) all.push_back({l, l, 1});
  return all;
}

void mix(const MixDraw& d, MixPairs pairs, const Schema& s, Bytes& pixels, std::vector<MixedLabel>& labels,
         cpu::Isa isa = cpu::detect_isa()) {
  RankRows rows{pixels, labels, s, Rng(0, Purpose::user)};
  mix_rows(d, pairs, rows, isa);
}

Rng of_step(std::uint64_t step, std::uint64_t rank = 0) { return batch_rng(3, Purpose::mixing, step, rank); }

}  // namespace

TEST_CASE("cutmix cuts out the parts that timm's rand_bbox and torchvision's CutMix cut out") {
  // Share, size, centre; begin and length by timm 1.0.31 and by torchvision 0.29.2.
  struct Golden {
    double share;
    int size, centre, timm_begin, timm_length, begin, length;
  };
  for (const Golden& g : {Golden{0.0, 32, 5, 0, 21, 0, 21},
                          {0.25, 224, 0, 0, 97, 0, 96},
                          {0.25, 224, 223, 127, 97, 127, 97},
                          {0.25, 224, 100, 4, 193, 4, 192},
                          {0.5, 64, 63, 41, 23, 41, 23},
                          {0.5, 48, 24, 8, 33, 8, 32},
                          {0.9, 32, 16, 11, 10, 11, 10},
                          {0.999, 32, 16, 16, 1, 16, 0},
                          {1.0, 224, 7, 7, 0, 7, 0},
                          {0.36, 225, 112, 22, 180, 22, 180},
                          {0.75, 33, 1, 0, 9, 0, 9},
                          {0.11, 160, 159, 84, 76, 84, 76}}) {
    CAPTURE(g.share);
    CAPTURE(g.centre);
    const auto timm = cutmix_range(g.share, g.size, g.centre, MixPairs::reversed);
    CHECK(std::pair(timm.begin, timm.length) == std::pair(g.timm_begin, g.timm_length));
    const auto other = cutmix_range(g.share, g.size, g.centre, MixPairs::previous);
    CHECK(std::pair(other.begin, other.length) == std::pair(g.begin, g.length));
  }
}

TEST_CASE("the shares of 100,000 batches have the distribution Beta(alpha, alpha)") {
  // Probabilities of the first ten of twenty cells of equal width, by numeric integration. The others are their mirror.
  const std::vector<std::pair<double, std::vector<double>>> betas{
      {0.2,
       {0.291025066, 0.045664712, 0.031176914, 0.024855472, 0.021333355, 0.019148665, 0.017730664, 0.016812501,
        0.01625749, 0.015995161}},
      {0.5,
       {0.143566293, 0.061266472, 0.048350546, 0.041983924, 0.038166098, 0.035676786, 0.034003196, 0.032892467,
        0.032209936, 0.03188428}},
      {1.0, std::vector<double>(10, 0.05)},
      {2.0, {0.00725, 0.02075, 0.03275, 0.04325, 0.05225, 0.05975, 0.06575, 0.07025, 0.07325, 0.07475}}};
  for (const auto& [alpha, half] : betas) {
    CAPTURE(alpha);
    std::vector<double> want = half, got(20);
    want.insert(want.end(), half.rbegin(), half.rend());
    for (std::uint64_t step = 0; step < 100'000; ++step) {
      Rng rng = of_step(step, step % 7);
      const MixDraw d = draw_mix({.mixup_alpha = alpha}, 224, 224, rng);
      REQUIRE(d.kind == MixKind::mixup);
      ++got[static_cast<std::size_t>(std::min(static_cast<int>(d.share * 20), 19))];
    }
    const ChiSquare test = chi_square(got, want);
    CAPTURE(test.sum);
    CHECK(test.freedom == 19);
    CHECK(test.passes());
    got[3] *= 0.9;
    CHECK_FALSE(chi_square(got, want).passes());
  }
}

TEST_CASE("probability and switch choose between nothing, mixup and cutmix, and centres are uniform") {
  const BatchMix m{.mixup_alpha = 0.2, .cutmix_alpha = 1, .probability = 0.75, .cutmix_share = 0.25};
  std::vector<double> kinds(3), rows(12);
  for (std::uint64_t step = 0; step < 50'000; ++step) {
    Rng rng = of_step(step);
    const MixDraw d = draw_mix(m, 64, 48, rng);
    ++kinds[static_cast<std::size_t>(d.kind)];
    if (d.kind == MixKind::none) CHECK(d == MixDraw{});
    if (d.kind == MixKind::cutmix) CHECK(d.share == doctest::Approx(1 - d.box.width * d.box.height / (64.0 * 48)));
  }
  CHECK(chi_square(kinds, std::vector<double>{0.25, 0.75 * 0.75, 0.75 * 0.25}).passes());
  for (std::uint64_t step = 0; step < 50'000; ++step) {
    Rng rng = of_step(step);
    // With a share near 1, the box has one pixel, the centre.
    const BatchMix cut{.cutmix_alpha = 1000};
    const MixDraw d = draw_mix(cut, 2, 48, rng);
    const int top = d.box.top, bottom = d.box.top + d.box.height;
    if (top > 0 && bottom < 48) ++rows[static_cast<std::size_t>((top + bottom) / 2 / 4)];
  }
  // Centres at least 18 pixels from the border keep their whole box of about 34 pixels.
  CHECK(rows[5] == doctest::Approx(rows[6]).epsilon(0.06));
  Rng rng = of_step(0), copy = rng;
  CHECK(draw_mix({}, 64, 48, rng) == MixDraw{});
  CHECK(rng.next() == copy.next());
}

TEST_CASE("what is drawn depends on seed, step and logical rank only") {
  const BatchMix m{.mixup_alpha = 0.2, .cutmix_alpha = 1};
  int different = 0;
  for (std::uint64_t step = 0; step < 50; ++step)
    for (std::uint64_t rank = 0; rank < 4; ++rank) {
      Rng once = of_step(step, rank), again = once, next = of_step(step, rank + 1), later = of_step(step + 1, rank);
      const MixDraw d = draw_mix(m, 64, 48, once);
      REQUIRE(d == draw_mix(m, 64, 48, again));
      different += d != draw_mix(m, 64, 48, next) ? 1 : 0;
      different += d != draw_mix(m, 64, 48, later) ? 1 : 0;
    }
  CHECK(different > 395);
}

TEST_CASE("mixup blends each image with its partner, rounded to nearest, and gives it both labels") {
  constexpr std::size_t rows = 5;
  const Schema s = images(47, 31);  // 4371 bytes: more than one piece
  const auto bytes = static_cast<std::size_t>(s.image_bytes());
  const Bytes batch = noise(rows * bytes);
  const std::vector<std::int32_t> own{3, 1, 4, 0, 7};
  for (const MixPairs pairs : {MixPairs::reversed, MixPairs::previous})
    for (const double share : {0.0, 0.123, 0.5, 0.97}) {
      Bytes got = batch;
      auto labels = plain(own);
      const MixDraw d{MixKind::mixup, share, {}};
      mix(d, pairs, s, got, labels, cpu::Isa::baseline);
      Bytes same = batch;
      auto others = plain(own);
      mix(d, pairs, s, same, others);
      REQUIRE(same == got);
      for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t partner = pairs == MixPairs::reversed ? rows - 1 - row : (row + rows - 1) % rows;
        CHECK(labels[row].first == own[row]);
        CHECK(labels[row].second == own[partner]);
        CHECK(labels[row].share == static_cast<float>(share));
        for (std::size_t i = 0; i < bytes; ++i) {
          const double want = share * batch[row * bytes + i] + (1 - share) * batch[partner * bytes + i];
          REQUIRE(std::abs(want - got[row * bytes + i]) < 0.51);
        }
      }
    }
}

TEST_CASE("cutmix copies the box of each image's partner") {
  constexpr std::size_t rows = 4;
  const Schema s = images(20, 12);
  const Bytes batch = noise(rows * static_cast<std::size_t>(s.image_bytes()));
  for (const MixPairs pairs : {MixPairs::reversed, MixPairs::previous})
    for (std::uint64_t step = 0; step < 20; ++step) {
      Rng rng = of_step(step);
      const MixDraw d = draw_mix({.cutmix_alpha = 1, .pairs = pairs}, 20, 12, rng);
      Bytes got = batch;
      auto labels = plain({0, 1, 2, 3});
      mix(d, pairs, s, got, labels);
      for (std::size_t row = 0; row < rows; ++row)
        for (int y = 0; y < 12; ++y)
          for (int x = 0; x < 20; ++x) {
            const ImageBox& b = d.box;
            const bool in = y >= b.top && y < b.top + b.height && x >= b.left && x < b.left + b.width;
            const std::size_t from = in ? mix_partner(row, rows, pairs) : row;
            for (std::size_t c = 0; c < 3; ++c) {
              const auto pixel = static_cast<std::size_t>(y * 20 + x) * 3 + c;
              REQUIRE(got[row * 720 + pixel] == batch[from * 720 + pixel]);
            }
          }
    }
}

TEST_CASE("an image that was not readable, or is alone, is not mixed") {
  const Schema s = images(5, 2);
  const Bytes batch = noise(5 * 30);
  for (const auto& [pairs, untouched] : {std::pair{MixPairs::reversed, std::vector<std::size_t>{2, 1, 3}},
                                         std::pair{MixPairs::previous, std::vector<std::size_t>{1, 2}}}) {
    const std::int32_t bad = pairs == MixPairs::reversed ? 3 : 1;
    Bytes got = batch;
    std::vector<std::int32_t> own{10, 11, 12, 13, 14};
    own[static_cast<std::size_t>(bad)] = ignored_label;
    auto labels = plain(own);
    mix({MixKind::mixup, 0.3, {}}, pairs, s, got, labels);
    for (std::size_t row = 0; row < 5; ++row) {
      const bool same = std::find(untouched.begin(), untouched.end(), row) != untouched.end();
      CAPTURE(row);
      const auto at = static_cast<std::ptrdiff_t>(row) * 30;
      // The middle of an odd number of rows is its own partner in reversed pairs.
      CHECK(std::equal(got.begin() + at, got.begin() + at + 30, batch.begin() + at) == same);
      if (same) CHECK((labels[row].second == own[row]));
    }
  }
  Bytes one = noise(30);
  const Bytes want = one;
  auto label = plain({6});
  mix({MixKind::mixup, 0.3, {}}, MixPairs::previous, s, one, label);
  CHECK(one == want);
  CHECK(label[0].share == 1);
}

TEST_CASE("values out of their range are refused") {
  CHECK(mixer({.mixup_alpha = 0.2, .cutmix_alpha = 1}) != nullptr);
  CHECK(mixer({}) == nullptr);
  for (const BatchMix& bad :
       {BatchMix{.mixup_alpha = -1}, BatchMix{.cutmix_alpha = 1e-4}, BatchMix{.cutmix_alpha = NAN},
        BatchMix{.mixup_alpha = 1, .probability = 2}, BatchMix{.mixup_alpha = 1, .cutmix_share = -0.5}})
    CHECK_THROWS_AS((void)mixer(bad), UsageError);
}
