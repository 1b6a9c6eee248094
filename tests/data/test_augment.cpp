// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <tutti/data/augment.hpp>
#include <tutti/data/memory_dataset.hpp>

using namespace tutti;

namespace {

Schema schema_of(std::int64_t c, std::int64_t h, std::int64_t w) {
  Schema s;
  s.name = "test";
  s.channels = c;
  s.height = h;
  s.width = w;
  s.classes = 10;
  s.mean.assign(static_cast<std::size_t>(c), 0.0F);
  s.stddev.assign(static_cast<std::size_t>(c), 1.0F);
  return s;
}

std::vector<std::uint8_t> random_bytes(std::size_t n, std::uint64_t seed) {
  Rng rng(seed, Purpose::user);
  std::vector<std::uint8_t> v(n);
  for (auto& b : v) b = static_cast<std::uint8_t>(rng.next());
  return v;
}

// Computes the expected image from the definition, one pixel at a time.
std::vector<std::uint8_t> reference(const Augment& a, const Schema& s, const std::vector<std::uint8_t>& hwc, Rng& rng) {
  const std::int64_t oh = a.height != 0 ? a.height : s.height, ow = a.width != 0 ? a.width : s.width;
  const std::int64_t room_y = s.height + 2 * a.pad - oh, room_x = s.width + 2 * a.pad - ow;
  std::int64_t y0 = room_y / 2, x0 = room_x / 2;
  if (a.random_crop) {
    y0 = rng.below(static_cast<std::uint32_t>(room_y + 1));
    x0 = rng.below(static_cast<std::uint32_t>(room_x + 1));
  }
  const bool mirror = a.mirror && rng.alternating_coin();
  std::vector<std::uint8_t> out;
  for (std::int64_t y = 0; y < oh; ++y)
    for (std::int64_t x = 0; x < ow; ++x)
      for (std::int64_t c = 0; c < s.channels; ++c) {
        std::int64_t sy = y0 + y - a.pad, sx = x0 + (mirror ? ow - 1 - x : x) - a.pad;
        if (a.pad_mode == PadMode::reflect) {
          sy = s.height - 1 - std::abs(s.height - 1 - std::abs(sy));
          sx = s.width - 1 - std::abs(s.width - 1 - std::abs(sx));
        }
        const auto k = static_cast<std::size_t>(c);
        if (sy < 0 || sy >= s.height || sx < 0 || sx >= s.width)
          out.push_back(a.fill.empty() ? std::uint8_t{0} : a.fill[a.fill.size() == 1 ? 0 : k]);
        else
          out.push_back(hwc[static_cast<std::size_t>((sy * s.width + sx) * s.channels + c)]);
      }
  return out;
}

}  // namespace

TEST_CASE(
    "augmentation equals a simple implementation for every size, padding, crop, mirror, channel count and layout") {
  int cases = 0;
  for (const std::int64_t c : {1, 3, 4})
    for (const auto& [h, w] : {std::array<std::int64_t, 2>{5, 7}, {1, 1}, {8, 3}, {2, 16}}) {
      const Schema s = schema_of(c, h, w);
      const auto hwc = random_bytes(static_cast<std::size_t>(c * h * w), 7);
      std::vector<std::uint8_t> chw(hwc.size());
      for (std::int64_t i = 0; i < h * w; ++i)
        for (std::int64_t k = 0; k < c; ++k)
          chw[static_cast<std::size_t>(k * h * w + i)] = hwc[static_cast<std::size_t>(i * c + k)];
      for (const std::int64_t pad : {0, 1, 2, 4, 20})
        for (const auto& [oh, ow] : {std::array<std::int64_t, 2>{0, 0}, {1, 1}, {h + pad, w + pad}, {h + 2 * pad, 2}})
          for (int flags = 0; flags < 16; ++flags) {
            Augment a;
            a.height = oh;
            a.width = ow;
            a.pad = pad;
            a.random_crop = (flags & 1) != 0;
            a.mirror = (flags & 2) != 0;
            if (flags / 4 == 1) a.fill = {127};
            if (flags / 4 == 2) a.fill = random_bytes(static_cast<std::size_t>(c), 9);
            if (flags / 4 == 3) a.pad_mode = PadMode::reflect;
            if (w + 2 * pad < ow || (flags / 4 == 3 && pad >= std::min(h, w))) continue;
            const Augmenter augmenter(a, s);
            for (std::uint64_t index = 0; index < 6; ++index) {
              Rng r1(3, Purpose::augment, 1, index), r2 = r1, r3 = r1;
              const auto expected = reference(a, s, hwc, r1);
              // The buffers have exactly the required size and are on the heap: an address sanitizer detects one byte
              // too many.
              std::vector<std::uint8_t> got(expected.size()), got_chw(expected.size());
              augmenter(hwc.data(), PixelLayout::hwc, r2, got.data());
              augmenter(chw.data(), PixelLayout::chw, r3, got_chw.data());
              REQUIRE(got == expected);
              REQUIRE(got_chw == expected);
              REQUIRE(r1.next() == r2.next());
              ++cases;
            }
          }
    }
  CHECK(cases > 5000);
}

TEST_CASE("padding by reflection does not repeat the pixels of the border") {
  const Schema s = schema_of(1, 3, 4);
  const std::vector<std::uint8_t> image{0, 1, 2,  3,  //
                                        4, 5, 6,  7,  //
                                        8, 9, 10, 11};
  using Rows = std::vector<std::uint8_t>;
  Augment a;
  a.pad = 2;
  a.pad_mode = PadMode::reflect;
  a.height = 7;
  a.width = 8;
  a.fill = {255};
  const auto shown = [&](std::uint64_t index) {
    const Augmenter augmenter(a, s);
    Rng rng(1, Purpose::augment, 0, index);
    Rows got(static_cast<std::size_t>(augmenter.output().image_bytes()));
    augmenter(image.data(), PixelLayout::hwc, rng, got.data());
    return got;
  };
  // The values that numpy.pad(image, 2, "reflect") gives.
  CHECK(shown(0) == Rows{10, 9, 8, 9, 10, 11, 10, 9,  //
                         6,  5, 4, 5, 6,  7,  6,  5,  //
                         2,  1, 0, 1, 2,  3,  2,  1,  //
                         6,  5, 4, 5, 6,  7,  6,  5,  //
                         10, 9, 8, 9, 10, 11, 10, 9,  //
                         6,  5, 4, 5, 6,  7,  6,  5,  //
                         2,  1, 0, 1, 2,  3,  2,  1});
  // Windows of 2x2 pixels, mirrored or not: the windows in the corners contain only padding.
  a.height = a.width = 2;
  a.random_crop = a.mirror = true;
  bool corner = false, mirrored_corner = false, end = false;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    Rng rng(1, Purpose::augment, 0, i);
    const ImageWindow w = Augmenter(a, s).window(rng);
    if (w.top == -2 && w.left == -2) {
      CHECK(shown(i) == (w.mirror != 0 ? Rows{9, 10, 5, 6} : Rows{10, 9, 6, 5}));
      (w.mirror != 0 ? mirrored_corner : corner) = true;
    }
    if (w.top == 3 && w.left == 4 && w.mirror == 0) {
      CHECK(shown(i) == Rows{6, 5, 2, 1});
      end = true;
    }
  }
  CHECK(corner);
  CHECK(mirrored_corner);
  CHECK(end);
}

TEST_CASE("random crops reach every window evenly and half of the images are mirrored") {
  const Schema s = schema_of(1, 8, 8);
  Augment a = Augment::cifar();
  const Augmenter augmenter(a, s);
  std::vector<std::uint8_t> src(64, 0), dst(64);
  src[4 * 8 + 3] = 255;  // one bright pixel, which most windows contain
  std::array<int, 81> windows{};
  int mirrored = 0;
  constexpr int n = 16200;
  for (std::uint64_t i = 0; i < n; ++i) {
    Rng rng(1, Purpose::augment, 0, i), copy = rng;
    augmenter(src.data(), PixelLayout::hwc, rng, dst.data());
    const auto y = copy.below(9), x = copy.below(9);
    const bool m = copy.alternating_coin();
    ++windows[y * 9 + x];
    mirrored += m ? 1 : 0;
    const int sy = 4 + 4 - static_cast<int>(y), sx = 3 + 4 - static_cast<int>(x);
    if (sy < 8 && sx < 8 && sx >= 0) REQUIRE(dst[static_cast<std::size_t>(sy * 8 + (m ? 7 - sx : sx))] == 255);
  }
  for (const int w : windows) {
    CHECK(w > 130);
    CHECK(w < 270);
  }
  CHECK(mirrored > n * 0.48);
  CHECK(mirrored < n * 0.52);
}

TEST_CASE("two consecutive epochs show each image in both orientations") {
  for (std::uint64_t i = 0; i < 1000; ++i)
    for (std::uint64_t epoch = 0; epoch < 4; ++epoch)
      REQUIRE(Rng(7, Purpose::augment, epoch, i).alternating_coin() !=
              Rng(7, Purpose::augment, epoch + 1, i).alternating_coin());
  // The orientation of an image in the first epoch depends on the seed, and not on the orientations of neighbouring
  // images.
  int same_seed = 0, same_image = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const bool coin = Rng(7, Purpose::augment, 0, i).alternating_coin();
    same_seed += coin == Rng(7, Purpose::augment, 0, i + 1).alternating_coin() ? 1 : 0;
    same_image += coin == Rng(8, Purpose::augment, 0, i).alternating_coin() ? 1 : 0;
  }
  for (const int same : {same_seed, same_image}) {
    CHECK(same > 4800);
    CHECK(same < 5200);
  }
}

TEST_CASE("data sets for training and evaluation share the images, and are equal without random steps") {
  const Schema s = schema_of(3, 6, 6);
  const MemoryDataset images(s, random_bytes(5 * 108, 1), {0, 1, 2, 3, 4});
  Augment crop;
  crop.height = crop.width = 4;
  const Augmented train(images, Augment::cifar());
  const Augmented eval(images, crop);
  CHECK(train.schema().height == 6);
  CHECK(eval.schema().height == 4);
  CHECK(eval.schema().image_bytes() == 48);
  CHECK(eval.size() == 5);
  // The result is the same for a data set that does not give direct access to its images.
  const Augmented indirect(AnyDataset(images), crop);
  for (std::int64_t i = 0; i < 5; ++i) {
    Rng rng(0, Purpose::augment);
    std::vector<std::uint8_t> a(48), b(48);
    std::int32_t la = -1, lb = -1;
    eval.read(i, rng, Sample{a, la});
    indirect.read(i, rng, Sample{b, lb});
    CHECK(a == b);
    CHECK(la == i);
    CHECK(lb == i);
    CHECK(a[0] == images.image(i)[(1 * 6 + 1) * 3]);
  }
  static_assert(Dataset<Augmented<MemoryDataset>> && Dataset<Augmented<AnyDataset>>);
}

TEST_CASE("an augmentation that does not fit the images is refused") {
  const Schema s = schema_of(3, 6, 6);
  const auto build = [&](auto change) {
    Augment a;
    change(a);
    (void)Augmenter(a, s);
  };
  CHECK_THROWS_AS(build([](Augment& a) { a.pad = -1; }), UsageError);
  CHECK_THROWS_AS(build([](Augment& a) { a.height = 7; }), UsageError);
  CHECK_THROWS_AS(build([](Augment& a) { a.pad = 1, a.width = 9; }), UsageError);
  CHECK_THROWS_AS(build([](Augment& a) { a.fill = {1, 2}; }), UsageError);
  CHECK_THROWS_AS(build([](Augment& a) { a.height = -3; }), UsageError);
  CHECK_THROWS_WITH_AS(build([](Augment& a) { a.pad = 6, a.pad_mode = PadMode::reflect; }),
                       doctest::Contains("less than the 6 pixels of test, to reflect them, got 6"), UsageError);
  CHECK_NOTHROW(build([](Augment& a) { a.pad = 5, a.pad_mode = PadMode::reflect; }));
  CHECK_NOTHROW(build([](Augment& a) { a.pad = 6; }));
  CHECK_NOTHROW(build([](Augment& a) { a.pad = 1, a.width = 8, a.fill = {1, 2, 3}; }));
}

TEST_CASE("after crop_epochs the crop is in the centre") {
  const Schema s = schema_of(3, 8, 8);
  Augment a = Augment::cifar();
  a.mirror = false;
  a.crop_epochs = 2;
  Augment centre = a;
  centre.random_crop = false;
  const Augmenter cropping(a, s), centred(centre, s);
  const auto image = random_bytes(static_cast<std::size_t>(s.image_bytes()), 1);
  std::vector<std::uint8_t> got(image.size()), want(image.size());
  for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
    int differs = 0;
    for (std::uint64_t i = 0; i < 50; ++i) {
      Rng first(1, Purpose::augment, epoch, i), second(1, Purpose::augment, epoch, i);
      cropping(image.data(), PixelLayout::hwc, first, got.data());
      centred(image.data(), PixelLayout::hwc, second, want.data());
      differs += got != want ? 1 : 0;
    }
    CHECK((differs > 0) == (epoch < 2));
  }
}
