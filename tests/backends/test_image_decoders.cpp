// SPDX-License-Identifier: MIT
// Tests that the decoders of JPEG and PNG give the right pixels. test_damaged_images.cpp tests which files they refuse.
// optimised
#include <doctest/doctest.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tutti/core/rng.hpp>

#include "backends/image_decoders.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

Picture crop(const Picture& p, ImageRegion r) {
  Picture out{r.width, r.height, {}};
  for (int y = 0; y < r.height; ++y) {
    const auto from = p.pixels.begin() + ((r.y + y) * p.width + r.x) * 3;
    out.pixels.insert(out.pixels.end(), from, from + r.width * 3);
  }
  return out;
}

}  // namespace

TEST_CASE("decoders give the same pixels as PIL: colour, grey, CMYK, progressive, one pixel wide, PNG") {
  for (const ImageDecoders& d : all_decoders()) {
    CAPTURE(d.names());
    const bool exact = d.names() == "turbojpeg";
    for (const std::string& name : jpegs) {
      CAPTURE(name);
      const Picture want = golden("image/" + name), got = decode(d, image_fixture(name));
      REQUIRE(got.width == want.width);
      REQUIRE(got.height == want.height);
      const Difference off = difference(got.pixels, want.pixels);
      // turbojpeg equals PIL, which also uses libjpeg-turbo. stb_image's transform and interpolation round differently.
      CHECK(off.most <= (exact ? 0 : 12));
      // DecodeQuality::fast uses a faster transform and repeats chroma values, so images with subsampled chroma differ
      // more.
      if (exact && name != "420.jpg" && name != "422.jpg" && name != "progressive.jpg")
        CHECK(difference(decode(d, image_fixture(name), DecodeQuality::fast).pixels, want.pixels).most <= 10);
    }
    const Difference cmyk = difference(decode(d, image_fixture("cmyk.jpg")).pixels, golden("image/cmyk.jpg").pixels);
    CHECK(cmyk.most <= (exact ? 1 : 8));
    if (exact) continue;
    for (const char* name : {"image.png", "palette.png", "grey_alpha.png"}) {
      CAPTURE(name);
      CHECK(decode(d, image_fixture(name)).pixels == golden(std::string("image/") + name).pixels);
    }
  }
}

TEST_CASE("decoding a region gives exactly the pixels of the cropped whole image") {
  Rng rng(3, Purpose::user);
  int cases = 0;
  for (const ImageDecoders& d : all_decoders())
    for (const char* name : {"420.jpg", "422.jpg", "444.jpg", "progressive.jpg", "grey.jpg", "cmyk.jpg", "large.jpg"})
      for (const DecodeQuality quality : {DecodeQuality::fast, DecodeQuality::accurate}) {
        const Bytes bytes = image_fixture(name);
        const Picture whole = decode(d, bytes, quality);
        for (int k = 0; k < 60; ++k) {
          ImageRegion r;
          const auto below = [&](int n) { return static_cast<int>(rng.below(static_cast<std::uint32_t>(n))); };
          r.x = k % 5 == 0 ? 0 : below(whole.width);
          r.y = k % 7 == 0 ? 0 : below(whole.height);
          r.width = k % 3 == 0 ? whole.width - r.x : 1 + below(whole.width - r.x);
          r.height = k % 4 == 0 ? whole.height - r.y : 1 + below(whole.height - r.y);
          CAPTURE(d.names());
          CAPTURE(name);
          CAPTURE(static_cast<int>(quality));
          CAPTURE(r.x);
          CAPTURE(r.y);
          CAPTURE(r.width);
          CAPTURE(r.height);
          REQUIRE(decode(d, bytes, r, quality).pixels == crop(whole, r).pixels);
          ++cases;
        }
      }
  if (!all_decoders().empty()) CHECK(cases >= 840);
}

TEST_CASE("a JPEG is turned by its EXIF orientation, whole and in regions") {
  Rng rng(5, Purpose::user);
  const auto below = [&](int n) { return static_cast<int>(rng.below(static_cast<std::uint32_t>(n))); };
  for (const ImageDecoders& d : all_decoders())
    for (const char* name : {"420.jpg", "grey.jpg", "cmyk.jpg", "progressive.jpg", "1x37.jpg", "41x1.jpg"})
      for (const DecodeQuality quality : {DecodeQuality::fast, DecodeQuality::accurate}) {
        const Picture stored = decode(d, image_fixture(name), quality);
        for (int orientation = 1; orientation <= 8; ++orientation) {
          CAPTURE(d.names());
          CAPTURE(name);
          CAPTURE(orientation);
          const Bytes bytes = with_segment(image_fixture(name), exif_segment(orientation, orientation % 2 == 0));
          const Picture want = turned(stored, orientation), got = decode(d, bytes, quality);
          REQUIRE(got.width == want.width);
          REQUIRE(got.height == want.height);
          REQUIRE(got.pixels == want.pixels);
          for (int k = 0; k < 8; ++k) {
            ImageRegion r;
            r.x = below(want.width);
            r.y = below(want.height);
            r.width = 1 + below(want.width - r.x);
            r.height = 1 + below(want.height - r.y);
            REQUIRE(decode(d, bytes, r, quality).pixels == crop(want, r).pixels);
          }
        }
      }
}

TEST_CASE("regions that are empty or extend beyond the image are refused") {
  for (const ImageDecoders& d : all_decoders())
    for (const ImageRegion r : {ImageRegion{0, 0, 0, 1},
                                {0, 0, 1, 0},
                                {-1, 0, 2, 2},
                                {0, -1, 2, 2},
                                {50, 0, 4, 4},
                                {0, 30, 4, 9},
                                {0, 0, 54, 38}})
      CHECK_THROWS_AS((void)decode(d, image_fixture("420.jpg"), r, DecodeQuality::fast), UsageError);
}

#if defined(TUTTI_HAS_TURBOJPEG)
TEST_CASE(
    "a region much larger than the requested size is decoded at a half, a quarter or an eighth, and shows the same "
    "area") {
  const ImageDecoders d({std::make_shared<TurbojpegDecoder>()});
  const Bytes bytes = image_fixture("large.jpg");
  const ImageHeader h = d.header(bytes, "large");
  const Picture whole = decode(d, bytes);
  DecodedImage image;
  for (const auto& size : {std::pair{160, 1}, {80, 1}, {75, 2}, {37, 4}, {18, 8}, {1, 8}}) {
    const int wanted = size.first, reduction = size.second;
    CAPTURE(wanted);
    d.decode(bytes, h, {{0, 0, h.width, h.height}, wanted, wanted, DecodeQuality::fast}, "large", image);
    REQUIRE(image.reduction == reduction);
    // Each pixel is about the mean of the pixels that it covers.
    double off = 0;
    const int rows = h.height / reduction, columns = h.width / reduction;
    for (int y = 0; y < rows; ++y)
      for (int x = 0; x < columns; ++x)
        for (int c = 0; c < 3; ++c) {
          double sum = 0;
          for (int j = 0; j < reduction; ++j)
            for (int i = 0; i < reduction; ++i)
              sum += whole.pixels[static_cast<std::size_t>(((y * reduction + j) * whole.width + x * reduction + i) * 3 +
                                                           c)];
          off += std::abs(sum / (reduction * reduction) - image.row(y)[x * 3 + c]);
        }
    CHECK(off / (rows * columns * 3) < 5);
    // DecodeQuality::accurate never reduces an image.
    d.decode(bytes, h, {{0, 0, h.width, h.height}, wanted, wanted, DecodeQuality::accurate}, "large", image);
    CHECK(image.reduction == 1);
  }
  // A region of a reduced image has the same pixels as that region of the whole reduced image.
  DecodedImage all;
  d.decode(bytes, h, {{0, 0, h.width, h.height}, 37, 37, DecodeQuality::fast}, "large", all);
  d.decode(bytes, h, {{30, 25, 160, 120}, 37, 30, DecodeQuality::fast}, "large", image);
  REQUIRE(all.reduction == 4);
  REQUIRE(image.reduction == 4);
  CHECK(image.x <= 30);
  CHECK(image.y <= 25);
  CHECK(image.x + image.width * 4 >= 190);
  CHECK(image.y + image.height * 4 >= 145);
  for (int y = 0; y < image.height; ++y)
    for (int x = 0; x < image.width * 3; ++x) REQUIRE(image.row(y)[x] == all.row(image.y / 4 + y)[image.x / 4 * 3 + x]);
}

TEST_CASE("a turned JPEG decoded at a fraction of its size shows the same pixels at the same positions") {
  const ImageDecoders d({std::make_shared<TurbojpegDecoder>()});
  const Bytes upright = image_fixture("large.jpg");
  const ImageHeader h = d.header(upright, "large");
  DecodedImage all, image;
  for (const int wanted : {75, 37, 18}) {
    d.decode(upright, h, {{0, 0, h.width, h.height}, wanted, wanted, DecodeQuality::fast}, "large", all);
    const Picture stored{
        all.width, all.height, {all.pixels.begin(), all.pixels.begin() + std::ptrdiff_t{3} * all.width * all.height}};
    for (int orientation = 2; orientation <= 8; ++orientation) {
      CAPTURE(wanted);
      CAPTURE(orientation);
      const Bytes bytes = with_segment(upright, exif_segment(orientation, true));
      const ImageHeader turned_header = d.header(bytes, "turned");
      const Picture want = turned(stored, orientation);
      // Where the turned picture begins, in reduced pixels: a reduced pixel at the right or bottom edge of the stored
      // image may reach over the edge.
      const bool side = orientation >= 5;
      const bool from_right = ImageTurn(orientation).from_right, from_bottom = ImageTurn(orientation).from_bottom;
      const int over_u = from_right ? h.width - all.width * all.reduction : 0;
      const int over_v = from_bottom ? h.height - all.height * all.reduction : 0;
      const int left = side ? over_v : over_u, top = side ? over_u : over_v;
      // Decodes the whole picture and a part.
      for (const bool part : {false, true}) {
        const int w = turned_header.width, height = turned_header.height;
        const ImageRegion r =
            part ? ImageRegion{w / 8, height / 9, w * 3 / 4, height * 3 / 4} : ImageRegion{0, 0, w, height};
        const int of_part = part ? wanted * 3 / 4 : wanted;
        d.decode(bytes, turned_header, {r, of_part, of_part, DecodeQuality::fast}, "turned", image);
        REQUIRE(image.reduction == all.reduction);
        REQUIRE(image.x <= r.x);
        REQUIRE(image.y <= r.y);
        REQUIRE(image.x + image.width * image.reduction >= r.x + r.width);
        REQUIRE(image.y + image.height * image.reduction >= r.y + r.height);
        REQUIRE((image.x - left) % image.reduction == 0);
        REQUIRE((image.y - top) % image.reduction == 0);
        const int x0 = (image.x - left) / image.reduction, y0 = (image.y - top) / image.reduction;
        for (int y = 0; y < image.height; ++y)
          for (int x = 0; x < image.width * 3; ++x)
            REQUIRE(image.row(y)[x] == want.pixels[static_cast<std::size_t>(((y0 + y) * want.width + x0) * 3 + x)]);
      }
    }
  }
}

TEST_CASE("in a build without stb a PNG is refused, and the error names the package that is missing") {
  const ImageDecoders d({std::make_shared<TurbojpegDecoder>()});
  const std::string m = message_of<DataError>([&] { (void)d.header(image_fixture("image.png"), "n01/x.JPEG"); });
  CHECK(contains(m, "[n01/x.JPEG]"));
  CHECK(contains(m, "got PNG"));
  CHECK(contains(m, "libstb-dev"));
}
#endif

TEST_CASE("several threads that decode at once give the same pixels") {
  for (const ImageDecoders& d : all_decoders()) {
    const Bytes bytes = image_fixture("large.jpg");
    const Picture want = decode(d, bytes);
    std::vector<int> good(4);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < good.size(); ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < 20; ++i) good[t] += decode(d, bytes).pixels == want.pixels ? 1 : 0;
      });
    for (auto& t : threads) t.join();
    for (const int g : good) CHECK(g == 20);
  }
}

TEST_CASE("the first decoder that reads a format is used; an empty list of decoders is refused") {
  CHECK_THROWS_AS(ImageDecoders({}), UsageError);
  CHECK_THROWS_AS(ImageDecoders({nullptr}), UsageError);
#if defined(TUTTI_HAS_TURBOJPEG) && defined(TUTTI_HAS_STB)
  const ImageDecoders both({std::make_shared<TurbojpegDecoder>(), std::make_shared<StbDecoder>()});
  CHECK(both.names() == "turbojpeg, stb");
  CHECK(decode(both, image_fixture("420.jpg")).pixels == golden("image/420.jpg").pixels);
  CHECK(decode(both, image_fixture("image.png")).pixels == golden("image/image.png").pixels);
#endif
}

TEST_CASE("both decoders agree on real images, and decoded regions equal crops") {
  const auto images = imagenet_sample();
  if (images.empty()) {
    std::puts("SKIP: no imagenet-sample.tar in $TUTTI_DATA or ../shared/data");
    return;
  }
  std::vector<Picture> first;
  for (const ImageDecoders& d : all_decoders()) {
    Rng rng(1, Purpose::user);
    for (std::size_t i = 0; i < images.size(); i += 3) {
      CAPTURE(i);
      const Picture whole = decode(d, images[i]);
      if (i / 3 == first.size()) first.push_back(whole);
      const Difference off = difference(whole.pixels, first[i / 3].pixels);
      CHECK(off.most <= 12);
      const auto below = [&](int n) { return static_cast<int>(rng.below(static_cast<std::uint32_t>(n))); };
      ImageRegion r{below(whole.width), below(whole.height), 1, 1};
      r.width += below(whole.width - r.x);
      r.height += below(whole.height - r.y);
      CHECK(decode(d, images[i], r, DecodeQuality::accurate).pixels == crop(whole, r).pixels);
      for (std::size_t n = 97; n < images[i].size(); n += 97 * 41)
        CHECK_THROWS_AS((void)decode(d, Bytes(images[i].begin(), images[i].begin() + static_cast<std::ptrdiff_t>(n)),
                                     {0, 0, 1, 1}, DecodeQuality::fast),
                        DataError);
    }
  }
}
