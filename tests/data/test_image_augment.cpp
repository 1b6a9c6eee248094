// SPDX-License-Identifier: MIT
// optimised
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

#include <tutti/data/images/image_augment.hpp>

#include "data/image_fixtures.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

Rng stream(std::uint64_t index, std::uint64_t epoch = 0) { return Rng(1, Purpose::augment, epoch, index); }

void check_whole(const ResizeBox& b) {
  for (const double v : {b.x, b.y, b.width, b.height}) REQUIRE(v == std::round(v));
}
void check_within(const ResizeBox& b, int w, int h) {
  REQUIRE(b.x >= 0);
  REQUIRE(b.y >= 0);
  REQUIRE(b.width > 0);
  REQUIRE(b.height > 0);
  REQUIRE(b.x + b.width <= w + 1e-9);
  REQUIRE(b.y + b.height <= h + 1e-9);
}

}  // namespace

TEST_CASE("torchvision's crop: whole pixels, areas spread evenly from 8 to 100 %, aspect ratios from 3/4 to 4/3") {
  const ImageAugmenter a(ImageAugment::torchvision(Split::train));
  double area = 0, aspect = 0, smallest = 1, largest = 0;
  constexpr int n = 4000, w = 500, h = 500;
  std::array<int, 5> fifths{};
  for (int i = 0; i < n; ++i) {
    Rng rng = stream(static_cast<std::uint64_t>(i));
    const ImageCrop c = a.draw(w, h, rng);
    check_within(c.box, w, h);
    check_whole(c.box);
    const double share = c.box.width * c.box.height / (w * h), ratio = c.box.width / c.box.height;
    REQUIRE(share > 0.079);
    REQUIRE(ratio > 0.74);
    REQUIRE(ratio < 1.35);
    area += share / n;
    aspect += std::log(ratio) / n;
    smallest = std::min(smallest, share);
    largest = std::max(largest, share);
    ++fifths[static_cast<std::size_t>(std::min(4.0, c.box.x / std::max(1.0, w - c.box.width) * 5))];
  }
  // The areas are nearly uniform: a large narrow rectangle does not fit into the image and is drawn again.
  CHECK(area > 0.46);
  CHECK(area < 0.54);
  CHECK(std::abs(aspect) < 0.01);
  CHECK(smallest < 0.09);
  CHECK(largest > 0.95);
  for (const int f : fifths) CHECK(f > n / 5 - 150);
}

TEST_CASE("torchvision's crop of an image that no aspect ratio fits is the middle of the image") {
  const ImageAugmenter a(ImageAugment::torchvision(Split::train));
  for (std::uint64_t i = 0; i < 50; ++i) {
    Rng rng = stream(i);
    const ImageCrop wide = a.draw(1000, 10, rng);
    check_within(wide.box, 1000, 10);
    CHECK(wide.box.height <= 10);
    CHECK(wide.box.width <= 14);
    if (wide.box.height == 10 && wide.box.width == 13) CHECK(wide.box.x == 493);
    for (const auto& [w, h] : {std::array{1, 1}, {1, 50}, {50, 1}, {2, 3}}) {
      const ImageCrop c = a.draw(w, h, rng);
      check_within(c.box, w, h);
      check_whole(c.box);
    }
  }
}

TEST_CASE(
    "the nominal crop lies on the grid of a square canvas, covers a tenth, and follows the image's aspect ratio") {
  const ImageAugmenter a(ImageAugment::horovod(Split::train));
  double area = 0, smallest = 1;
  constexpr int n = 4000, w = 560, h = 280;
  for (int i = 0; i < n; ++i) {
    Rng rng = stream(static_cast<std::uint64_t>(i));
    const ImageCrop c = a.draw(w, h, rng);
    check_within(c.box, w, h);
    REQUIRE(std::abs(c.box.width / 2 - std::round(c.box.width / 2)) < 1e-9);  // two per canvas pixel
    REQUIRE(std::abs(c.box.height - std::round(c.box.height)) < 1e-9);
    const double share = c.box.width * c.box.height / (w * h), ratio = c.box.width / c.box.height / 2;
    REQUIRE(share >= 0.0999);
    REQUIRE(ratio > 0.73);
    REQUIRE(ratio < 1.36);
    area += share / n;
    smallest = std::min(smallest, share);
  }
  // The heights are uniform, so the mean area is smaller than with torchvision's rule.
  CHECK(area > 0.38);
  CHECK(area < 0.48);
  CHECK(smallest < 0.12);
}

TEST_CASE("evaluation crops: the middle 80 % of each side; the short side at 256 and 224 from the middle") {
  Rng rng = stream(0);
  const ImageAugmenter horovod(ImageAugment::horovod(Split::test)), centre(ImageAugment::torchvision(Split::test));
  const ImageCrop c = horovod.draw(500, 375, rng);
  CHECK(c.box.x == 50);
  CHECK(c.box.y == 37);
  CHECK(c.box.width == 400);
  CHECK(c.box.height == 301);
  CHECK_FALSE(c.mirror);
  const ImageCrop d = centre.draw(512, 256, rng);
  CHECK(d.box.x == 144);
  CHECK(d.box.y == 16);
  CHECK(d.box.width == 224);
  CHECK(d.box.height == 224);
  CHECK(d.bounds.width == 512);
  CHECK(rng.next() == stream(0).next());  // draw() used no random number
  for (const auto& [w, h] : {std::array{1, 1}, {1, 300}, {300, 1}, {3, 2}})
    for (const ImageAugmenter* a : {&horovod, &centre}) check_within(a->draw(w, h, rng).box, w, h);
}

TEST_CASE("half of the images are mirrored in an epoch, the other half in the next") {
  const ImageAugmenter a(ImageAugment::horovod(Split::train));
  int mirrored = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    Rng first = stream(i, 4), second = stream(i, 5);
    const bool m = a.draw(100, 100, first).mirror;
    CHECK(m != a.draw(100, 100, second).mirror);
    mirrored += m ? 1 : 0;
  }
  CHECK(mirrored > 430);
  CHECK(mirrored < 570);
}

TEST_CASE("resize and centre crop in one pass give the pixels of PIL's two passes within two levels") {
  const Picture image = golden("image/image.png"), want = golden("centre/image.png/32/28");
  ImageAugment a;
  a.height = a.width = 28;
  a.short_side = 32;
  Rng rng = stream(0);
  const ImageCrop c = ImageAugmenter(a).draw(image.width, image.height, rng);
  Bytes got(want.pixels.size());
  Resizer()({image.pixels.data(), image.width, image.height}, c.box, c.bounds, 28, 28, true, false, got.data());
  const Difference d = difference(got, want.pixels);
  CHECK(d.most <= 2);
  CHECK(d.share < 0.25);
}

TEST_CASE("brightness, contrast, saturation and hue give the pixels of PIL") {
  const Picture image = golden("image/image.png");
  int seen = 0;
  for (const auto& e : image_goldens().entries()) {
    if (e.name.rfind("colour/", 0) != 0) continue;
    CAPTURE(e.name);
    const auto slash = e.name.rfind('/');
    const std::string what = e.name.substr(7, slash - 7);
    const double factor = std::stod(e.name.substr(slash + 1));
    Picture got = image;
    if (what == "hue") {
      detail::turn_hue(got.pixels, static_cast<std::uint8_t>(static_cast<std::int32_t>(factor * 255)));
    } else if (what == "brightness") {
      detail::blend_colour(got.pixels, factor, 0);
    } else if (what == "saturation") {
      detail::blend_colour(got.pixels, factor, -1);
    } else {
      detail::blend_colour(got.pixels, factor, detail::mean_luma(got.pixels));
    }
    const Difference d = difference(got.pixels, golden(e.name).pixels);
    CHECK(d.most <= (what == "hue" ? 2 : 1));
    CHECK(d.share < 0.02);
    ++seen;
  }
  CHECK(seen == 12);
}

TEST_CASE("jitter in YIQ equals its definition, computed in double, within one level, on every instruction set") {
  const Picture image = golden("image/image.png");
  for (std::uint64_t i = 0; i < 40; ++i) {
    Rng rng = stream(i), copy = rng;
    const ColourJitter j = ColourJitter::yiq(i % 2 == 0 ? 0.3 : 40);
    Picture got = image;
    jitter_colour(j, rng, got.pixels, cpu::Isa::baseline);
    for (const cpu::Isa isa : {cpu::Isa::avx2, cpu::Isa::avx512}) {
      if (isa > cpu::detect_isa()) continue;
      Rng again = copy;
      Picture same = image;
      jitter_colour(j, again, same.pixels, isa);
      REQUIRE(same.pixels == got.pixels);
    }
    const auto draw = [&](double low, double high) { return low + (high - low) * copy.uniform53(); };
    const double brightness = draw(-j.brightness, j.brightness), hue = draw(-0.13, 0.13) * std::numbers::pi;
    const double saturation = draw(0.6, 1.4), contrast = draw(0.6, 1.4);
    // The expected result, one pixel after another: brightness, conversion to YIQ, rotation and scaling of the hue
    // plane, conversion back, and contrast around the mean of the result.
    std::vector<std::array<double, 3>> pixels;
    std::array<double, 3> mean{};
    for (std::size_t k = 0; k < image.pixels.size(); k += 3) {
      const double r = image.pixels[k] + brightness, g = image.pixels[k + 1] + brightness,
                   b = image.pixels[k + 2] + brightness;
      const double y = 0.299 * r + 0.587 * g + 0.114 * b;
      const double p = 0.596 * r - 0.274 * g - 0.322 * b, q = 0.211 * r - 0.523 * g + 0.312 * b;
      const double p2 = saturation * (std::cos(hue) * p - std::sin(hue) * q);
      const double q2 = saturation * (std::sin(hue) * p + std::cos(hue) * q);
      pixels.push_back({y + 0.956 * p2 + 0.621 * q2, y - 0.272 * p2 - 0.647 * q2, y - 1.107 * p2 + 1.704 * q2});
      for (std::size_t c = 0; c < 3; ++c) mean[c] += pixels.back()[c];
    }
    double most = 0;
    for (std::size_t k = 0; k < pixels.size(); ++k)
      for (std::size_t c = 0; c < 3; ++c) {
        const double m = mean[c] / static_cast<double>(pixels.size());
        const double v = std::clamp((pixels[k][c] - m) * contrast + m, 0.0, 255.0);
        most = std::max(most, std::abs(v - got.pixels[k * 3 + c]));
      }
    CHECK(most < 0.6);
  }
}

TEST_CASE(
    "PCA lighting adds one colour to all pixels, with the stated deviation; jitter without steps uses no random "
    "numbers") {
  ColourJitter j;
  j.lighting = 0.1;
  double squares = 0;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    Bytes grey(30, 128);
    Rng rng = stream(i);
    jitter_colour(j, rng, grey);
    for (std::size_t k = 3; k < grey.size(); ++k) REQUIRE(grey[k] == grey[k % 3]);
    squares += (grey[0] - 128) * (grey[0] - 128) / 2000.0;
  }
  // The root of the mean square of red: the first eigenvector adds 0.1 * 55.46 * 0.5675, and the other eigenvectors add
  // a little.
  CHECK(std::sqrt(squares) > 2.9);
  CHECK(std::sqrt(squares) < 3.5);
  Bytes same(30, 77);
  Rng rng = stream(1), copy = rng;
  jitter_colour({}, rng, same);
  CHECK(same == Bytes(30, 77));
  CHECK(rng.next() == copy.next());
}

TEST_CASE("torchvision's jitter applies its four steps in an order that depends on the image") {
  const Picture image = golden("image/image.png");
  std::vector<Bytes> seen;
  for (std::uint64_t i = 0; i < 20; ++i) {
    Rng rng = stream(i), again = rng;
    Picture a = image, b = image;
    jitter_colour(ColourJitter::torchvision(0.4, 0.4, 0.4, 0.1), rng, a.pixels);
    jitter_colour(ColourJitter::torchvision(0.4, 0.4, 0.4, 0.1), again, b.pixels);
    CHECK(a.pixels == b.pixels);
    CHECK(a.pixels != image.pixels);
    CHECK(std::find(seen.begin(), seen.end(), a.pixels) == seen.end());
    seen.push_back(a.pixels);
  }
}

TEST_CASE("presets have the numbers of the recipes, and invalid options are refused") {
  const ImageAugment horovod = ImageAugment::horovod(Split::train, true), tv = ImageAugment::torchvision(Split::train);
  CHECK(horovod.mean == std::vector<float>{121, 115, 100});
  CHECK(horovod.stddev == std::vector<float>{70, 68, 71});
  CHECK(horovod.tries == 100);
  CHECK(horovod.colour.form == ColourForm::yiq);
  CHECK(horovod.colour.contrast[1] == doctest::Approx(1.4));
  CHECK(ImageAugment::horovod(Split::train).colour.form == ColourForm::none);
  CHECK(tv.mean[0] == doctest::Approx(123.675));
  CHECK(tv.stddev[2] == doctest::Approx(57.375));
  const auto refused = [](auto change) {
    ImageAugment a;
    change(a);
    CHECK_THROWS_AS(ImageAugmenter{a}, UsageError);
  };
  refused([](ImageAugment& a) { a.width = 0; });
  refused([](ImageAugment& a) { a.least_area = 0; });
  refused([](ImageAugment& a) { a.least_area = 0.9, a.most_area = 0.5; });
  refused([](ImageAugment& a) { a.least_aspect = 2, a.most_aspect = 1; });
  refused([](ImageAugment& a) { a.tries = 0; });
  refused([](ImageAugment& a) { a.share = 1.5; });
  refused([](ImageAugment& a) { a.short_side = 100; });
  refused([](ImageAugment& a) { a.colour = ColourJitter::torchvision(0, 0, 0, 0.7); });
  refused([](ImageAugment& a) { a.colour.lighting = -1; });
}
