// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <tutti/data/images/image_decoder.hpp>
#if defined(TUTTI_HAS_TURBOJPEG)
#include <tutti/backends/turbojpeg/turbojpeg.hpp>
#endif
#if defined(TUTTI_HAS_STB)
#include <tutti/backends/stb/stb.hpp>
#endif

#include "data/image_fixtures.hpp"

// The decoders of this build, and functions that decode a whole image or a region, for tests.
namespace tutti::test {

// Returns one ImageDecoders object for each decoder.
inline std::vector<ImageDecoders> all_decoders([[maybe_unused]] ImageLimits limits = {}) {
  std::vector<ImageDecoders> all;
#if defined(TUTTI_HAS_TURBOJPEG)
  all.push_back(ImageDecoders({std::make_shared<TurbojpegDecoder>()}, limits));
#endif
#if defined(TUTTI_HAS_STB)
  all.push_back(ImageDecoders({std::make_shared<StbDecoder>()}, limits));
#endif
  if (all.empty()) std::puts("SKIP: neither libjpeg-turbo nor stb (Debian: apt-get install libjpeg-dev libstb-dev)");
  return all;
}

// Returns the pixels of the region without the margin that a decoder may have added.
inline Picture decode(const ImageDecoders& decoders, const Bytes& bytes, ImageRegion region, DecodeQuality quality,
                      std::string_view where = "test") {
  static thread_local DecodedImage image;
  decoders.decode(bytes, decoders.header(bytes, where), {region, 0, 0, quality}, where, image);
  REQUIRE(image.reduction == 1);
  REQUIRE(image.x <= region.x);
  REQUIRE(image.y <= region.y);
  REQUIRE(image.x + image.width >= region.x + region.width);
  REQUIRE(image.y + image.height >= region.y + region.height);
  Picture p{region.width, region.height, {}};
  for (int y = 0; y < region.height; ++y) {
    const std::uint8_t* from = image.row(region.y - image.y + y) + (region.x - image.x) * 3;
    p.pixels.insert(p.pixels.end(), from, from + region.width * 3);
  }
  return p;
}
inline Picture decode(const ImageDecoders& decoders, const Bytes& bytes,
                      DecodeQuality quality = DecodeQuality::accurate, std::string_view where = "test") {
  const ImageHeader h = decoders.header(bytes, where);
  return decode(decoders, bytes, {0, 0, h.width, h.height}, quality, where);
}

inline const std::vector<std::string> jpegs{"420.jpg",  "422.jpg", "444.jpg",  "progressive.jpg",
                                            "grey.jpg", "1x1.jpg", "1x37.jpg", "41x1.jpg"};

}  // namespace tutti::test
