// SPDX-License-Identifier: MIT
// The decoders refuse damaged, incomplete or malicious images with a DataError, and can decode the next image.
// optimised
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "backends/image_decoders.hpp"

using namespace tutti;
using namespace tutti::test;

TEST_CASE("an image truncated at any byte is refused by name for any region, and the next image can be decoded") {
  for (const ImageDecoders& d : all_decoders())
    for (const std::string& name : jpegs) {
      const Bytes whole = image_fixture(name);
      for (std::size_t n = 0; n < whole.size(); n += 7) {
        const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
        const std::string m = message_of<DataError>([&] {
          (void)decode(d, cut, {0, 0, 1, 1}, DecodeQuality::fast, "shard 3, record 9");
        });
        CAPTURE(n);
        CHECK(contains(m, "[shard 3, record 9]"));
      }
      CHECK(difference(decode(d, whole).pixels, golden("image/" + name).pixels).most <= 12);
    }
}

#if defined(TUTTI_HAS_TURBOJPEG)
TEST_CASE("truncated image data is refused, also if an end marker follows") {
  const ImageDecoders d({std::make_shared<TurbojpegDecoder>()});
  // After each of its scans, a progressive image is complete but coarse.
  for (const char* name : {"420.jpg", "444.jpg", "grey.jpg"}) {
    const Bytes whole = image_fixture(name);
    for (std::size_t n = whole.size() * 3 / 4; n < whole.size() - 40; n += 5) {
      Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));
      if (cut.back() == 0xff) cut.back() = 0;
      cut.insert(cut.end(), {0xff, 0xd9});
      CAPTURE(name);
      CAPTURE(n);
      CHECK(contains(message_of<DataError>([&] { (void)decode(d, cut); }), "[test]"));
    }
  }
}
#endif

TEST_CASE("flipped bits give pixels or a DataError") {
  for (const ImageDecoders& d : all_decoders({.pixels = 1 << 20})) {
    int refused = 0, decoded = 0;
    for (const char* name : {"420.jpg", "progressive.jpg", "cmyk.jpg", "grey.jpg"}) {
      const Bytes whole = image_fixture(name);
      for (std::size_t i = 0; i < whole.size(); ++i) {
        Bytes bad = whole;
        bad[i] = static_cast<std::uint8_t>(bad[i] ^ (1U << (i * 5 % 8)));
        try {
          (void)decode(d, bad);
          ++decoded;
        } catch (const DataError& e) {
          CHECK(contains(e.what(), "[test]"));
          ++refused;
        }
      }
    }
    CHECK(refused > 300);
    CHECK(decoded > 300);  // most flips change a coefficient, which only a checksum could detect
  }
}

#if defined(TUTTI_HAS_TURBOJPEG)
TEST_CASE("a JPEG with more scans than any encoder writes is refused") {
  // A progressive grey image: one scan for the mean of each block, and one for the other coefficients, which may be
  // repeated.
  const jpeg_scan_info script[] = {{1, {0}, 0, 0, 0, 0}, {1, {0}, 1, 63, 0, 0}};
  jpeg_compress_struct c{};
  jpeg_error_mgr errors{};
  c.err = jpeg_std_error(&errors);
  jpeg_create_compress(&c);
  unsigned char* to = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&c, &to, &size);
  c.image_width = c.image_height = 16;
  c.input_components = 1;
  c.in_color_space = JCS_GRAYSCALE;
  jpeg_set_defaults(&c);
  c.scan_info = script;
  c.num_scans = 2;
  jpeg_start_compress(&c, TRUE);
  for (int y = 0; y < 16; ++y) {
    Bytes row(16, static_cast<std::uint8_t>(y * 9));
    JSAMPROW rows = row.data();
    (void)jpeg_write_scanlines(&c, &rows, 1);
  }
  jpeg_finish_compress(&c);
  const Bytes whole(to, to + size);
  jpeg_destroy_compress(&c);
  std::free(to);

  std::size_t last = whole.size() - 2;
  while (!(whole[last] == 0xff && whole[last + 1] == 0xda)) --last;
  const auto with_scans = [&](int n) {
    Bytes b(whole.begin(), whole.end() - 2);
    for (int i = 2; i < n; ++i) b.insert(b.end(), whole.begin() + static_cast<std::ptrdiff_t>(last), whole.end() - 2);
    b.insert(b.end(), {0xff, 0xd9});
    return b;
  };
  const ImageDecoders d({std::make_shared<TurbojpegDecoder>()});
  const Picture want = decode(d, whole);
  CHECK(decode(d, with_scans(turbojpeg::Session::most_scans)).pixels == want.pixels);
  CHECK(contains(message_of<DataError>([&] { (void)decode(d, with_scans(turbojpeg::Session::most_scans + 1)); }),
                 "at most 256 scans"));
}
#endif

#if defined(TUTTI_HAS_TURBOJPEG)
TEST_CASE("after an image the decompressor keeps no pointer into its memory") {
  turbojpeg::Session session;
  for (const char* name : {"444.jpg", "420.jpg", "grey.jpg", "444.jpg"}) {
    const Bytes bytes = image_fixture(name);
    const ImageHeader h = read_image_header(bytes, name);
    const DecodeRequest request{{0, 9, h.width, h.height - 9}, 0, 0, DecodeQuality::fast};
    DecodedImage image;
    turbojpeg::Job job{bytes, h, request, image};
    session.run(&turbojpeg::decode, job, name);
    CHECK(session.c.cconvert == nullptr);
    CHECK(session.c.cquantize == nullptr);
  }
}
#endif

TEST_CASE("a Huffman table with more codes than there are symbols is refused, in the header and between scans") {
  for (const ImageDecoders& d : all_decoders())
    for (const bool last : {false, true}) {
      Bytes bad = image_fixture("progressive.jpg");
      std::size_t at = 0;
      for (std::size_t i = 2; i + 1 < bad.size(); ++i)
        if (bad[i] == 0xff && bad[i + 1] == 0xc4 && (at == 0 || last)) at = i;
      REQUIRE(at > 0);
      bad[at + 19] = bad[at + 20] = 140;  // codes of 15 and 16 bits
      CAPTURE(d.names());
      CAPTURE(last);
      CHECK(contains(message_of<DataError>([&] { (void)decode(d, bad); }), "[test]"));
    }
}
