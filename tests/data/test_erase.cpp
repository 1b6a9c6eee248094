// SPDX-License-Identifier: MIT
// optimised
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/data/augment/erase.hpp>

#include "data/augment_fixtures.hpp"
#include "data/chi_square.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

constexpr int width = 64, height = 48;  // of make.py
constexpr std::uint64_t images = 100'000;
const std::vector<float> mean{123.675F, 116.28F, 103.53F}, stddev{58.395F, 57.12F, 57.375F};

Rng stream(std::uint64_t index, std::uint64_t epoch = 0) { return Rng(9, Purpose::augment, epoch, index); }

bool inside(const ImageBox& b, int x, int y) {
  return x >= b.left && x < b.left + b.width && y >= b.top && y < b.top + b.height;
}

}  // namespace

TEST_CASE("100,000 boxes are distributed like those of timm, at places that are equally likely") {
  const RandomErasing e = RandomErasing::timm(0.9);
  std::vector<double> counts(64), tops(12), lefts(16);
  for (std::uint64_t i = 0; i < images; ++i) {
    Rng rng = stream(i);
    const EraseDraw d = draw_erasing(e, width, height, rng);
    REQUIRE(d.count <= 1);
    const ImageBox none{0, 0, 47, 63}, &b = d.count > 0 ? d.boxes[0] : none;
    REQUIRE(b.height < height);
    REQUIRE(b.width < width);
    REQUIRE(b.top + b.height <= height);
    REQUIRE(b.left + b.width <= width);
    ++counts[static_cast<std::size_t>(std::min(b.height / 6, 7) * 8 + std::min(b.width / 8, 7))];
    // Of the boxes with these sides: 12 heights fit at 37 to 48 places.
    if (d.count > 0 && b.height == 12) ++tops[static_cast<std::size_t>(b.top * 12 / (height - b.height + 1))];
    if (d.count > 0 && b.width == 16) ++lefts[static_cast<std::size_t>(b.left * 16 / (width - b.width + 1))];
  }
  const auto raw = augment_numbers<std::int64_t>("draws/erase");
  const std::vector<double> want(raw.begin(), raw.end());
  const ChiSquare test = chi_square_of_two(counts, want);
  CAPTURE(test.sum);
  CHECK(test.freedom > 20);
  CHECK(test.passes());
  auto wrong = counts;
  *std::max_element(wrong.begin(), wrong.end()) *= 0.9;
  CHECK_FALSE(chi_square_of_two(wrong, want).passes());
  // 37 places in 12 cells and 49 in 16: the share of each cell is that of its places.
  const auto shares = [](int places, int cells) {
    std::vector<double> s(static_cast<std::size_t>(cells));
    for (int p = 0; p < places; ++p) s[static_cast<std::size_t>(p * cells / places)] += 1.0 / places;
    return s;
  };
  CHECK(chi_square(tops, shares(37, 12)).passes());
  CHECK(chi_square(lefts, shares(49, 16)).passes());
}

TEST_CASE("the number of boxes is drawn from 1 to the largest, and torchvision's ranges are its own") {
  RandomErasing e = RandomErasing::timm(1, EraseFill::mean, 4);
  std::vector<double> counts(5);
  double area = 0;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    Rng rng = stream(i);
    const EraseDraw d = draw_erasing(e, 224, 224, rng);
    ++counts[static_cast<std::size_t>(d.count)];
    for (const ImageBox& b : d.all()) area += static_cast<double>(b.height) * b.width / (224.0 * 224) / 20'000;
  }
  CHECK(chi_square(counts, std::vector<double>{0, 0.25, 0.25, 0.25, 0.25}).passes());
  CHECK(area == doctest::Approx((0.02 + 1.0 / 3) / 2).epsilon(0.02));
  const RandomErasing t = RandomErasing::torchvision(0.1);
  CHECK(t.most_area == 0.33);
  CHECK(t.least_aspect == 0.3);
  CHECK(t.most_aspect == 3.3);
  int erased = 0;
  for (std::uint64_t i = 0; i < images; ++i) {
    Rng rng = stream(i);
    erased += draw_erasing(t, 224, 224, rng).count;
  }
  CHECK(std::abs(erased - 10'000) < 3 * std::sqrt(9'000.0));
}

TEST_CASE("erased pixels are the mean, one colour, or normal numbers, and no other pixel changes") {
  for (const EraseFill fill : {EraseFill::mean, EraseFill::colour, EraseFill::pixels}) {
    const Eraser eraser(RandomErasing::timm(1, fill, 3), mean, stddev, 3);
    for (std::uint64_t i = 0; i < 200; ++i) {
      Rng rng = stream(i), copy = stream(i);
      const EraseDraw d = draw_erasing(RandomErasing::timm(1, fill, 3), width, height, copy);
      Bytes image(static_cast<std::size_t>(width * height) * 3, 200), same = image;
      eraser(rng, image, width, height);
      eraser.erase(d, copy, same, width);
      REQUIRE(image == same);
      for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) {
          const std::uint8_t* p = image.data() + (y * width + x) * 3;
          const ImageBox* last = nullptr;
          for (const ImageBox& b : d.all())
            if (inside(b, x, y)) last = &b;
          if (last == nullptr) {
            REQUIRE((p[0] == 200 && p[1] == 200 && p[2] == 200));
          } else if (fill == EraseFill::mean) {
            REQUIRE((p[0] == 124 && p[1] == 116 && p[2] == 104));
          } else if (fill == EraseFill::colour && last == &d.boxes[static_cast<std::size_t>(d.count - 1)]) {
            const std::uint8_t* first = image.data() + (last->top * width + last->left) * 3;
            REQUIRE((p[0] == first[0] && p[1] == first[1] && p[2] == first[2]));
          }
        }
    }
  }
}

TEST_CASE("random levels are normally distributed with the data set's mean and deviation") {
  const detail::NormalLevels levels(mean[0], stddev[0]);
  std::vector<double> counts(256), expected(256);
  Rng rng = stream(1);
  for (std::uint64_t i = 0; i < images; ++i) ++counts[levels(rng.next())];
  const auto below = [](double v) { return 0.5 * std::erfc((mean[0] - v) / (stddev[0] * std::numbers::sqrt2)); };
  for (std::size_t v = 0; v < 256; ++v) {
    const double low = v == 0 ? 0 : below(static_cast<double>(v) - 0.5);
    expected[v] = (v == 255 ? 1 : below(static_cast<double>(v) + 0.5)) - low;
  }
  CHECK(chi_square(counts, expected).passes());
  CHECK(levels(0) == 0);
  CHECK(levels(~std::uint32_t{0}) == 255);
  const detail::NormalLevels narrow(77, 0.01);
  for (int i = 0; i < 100; ++i) REQUIRE(narrow(rng.next()) == 77);
}

TEST_CASE("a cutout is one square inside each image, at places that are equally likely") {
  const RandomErasing e = RandomErasing::cutout(12);
  std::vector<double> tops(21), lefts(21);
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    Rng rng = stream(i);
    const EraseDraw d = draw_erasing(e, 32, 32, rng);
    REQUIRE(d.count == 1);
    REQUIRE(d.boxes[0].height == 12);
    REQUIRE(d.boxes[0].width == 12);
    ++tops.at(static_cast<std::size_t>(d.boxes[0].top));
    ++lefts.at(static_cast<std::size_t>(d.boxes[0].left));
  }
  const std::vector<double> equal(21, 1 / 21.0);
  CHECK(chi_square(tops, equal).passes());
  CHECK(chi_square(lefts, equal).passes());
  Rng rng = stream(1);
  const EraseDraw large = draw_erasing(RandomErasing::cutout(100), 32, 24, rng);
  CHECK(large.boxes[0].height == 24);
  CHECK(large.boxes[0].width == 32);
  CHECK(draw_erasing(RandomErasing::cutout(0), 32, 32, rng).count == 0);
}

TEST_CASE("erasing that is off takes no random numbers, and wrong options are refused") {
  Rng rng = stream(1);
  CHECK(draw_erasing({}, width, height, rng).count == 0);
  CHECK(rng.next() == stream(1).next());
  // No box with an area fits into one pixel, or into a row.
  for (const auto& [w, h] : {std::array{1, 1}, {64, 1}, {1, 64}}) {
    Rng r = stream(2);
    const auto drawn = draw_erasing(RandomErasing::timm(1), w, h, r);
    for (const ImageBox& b : drawn.all()) CHECK(b.height * b.width == 0);
  }
  const auto refused = [](auto change) {
    RandomErasing e = RandomErasing::timm(0.5);
    change(e);
    CHECK_THROWS_AS(Eraser(e, mean, stddev, 3), UsageError);
  };
  refused([](auto& e) { e.probability = -0.1; });
  refused([](auto& e) { e.probability = 1.1; });
  refused([](auto& e) { e.probability = NAN; });
  refused([](auto& e) { e.most_boxes = 0; });
  refused([](auto& e) { e.most_boxes = 17; });
  refused([](auto& e) { e.least_area = 0; });
  refused([](auto& e) { e.least_area = 0.5; });
  refused([](auto& e) { e.most_area = 1.5; });
  refused([](auto& e) { e.least_aspect = 0; });
  refused([](auto& e) { e.most_aspect = 101; });
}
