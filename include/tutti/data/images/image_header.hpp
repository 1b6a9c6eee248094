// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/core/error.hpp>
#include <tutti/data/images/image_orientation.hpp>

// The properties in an encoded image's header, read without a decoder and before any memory is allocated.
namespace tutti {

enum class ImageFormat : std::uint8_t { jpeg, png };  // Format of encoded images.

[[nodiscard]] constexpr const char* name_of(ImageFormat f) noexcept { return f == ImageFormat::jpeg ? "JPEG" : "PNG"; }

// The largest image that is decoded: 65500 x 65500 in a file of a kilobyte is an attack or damage.
struct ImageLimits {
  std::int64_t width = 1 << 16, height = 1 << 16;
  std::int64_t pixels = 100'000'000;
};

struct ImageHeader {  // The content of an image's first bytes.
  ImageFormat format = ImageFormat::jpeg;
  int width = 0, height = 0;  // of the displayed picture; orientations 5 to 8 store it rotated by 90 degrees
  int components = 0;  // as stored: 1 grey, 2 grey and alpha (PNG), 3 colour, 4 CMYK (JPEG) or colour and alpha (PNG)
  bool adobe = false;  // JPEG: has an Adobe marker, so CMYK is stored inverted
  int adobe_transform = -1;
  int orientation = 1;  // JPEG: of its EXIF, 1 to 8; 1: stored as displayed

  // Returns the same header with the size of the stored pixels.
  [[nodiscard]] ImageHeader as_stored() const noexcept {
    ImageHeader h = *this;
    if (ImageTurn(orientation).transposed) std::swap(h.width, h.height);
    h.orientation = 1;
    return h;
  }
};

namespace detail {

inline void check_image_size(std::uint64_t width, std::uint64_t height, const ImageLimits& limits,
                             std::string_view where) {
  const auto size = [](auto w, auto h) { return std::to_string(w) + "x" + std::to_string(h); };
  if (width == 0 || height == 0) fail<DataError>(where, "an image of 1x1 pixels or more", size(width, height));
  if (width > static_cast<std::uint64_t>(limits.width) || height > static_cast<std::uint64_t>(limits.height) ||
      width * height > static_cast<std::uint64_t>(limits.pixels))
    fail<DataError>(where,
                    {"an image of at most ", size(limits.width, limits.height), " and ", limits.pixels, " pixels"},
                    size(width, height),
                    "scale the image down or remove it; a program can raise ImageLimits, unless the data are damaged");
}

// ITU-T T.81, annex B. Accepts the frames with 8 bits a sample that libraries decode: baseline, extended, progressive,
// and the latter two with arithmetic coding.
inline ImageHeader jpeg_header(std::span<const std::uint8_t> b, const ImageLimits& limits, std::string_view where) {
  const auto truncated = [&](const char* expected) {
    fail<DataError>(where, expected, {"the end of the JPEG after ", b.size(), " bytes"}, "the record is truncated");
  };
  ImageHeader header;
  int orientation = 0;  // 0: no EXIF yet
  for (std::size_t at = 2;;) {
    // Bytes that belong to no marker are skipped, as in all decoders; many 0xff may precede a marker.
    while (at < b.size() && b[at] != 0xff) ++at;
    while (at < b.size() && b[at] == 0xff) ++at;
    if (at >= b.size()) truncated("a JPEG marker");
    const unsigned marker = b[at++];
    if (marker == 0 || marker == 0x01 || (marker >= 0xd0 && marker <= 0xd7)) continue;
    if (marker == 0xd8 || marker == 0xd9)
      fail<DataError>(where, "JPEG headers",
                      marker == 0xd9 ? "an end marker without an image" : "a second start marker");
    if (b.size() - at < 2) truncated("the length of a JPEG segment");
    const std::size_t length = static_cast<std::size_t>(b[at] << 8 | b[at + 1]);
    if (length < 2) fail<DataError>(where, "a JPEG segment of 2 bytes or more", length);
    if (length > b.size() - at) truncated("a complete JPEG segment");
    const auto segment = b.subspan(at + 2, length - 2);
    at += length;
    if (marker == 0xe1 && orientation == 0) {
      orientation = exif_orientation(segment);
    } else if (marker == 0xee && segment.size() >= 12 && std::memcmp(segment.data(), "Adobe", 5) == 0) {
      header.adobe = true;
      header.adobe_transform = segment[11];
    } else if (marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc) {
      if (header.components != 0) fail<DataError>(where, "one JPEG frame", "a second one");
      if (marker != 0xc0 && marker != 0xc1 && marker != 0xc2 && marker != 0xc9 && marker != 0xca)
        fail<DataError>(where, "a baseline or progressive JPEG", {"frame type ", marker - 0xc0});
      if (segment.size() < 6) fail<DataError>(where, "a frame header", {segment.size(), " bytes"});
      if (segment[0] != 8) fail<DataError>(where, "8 bits per sample", segment[0]);
      const std::uint64_t height = static_cast<unsigned>(segment[1] << 8 | segment[2]);
      const std::uint64_t width = static_cast<unsigned>(segment[3] << 8 | segment[4]);
      check_image_size(width, height, limits, where);
      header.height = static_cast<int>(height);
      header.width = static_cast<int>(width);
      header.components = segment[5];
      if (header.components != 1 && header.components != 3 && header.components != 4)
        fail<DataError>(where, "1, 3 or 4 components", header.components);
    } else if (marker == 0xda) {
      if (header.components == 0) fail<DataError>(where, "a JPEG frame before its scan", "no frame");
      // Within a scan 0xff is followed by 0 or a restart marker, so an end marker after it belongs to the image itself.
      // Without this check, a file truncated below the requested rows would not be detected.
      for (std::size_t end = b.size(); end >= at + 2; --end)
        if (b[end - 1] == 0xd9 && b[end - 2] == 0xff) {
          if (orientation != 0) header.orientation = orientation;
          if (ImageTurn(header.orientation).transposed) std::swap(header.width, header.height);
          return header;
        }
      truncated("an end marker");
    }
  }
}

[[nodiscard]] inline std::uint32_t crc32(std::span<const std::uint8_t> data) noexcept {
  static constexpr auto table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = (c >> 1) ^ ((c & 1) != 0 ? 0xEDB88320U : 0U);
      t[i] = c;
    }
    return t;
  }();
  std::uint32_t c = 0xffffffffU;
  for (const auto b : data) c = table[(c ^ b) & 0xff] ^ (c >> 8);
  return ~c;
}

// PNG specification, section 5. Checks the CRC of every chunk.
inline ImageHeader png_header(std::span<const std::uint8_t> b, const ImageLimits& limits, std::string_view where) {
  const auto word = [&](std::size_t at) {
    return std::uint32_t{b[at]} << 24 | std::uint32_t{b[at + 1]} << 16 | std::uint32_t{b[at + 2]} << 8 |
           std::uint32_t{b[at + 3]};
  };
  ImageHeader header;
  header.format = ImageFormat::png;
  std::uint64_t packed = 0;
  for (std::size_t at = 8;;) {
    if (b.size() - at < 12 || word(at) > b.size() - at - 12)
      fail<DataError>(where, "a complete PNG chunk", {"the end of the PNG after ", b.size(), " bytes"},
                      "the record is truncated");
    const std::size_t length = word(at);
    const std::string type(reinterpret_cast<const char*>(b.data() + at + 4), 4);
    if (crc32(b.subspan(at + 4, length + 4)) != word(at + 8 + length))
      fail<DataError>(where, {"the CRC-32 of the PNG chunk at byte ", at}, "another CRC-32", "the record is damaged");
    if (at == 8) {
      if (type != "IHDR" || length != 13) fail<DataError>(where, "a PNG that begins with IHDR", "another chunk");
      check_image_size(word(at + 8), word(at + 12), limits, where);
      header.width = static_cast<int>(word(at + 8));
      header.height = static_cast<int>(word(at + 12));
      const unsigned colour = b[at + 17];
      header.components = colour == 0 ? 1 : colour == 4 ? 2 : colour == 2 || colour == 3 ? 3 : colour == 6 ? 4 : 0;
      if (header.components == 0) fail<DataError>(where, "a PNG colour type", colour);
    } else if (type == "IDAT") {
      packed += length;
    } else if (type == "IEND") {
      break;
    }
    at += length + 12;
  }
  // Deflate expands data by at most a few bytes in 16 KiB. So if there is more data than this, it unpacks to more than
  // the image: at most 8 bytes a pixel and one a row, and twice that for interlaced narrow images.
  const std::uint64_t raw =
      static_cast<std::uint64_t>(header.height) * 2 * (static_cast<std::uint64_t>(header.width) * 8 + 8);
  if (packed > raw + raw / 8 + 65536)
    fail<DataError>(where, {"PNG data for ", header.width, "x", header.height, " pixels"}, {packed, " bytes"});
  return header;
}

}  // namespace detail

// Returns format, size and components of an encoded image. Throws DataError, with `where`, for data that is neither
// JPEG nor PNG, is truncated, or has more pixels than `limits` allows.
[[nodiscard]] inline ImageHeader read_image_header(std::span<const std::uint8_t> bytes, std::string_view where,
                                                   const ImageLimits& limits = {}) {
  static constexpr std::uint8_t png[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  if (bytes.size() >= 3 && bytes[0] == 0xff && bytes[1] == 0xd8 && bytes[2] == 0xff)
    return detail::jpeg_header(bytes, limits, where);
  if (bytes.size() >= 8 && std::memcmp(bytes.data(), png, 8) == 0) return detail::png_header(bytes, limits, where);
  fail<DataError>(where, "a JPEG or a PNG", {bytes.size(), " bytes in another format"});
}

}  // namespace tutti
