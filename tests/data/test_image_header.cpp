// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <tutti/data/images/image_header.hpp>

#include "data/image_fixtures.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

std::string refusal(const Bytes& bytes, const ImageLimits& limits = {}) {
  return message_of<DataError>([&] { (void)read_image_header(bytes, "a.tfrecord, record 7", limits); });
}

}  // namespace

TEST_CASE("headers of every kind of image give format, extents and components") {
  struct Row {
    const char* name;
    ImageFormat format;
    int width, height, components;
  };
  for (const Row& r :
       {Row{"420.jpg", ImageFormat::jpeg, 53, 38, 3}, Row{"progressive.jpg", ImageFormat::jpeg, 53, 38, 3},
        Row{"grey.jpg", ImageFormat::jpeg, 53, 38, 1}, Row{"cmyk.jpg", ImageFormat::jpeg, 53, 38, 4},
        Row{"1x37.jpg", ImageFormat::jpeg, 1, 37, 3}, Row{"41x1.jpg", ImageFormat::jpeg, 41, 1, 3},
        Row{"image.png", ImageFormat::png, 53, 38, 3}, Row{"palette.png", ImageFormat::png, 53, 38, 3},
        Row{"grey_alpha.png", ImageFormat::png, 53, 38, 2}}) {
    CAPTURE(r.name);
    const ImageHeader h = read_image_header(image_fixture(r.name), r.name);
    CHECK(h.format == r.format);
    CHECK(h.width == r.width);
    CHECK(h.height == r.height);
    CHECK(h.components == r.components);
  }
  const ImageHeader cmyk = read_image_header(image_fixture("cmyk.jpg"), "cmyk");
  CHECK(cmyk.adobe);
}

TEST_CASE("the EXIF orientation of a JPEG is read in both byte orders, and its extents are those of the picture") {
  for (const bool little : {true, false})
    for (int orientation = 1; orientation <= 8; ++orientation) {
      CAPTURE(little);
      CAPTURE(orientation);
      const Bytes bytes = with_segment(image_fixture("420.jpg"), exif_segment(orientation, little));
      const ImageHeader h = read_image_header(bytes, "turned");
      CHECK(h.orientation == orientation);
      CHECK(h.width == (orientation >= 5 ? 38 : 53));
      CHECK(h.height == (orientation >= 5 ? 53 : 38));
      CHECK(h.as_stored().width == 53);
      CHECK(h.as_stored().height == 38);
      CHECK(h.as_stored().orientation == 1);
    }
  CHECK(read_image_header(image_fixture("420.jpg"), "plain").orientation == 1);
  // An APP1 segment of another kind, for example XMP, may precede the EXIF segment. If there are two EXIF segments, the
  // first one decides.
  const Bytes xmp{0xff, 0xe1, 0, 7, 'h', 't', 't', 'p', ':'};
  Bytes several = with_segment(image_fixture("420.jpg"), exif_segment(3, true));
  several = with_segment(with_segment(several, exif_segment(6, false)), xmp);
  CHECK(read_image_header(several, "several").orientation == 6);
}

TEST_CASE("if the EXIF data is damaged, truncated or hostile, the picture is not turned") {
  const auto orientation = [](const Bytes& segment) {
    return read_image_header(with_segment(image_fixture("420.jpg"), segment), "odd").orientation;
  };
  for (const bool little : {true, false}) {
    for (const int value : {0, 9, 255, 65535}) CHECK(orientation(exif_segment(value, little)) == 1);
    const Bytes whole = exif_segment(6, little);
    // The segment is cut after any byte, with the length field set to the shorter length.
    for (std::size_t n = 4; n < whole.size(); ++n) {
      Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
      cut[3] = static_cast<std::uint8_t>(n - 2);
      const int found = orientation(cut);
      CHECK((found == 1 || found == 6));
    }
    // Each byte is set to each of several values. The memory ends at the end of the segment, so a sanitizer detects a
    // read beyond it.
    for (std::size_t at = 4; at < whole.size(); ++at)
      for (const int value : {0, 1, 2, 4, 127, 128, 254, 255}) {
        Bytes body(whole.begin() + 4, whole.end());
        body[at - 4] = static_cast<std::uint8_t>(value);
        body.shrink_to_fit();
        const int found = exif_orientation(body);
        REQUIRE(found >= 0);
        REQUIRE(found <= 8);
      }
  }
}

TEST_CASE("a decompression bomb is refused by its header, and the error names the record and the size") {
  const std::string m = refusal(jpeg_of_size(65500, 65500));
  CHECK(contains(m, "[a.tfrecord, record 7]"));
  CHECK(contains(m, "65500x65500"));
  CHECK(contains(m, "100000000 pixels"));
  CHECK(contains(refusal(jpeg_of_size(300, 1), {.width = 299}), "300x1"));
  CHECK(contains(refusal(jpeg_of_size(1, 300), {.height = 299}), "1x300"));
  CHECK(contains(refusal(jpeg_of_size(20, 10), {.pixels = 199}), "20x10"));
  CHECK(contains(refusal(jpeg_of_size(20, 10), {.pixels = 199}), "hint: scale the image down or remove it"));
  CHECK(refusal(jpeg_of_size(20, 10), {.pixels = 200}).empty());
  CHECK(contains(refusal(jpeg_of_size(20, 0)), "20x0"));
  CHECK(contains(refusal(jpeg_of_size(0, 20)), "0x20"));
  CHECK(contains(refusal(jpeg_of_size(20, 10, 2)), "1, 3 or 4 components"));
}

TEST_CASE("data that is not an image is refused") {
  CHECK(contains(refusal({}), "a JPEG or a PNG, got 0 bytes"));
  CHECK(contains(refusal({0xff, 0xd8}), "a JPEG or a PNG"));
  CHECK(contains(refusal({'G', 'I', 'F', '8', '9', 'a', 0, 0, 0}), "another format"));
  CHECK(contains(refusal({0xff, 0xd8, 0xff, 0xd9}), "an end marker without an image"));
  CHECK(contains(refusal({0xff, 0xd8, 0xff, 0xc0, 0, 1}), "segment of 2 bytes"));
}

TEST_CASE("JPEG frames and PNG chunks that no decoder supports are refused") {
  const auto changed = [](std::initializer_list<std::pair<std::size_t, int>> changes) {
    Bytes b = jpeg_of_size(20, 10);
    for (const auto& [at, value] : changes) b[at] = static_cast<std::uint8_t>(value);
    return b;
  };
  for (const int frame : {3, 5, 6, 7, 11, 13, 14, 15}) {  // lossless and hierarchical frame types
    CAPTURE(frame);
    CHECK(contains(refusal(changed({{3, 0xc0 + frame}})), "progressive JPEG, got frame type " + std::to_string(frame)));
  }
  for (const int frame : {0, 1, 2, 9, 10}) CHECK(refusal(changed({{3, 0xc0 + frame}})).empty());
  CHECK(contains(refusal(changed({{6, 12}})), "8 bits per sample, got 12"));
  CHECK(contains(refusal(changed({{5, 7}})), "a frame header, got 5 bytes"));
  CHECK(contains(refusal({0xff, 0xd8, 0xff, 0xda, 0, 2, 0xff, 0xd9}), "a JPEG frame before its scan"));
  CHECK(contains(refusal({0xff, 0xd8, 0xff, 0xd8, 0, 2, 0xff, 0xd9}), "a second start marker"));
  Bytes twice = jpeg_of_size(20, 10);
  const Bytes frame(twice.begin() + 2, twice.begin() + 4 + twice[5]);
  twice.insert(twice.begin() + 2, frame.begin(), frame.end());
  CHECK(contains(refusal(twice), "one JPEG frame"));

  const auto png = [](const Bytes& chunk) {
    Bytes b{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n', 0, 0, 0, static_cast<std::uint8_t>(chunk.size() - 4)};
    b.insert(b.end(), chunk.begin(), chunk.end());
    const std::uint32_t crc = detail::crc32(chunk);
    for (const int s : {24, 16, 8, 0}) b.push_back(static_cast<std::uint8_t>(crc >> s));
    return b;
  };
  for (const int colour : {1, 5, 7, 255})
    CHECK(contains(
        refusal(png({'I', 'H', 'D', 'R', 0, 0, 0, 1, 0, 0, 0, 1, 8, static_cast<std::uint8_t>(colour), 0, 0, 0})),
        "a PNG colour type, got " + std::to_string(colour)));
  CHECK(contains(refusal(png({'I', 'D', 'A', 'T'})), "begins with IHDR"));
}

TEST_CASE("an image file truncated at any byte is refused") {
  for (const char* name : {"420.jpg", "progressive.jpg", "grey.jpg", "image.png"}) {
    const Bytes whole = image_fixture(name);
    for (std::size_t n = 0; n < whole.size(); ++n) {
      CAPTURE(name);
      CAPTURE(n);
      CHECK_FALSE(refusal(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n))).empty());
    }
    Bytes longer = whole;
    longer.resize(whole.size() + 100);
    CHECK(refusal(longer).empty());
  }
}

TEST_CASE("a flipped bit in a PNG is refused") {
  const Bytes whole = image_fixture("image.png");
  for (std::size_t i = 0; i < whole.size(); i += 3) {
    Bytes bad = whole;
    bad[i] = static_cast<std::uint8_t>(bad[i] ^ (1U << (i % 8)));
    CAPTURE(i);
    CHECK_FALSE(refusal(bad).empty());
  }
}

TEST_CASE("a PNG with more data than pixels is refused") {
  // An IHDR chunk for a 1x1 image, an IDAT chunk of 200 kB, and an IEND chunk.
  Bytes b{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  const auto chunk = [&](const std::string& type, const Bytes& data) {
    const auto word = [&](std::uint32_t v) {
      for (const int s : {24, 16, 8, 0}) b.push_back(static_cast<std::uint8_t>(v >> s));
    };
    word(static_cast<std::uint32_t>(data.size()));
    Bytes body(type.begin(), type.end());
    body.insert(body.end(), data.begin(), data.end());
    b.insert(b.end(), body.begin(), body.end());
    word(detail::crc32(body));
  };
  chunk("IHDR", {0, 0, 0, 1, 0, 0, 0, 1, 8, 2, 0, 0, 0});
  chunk("IDAT", Bytes(200000));
  chunk("IEND", {});
  CHECK(contains(refusal(b), "PNG data for 1x1 pixels"));
}
