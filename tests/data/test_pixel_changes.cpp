// SPDX-License-Identifier: MIT
// optimised
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <tutti/data/augment.hpp>
#include <tutti/data/augment/parse_policy.hpp>
#include <tutti/data/augment/pixel_changes.hpp>
#include <tutti/data/images/image_augment.hpp>
#include <tutti/data/images/image_input.hpp>
#include <tutti/data/images/image_preparation.hpp>
#include <tutti/data/loader.hpp>
#include <tutti/datasets/synthetic/synthetic.hpp>

#include "data/augment_fixtures.hpp"
#include "data/chi_square.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

PixelChanges everything() {
  PixelChanges c;
  c.policy = parse_policy("test", "rand-m9-mstd0.5-inc1");
  c.colour = ColourJitter::torchvision(0.4, 0.4, 0.4, 0.1);
  c.normalised = {0.14, 0.13};
  c.erasing = RandomErasing::timm(0.5, EraseFill::pixels, 2);
  return c;
}

Synthetic images() {
  SyntheticOptions o;
  o.size = 48;
  o.height = 24;
  o.width = 20;
  return Synthetic(o);
}

AnyDataset changed(const PixelChanges& c) {
  const Synthetic source = images();
  const Schema seen = source.schema();
  Augment a;
  a.mirror = true;
  return PixelChanged(Augmented(source, a), c, seen);
}

// The images of two epochs, by epoch and index, as `world` ranks read them.
std::map<std::pair<std::int64_t, std::int64_t>, Bytes> read(int world, int threads, std::int64_t batch) {
  std::map<std::pair<std::int64_t, std::int64_t>, Bytes> all;
  for (int rank = 0; rank < world; ++rank) {
    LoaderOptions o;
    o.placement = {batch, rank, world};
    o.threads = threads;
    o.group = 3;
    o.seed = 5;
    Loader loader(changed(everything()), o);
    loader.start({});
    for (std::int64_t epoch = 0; epoch < 2;) {
      const Batch& b = loader.next();
      const std::size_t bytes = b.count > 0 ? b.images.size() / static_cast<std::size_t>(b.count) : 0;
      for (std::size_t i = 0; i < static_cast<std::size_t>(b.count); ++i)
        all[{b.epoch, b.indices[i]}] = Bytes(b.images.begin() + static_cast<std::ptrdiff_t>(i * bytes),
                                             b.images.begin() + static_cast<std::ptrdiff_t>((i + 1) * bytes));
      epoch = b.after.epoch;
    }
  }
  return all;
}

}  // namespace

TEST_CASE("changed images are the same for any number of ranks, threads and images in a batch") {
  const auto want = read(1, 0, 16);
  REQUIRE(want.size() == 96);
  CHECK(want == read(1, 3, 16));
  CHECK(want == read(3, 2, 16));
  CHECK(want == read(2, 1, 7));
  int different = 0;
  for (std::int64_t i = 0; i < 48; ++i) different += want.at({0, i}) != want.at({1, i}) ? 1 : 0;
  CHECK(different == 48);
}

TEST_CASE("no changes keep the pixels and take no random numbers") {
  CHECK_FALSE(PixelChanges{}.any());
  const PixelChanger none({}, {}, {}, 3);
  Bytes image(30, 77);
  PixelChanger::Scratch scratch;
  Rng rng(1, Purpose::augment), copy = rng;
  none(rng, image, 5, 2, scratch);
  CHECK(image == Bytes(30, 77));
  CHECK(rng.next() == copy.next());
  // A stored image in a device's memory cannot be changed there.
  CHECK(changed(everything()).stored() == nullptr);
}

TEST_CASE("brightness and contrast change the normalised image, and are uniform") {
  const std::vector<float> mean{125, 123, 114}, stddev{63, 62, 67};
  PixelChanges c;
  c.normalised = {0.2, 0.3};
  const PixelChanger change(c, mean, stddev, 3);
  PixelChanger::Scratch scratch;
  std::vector<double> brightness(20), contrast(20);
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    Rng rng(1, Purpose::augment, 0, i);
    const JitterDraw d = draw_jitter(c.normalised, rng);
    REQUIRE(std::abs(d.brightness) <= 0.2);
    REQUIRE(std::abs(d.contrast - 1) <= 0.3);
    ++brightness[static_cast<std::size_t>((d.brightness + 0.2) / 0.4 * 20)];
    ++contrast[static_cast<std::size_t>((d.contrast - 0.7) / 0.6 * 20)];
    if (i >= 200) continue;
    Rng again(1, Purpose::augment, 0, i);
    Bytes image(768);
    for (std::size_t k = 0; k < 768; ++k) image[k] = static_cast<std::uint8_t>(k / 3);
    change(again, image, 16, 16, scratch);
    for (std::size_t k = 0; k < 768; ++k) {
      const double m = mean[k % 3], s = stddev[k % 3], x = (static_cast<double>(k / 3) - m) / s;
      const double want = std::clamp((x + d.brightness) * d.contrast * s + m, 0.0, 255.0);
      REQUIRE(std::abs(want - image[k]) <= 0.5 + 1e-9);
    }
  }
  CHECK(chi_square(brightness, std::vector<double>(20, 0.05)).passes());
  CHECK(chi_square(contrast, std::vector<double>(20, 0.05)).passes());
}

TEST_CASE("the changes are applied in the order policy, colour, brightness and contrast, erasing") {
  const Picture photo = augment_golden("image/photo");
  const std::vector<float> mean{120, 118, 105}, stddev{58, 57, 57};
  const PixelChanges c = everything();
  const PixelChanger change(c, mean, stddev, 3);
  PixelChanger::Scratch scratch;
  for (std::uint64_t i = 0; i < 50; ++i) {
    Rng rng(3, Purpose::augment, 1, i), copy(3, Purpose::augment, 1, i);
    Bytes got = photo.pixels, want = photo.pixels;
    change(rng, got, photo.width, photo.height, scratch);
    std::vector<std::uint8_t> memory;
    const PolicyDraw draw = draw_policy(c.policy, photo.width, photo.height, copy);
    for (const ImageOpCall& call : draw.all())
      apply_op(call, want, photo.width, photo.height, c.policy.fill.data(), memory, cpu::Isa::baseline);
    jitter_colour(c.colour, copy, want, cpu::Isa::baseline);
    PixelChanges last;
    last.normalised = c.normalised;
    last.erasing = c.erasing;
    PixelChanger(last, mean, stddev, 3)(copy, want, photo.width, photo.height, scratch);
    REQUIRE(got == want);
  }
}

TEST_CASE("grey images can be erased and shifted, but have no policies or colours") {
  PixelChanges c;
  c.erasing = RandomErasing::timm(1, EraseFill::colour);
  c.normalised = {0.1, 0.1};
  const PixelChanger change(c, {50}, {20}, 1);
  Bytes image(400, 9);
  PixelChanger::Scratch scratch;
  Rng rng(1, Purpose::augment);
  change(rng, image, 20, 20, scratch);
  CHECK(std::count(image.begin(), image.end(), image[0]) < 400);
  c.policy = AugmentPolicy::trivial_wide();
  CHECK_THROWS_WITH_AS(PixelChanger(c, {50}, {20}, 1),
                       "[augmentation] expected images with 3 channels for a policy or colour jitter, got 1.",
                       UsageError);
  PixelChanges wrong;
  wrong.normalised.contrast = 1.5;
  CHECK_THROWS_AS(PixelChanger(wrong, {}, {}, 3), UsageError);
  wrong.normalised = {-1, 0};
  CHECK_THROWS_AS(PixelChanger(wrong, {}, {}, 3), UsageError);
  wrong.normalised = {};
  wrong.policy.operations = 0;
  CHECK_THROWS_AS(PixelChanger(wrong, {}, {}, 3), UsageError);
}

TEST_CASE("the preparation of test images has no random part and keeps the interpolation") {
  ImageAugment a = ImageAugment::torchvision(Split::train);
  const PixelChanges c = everything();
  a.policy = c.policy;
  a.erasing = c.erasing;
  a.normalised = c.normalised;
  a.interpolation = Interpolation::random;
  const ImagePreparation p = preparation_of(a);
  CHECK(p.scale.policy == AugmentPolicy{});
  CHECK(p.scale.erasing == RandomErasing{});
  CHECK_FALSE(p.scale.normalised.any());
  CHECK(p.scale.interpolation == Interpolation::bicubic);
  ImageInput input;
  input.size = 224;
  input.policy = c.policy;
  input.erasing = c.erasing;
  input.eval_short_side = 236;
  CHECK(input.augment(Split::train).policy == c.policy);
  CHECK(input.augment(Split::test).policy == AugmentPolicy{});
  CHECK(input.augment(Split::test).short_side == 236);
  input.eval_short_side = 100;
  CHECK_THROWS_AS((void)input.augment(Split::test), UsageError);
  a.interpolation = Interpolation::nearest;
  CHECK_THROWS_AS(ImageAugmenter{a}, UsageError);
}

TEST_CASE("half of the images are scaled with each interpolation if it is random") {
  ImageAugment a = ImageAugment::torchvision(Split::train);
  a.interpolation = Interpolation::random;
  const ImageAugmenter augmenter(a);
  int bicubic = 0;
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    Rng rng(1, Purpose::augment, 0, i);
    bicubic += augmenter.draw(500, 400, rng).bicubic ? 1 : 0;
  }
  CHECK(std::abs(bicubic - 5'000) < 150);
}
