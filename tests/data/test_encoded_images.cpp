// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tutti/data/images/encoded_images.hpp>
#if defined(TUTTI_HAS_TURBOJPEG)
#include <tutti/backends/turbojpeg/turbojpeg.hpp>
#endif
#if defined(TUTTI_HAS_STB)
#include <tutti/backends/stb/stb.hpp>
#endif

#include "data/image_fixtures.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

// A decoder that needs no library. For any JPEG, pixel (x, y) has the value {x, y, first byte after the frame header}.
struct MadeUpDecoder final : ImageDecoder {
  [[nodiscard]] std::string_view name() const noexcept override { return "made up"; }
  [[nodiscard]] bool reads(ImageFormat f) const noexcept override { return f == ImageFormat::jpeg; }
  void decode(std::span<const std::uint8_t>, const ImageHeader&, const DecodeRequest& q, std::string_view,
              DecodedImage& out) const override {
    out.set_size(q.region.width, q.region.height);
    out.x = q.region.x;
    out.y = q.region.y;
    out.reduction = 1;
    for (int y = 0; y < out.height; ++y)
      for (int x = 0; x < out.width; ++x) {
        out.row(y)[3 * x] = static_cast<std::uint8_t>(out.x + x);
        out.row(y)[3 * x + 1] = static_cast<std::uint8_t>(out.y + y);
        out.row(y)[3 * x + 2] = 200;
      }
  }
};

struct InMemory {
  std::vector<Bytes> images;
  std::vector<std::int32_t> labels;
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(images.size()); }
  std::int32_t read(std::int64_t i, Bytes& bytes) const {
    bytes = images[static_cast<std::size_t>(i)];
    return labels[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] std::string where(std::int64_t i) const { return "memory, record " + std::to_string(i); }
  [[nodiscard]] int classes() const { return 10; }
  [[nodiscard]] std::int64_t block() const { return 1; }
};

ImageDecoders made_up() { return ImageDecoders({std::make_shared<MadeUpDecoder>()}); }

ImageDecoders real_decoders() {
  std::vector<std::shared_ptr<const ImageDecoder>> d;
#if defined(TUTTI_HAS_TURBOJPEG)
  d.push_back(std::make_shared<TurbojpegDecoder>());
#endif
#if defined(TUTTI_HAS_STB)
  d.push_back(std::make_shared<StbDecoder>());
#endif
  if (d.empty()) {
    std::puts("SKIP: neither libjpeg-turbo nor stb (Debian: apt-get install libjpeg-dev libstb-dev)");
    d.push_back(std::make_shared<MadeUpDecoder>());
  }
  return ImageDecoders(d);
}

template <class D>
Bytes read(const D& set, std::int64_t i, std::uint64_t epoch = 0, std::int32_t* label = nullptr) {
  Rng rng(7, Purpose::augment, epoch, static_cast<std::uint64_t>(i));
  Bytes out(static_cast<std::size_t>(set.schema().image_bytes()));
  std::int32_t unused = -1;
  set.read(i, rng, Sample{out, label != nullptr ? *label : unused});
  return out;
}

}  // namespace

static_assert(Dataset<EncodedImages>);

TEST_CASE("a centre crop of a synthetic image has the pixels at the centre") {
  ImageAugment a;
  a.height = a.width = 20;
  a.short_side = 40;
  const EncodedImages set("test", InMemory{{jpeg_of_size(100, 80)}, {3}}, made_up(), a);
  CHECK(set.schema().classes == 10);
  CHECK(set.schema().image_bytes() == 1200);
  std::int32_t label = -1;
  const Bytes image = read(set, 0, 0, &label);
  CHECK(label == 3);
  // The 100x80 image is scaled to 50x40 and cut to the middle 20x20: source columns 30 to 70 and rows 20 to 60, two per
  // pixel of the result.
  for (std::size_t y = 0; y < 20; ++y)
    for (std::size_t x = 0; x < 20; ++x) {
      REQUIRE(std::abs(image[(y * 20 + x) * 3] - static_cast<int>(30.5 + 2 * static_cast<double>(x))) <= 1);
      REQUIRE(std::abs(image[(y * 20 + x) * 3 + 1] - static_cast<int>(20.5 + 2 * static_cast<double>(y))) <= 1);
      REQUIRE(image[(y * 20 + x) * 3 + 2] == 200);
    }
}

TEST_CASE("the schema has the names of the records' classes, and the normalisation for evaluation") {
  ImageAugment a = ImageAugment::horovod(Split::train);
  a.height = a.width = 20;
  const InMemory records{{jpeg_of_size(100, 80)}, {3}};
  const EncodedImages unnamed("test", records, made_up(), a);
  CHECK(unnamed.schema().class_names.empty());
  REQUIRE(unnamed.schema().preparation != nullptr);
  CHECK(unnamed.schema().preparation->scale.crop == CropRule::central);
  CHECK_FALSE(unnamed.schema().preparation->scale.mirror);
  CHECK(unnamed.schema().preparation->height == 20);
  std::vector<std::string> names(10, "star & moon");
  CHECK(EncodedImages("test", AnyRecords(records, names), made_up(), a).schema().class_names == names);
  names.pop_back();  // now one class has no name
  CHECK(EncodedImages("test", AnyRecords(records, names), made_up(), a).schema().class_names.empty());
}

TEST_CASE("a random crop is a part of the image, mirrored or not, and changes from epoch to epoch") {
  for (const bool horovod : {false, true}) {
    ImageAugment a = horovod ? ImageAugment::horovod(Split::train) : ImageAugment::torchvision(Split::train);
    a.height = a.width = 32;
    const EncodedImages set("test", InMemory{{jpeg_of_size(200, 150)}, {3}}, made_up(), a);
    int mirrored = 0, changed = 0;
    Bytes last;
    for (std::uint64_t epoch = 0; epoch < 40; ++epoch) {
      const Bytes image = read(set, 0, epoch);
      const int left = image[0], right = image[31 * 3], top = image[1], bottom = image[31 * 32 * 3 + 1];
      REQUIRE(bottom > top);
      REQUIRE(bottom < 150);
      REQUIRE(std::max(left, right) < 200);
      mirrored += left > right ? 1 : 0;
      changed += image != last ? 1 : 0;
      last = image;
    }
    CHECK(mirrored == 20);
    CHECK(changed >= 39);
  }
}

TEST_CASE("samples depend only on seed, epoch and index, not on the reading threads or their earlier reads") {
  InMemory records;
  for (int i = 0; i < 40; ++i) {
    records.images.push_back(i % 5 == 0   ? image_fixture("large.jpg")
                             : i % 2 == 0 ? image_fixture("420.jpg")
                                          : image_fixture("grey.jpg"));
    records.labels.push_back(i % 10);
  }
  const EncodedImages set("test", records, real_decoders(), ImageAugment::horovod(Split::train, true));
  std::vector<Bytes> alone;
  for (std::int64_t i = 0; i < set.size(); ++i) alone.push_back(read(set, i, 3));
  std::vector<int> wrong(3);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&, t] {
      for (std::int64_t i = set.size() - 1; i >= 0; --i) {
        const std::int64_t at = (i * 7 + static_cast<std::int64_t>(t)) % set.size();
        wrong[t] += read(set, at, 3) != alone[static_cast<std::size_t>(at)] ? 1 : 0;
      }
    });
  for (auto& t : threads) t.join();
  for (const int w : wrong) CHECK(w == 0);
}

TEST_CASE("every preset accepts every kind of image") {
  InMemory records;
  for (const char* name :
       {"420.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg", "1x1.jpg", "1x37.jpg", "41x1.jpg", "large.jpg"}) {
    records.images.push_back(image_fixture(name));
    records.labels.push_back(0);
  }
#if defined(TUTTI_HAS_STB)
  records.images.push_back(image_fixture("image.png"));
  records.labels.push_back(0);
#endif
  for (ImageAugment a : {ImageAugment::horovod(Split::train, true), ImageAugment::horovod(Split::test),
                         ImageAugment::torchvision(Split::train), ImageAugment::torchvision(Split::test)}) {
    const EncodedImages set("test", records, real_decoders(), a);
    for (std::int64_t i = 0; i < set.size(); ++i)
      for (std::uint64_t epoch = 0; epoch < 5; ++epoch) CHECK_NOTHROW((void)read(set, i, epoch));
  }
}

TEST_CASE("a real picture has nearly the same pixels after decoding and the evaluation crop") {
#if defined(TUTTI_HAS_TURBOJPEG) || defined(TUTTI_HAS_STB)
  ImageAugment a;
  a.height = a.width = 28;
  a.short_side = 32;
  const EncodedImages set("test", InMemory{{image_fixture("444.jpg")}, {0}}, real_decoders(), a);
  // The golden picture is the image before it was encoded as a JPEG of quality 95.
  const Bytes image = read(set, 0);
  const Picture want = golden("centre/image.png/32/28");
  double off = 0;
  for (std::size_t i = 0; i < image.size(); ++i) off += std::abs(image[i] - want.pixels[i]);
  CHECK(off / static_cast<double>(image.size()) < 3);
#else
  std::puts("SKIP: no decoder");
#endif
}

TEST_CASE("a picture with an EXIF orientation is decoded upright") {
#if defined(TUTTI_HAS_TURBOJPEG) || defined(TUTTI_HAS_STB)
  ImageAugment a;
  a.height = a.width = 28;
  a.crop = CropRule::central;  // takes the same part of the image in every orientation
  InMemory records;
  for (int orientation = 1; orientation <= 8; ++orientation) {
    records.images.push_back(with_segment(image_fixture("large.jpg"), exif_segment(orientation, orientation % 2 != 0)));
    records.labels.push_back(0);
  }
  const EncodedImages set("test", records, real_decoders(), a);
  const Picture upright{28, 28, read(set, 0)};
  for (int orientation = 2; orientation <= 8; ++orientation) {
    CAPTURE(orientation);
    CHECK(difference(read(set, orientation - 1), turned(upright, orientation).pixels).most <= 2);
    CHECK(difference(read(set, orientation - 1), upright.pixels).share > 0.5);
  }
#else
  std::puts("SKIP: no decoder");
#endif
}

TEST_CASE("errors name damaged images and invalid labels, and other images are still read") {
  Bytes cut = image_fixture("420.jpg");
  cut.resize(cut.size() / 2);
  const InMemory records{{image_fixture("420.jpg"), cut, {}, jpeg_of_size(65500, 65500), image_fixture("420.jpg")},
                         {0, 0, 0, 0, 10}};
  const EncodedImages set("test", records, real_decoders(), ImageAugment::horovod(Split::train));
  const auto refusal = [&](std::int64_t i) { return message_of<DataError>([&] { (void)read(set, i); }); };
  CHECK(refusal(0).empty());
  CHECK(contains(refusal(1), "[memory, record 1]"));
  CHECK(contains(refusal(2), "[memory, record 2] expected a JPEG or a PNG, got 0 bytes"));
  CHECK(contains(refusal(3), "[memory, record 3]"));
  CHECK(contains(refusal(3), "65500x65500"));
  CHECK(contains(refusal(4), "[memory, record 4] expected a label in [0, 10), got 10"));
  CHECK(refusal(0).empty());
  CHECK_THROWS_AS((void)read(set, 5), UsageError);
  CHECK_THROWS_AS((void)read(set, -1), UsageError);
}
