// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/data/images/image_header.hpp>

namespace tutti {

namespace detail {

inline void append_big_endian(std::string& out, std::uint32_t v) {
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(v >> shift & 255U);
}

inline void append_png_chunk(std::string& out, std::string_view kind, std::string_view data) {
  append_big_endian(out, static_cast<std::uint32_t>(data.size()));
  const std::size_t begin = out.size();
  out.append(kind).append(data);
  append_big_endian(out, crc32({reinterpret_cast<const std::uint8_t*>(out.data()) + begin, out.size() - begin}));
}

// Returns the data in zlib's format (RFC 1950), uncompressed (RFC 1951, 3.2.4).
[[nodiscard]] inline std::string zlib_stored(std::string_view data) {
  constexpr std::size_t most = 65535;
  std::string out = "\x78\x01";
  std::uint32_t a = 1, b = 0;  // Adler-32
  for (const char c : data) {
    a = (a + static_cast<std::uint8_t>(c)) % 65521;
    b = (b + a) % 65521;
  }
  do {
    const std::string_view block = data.substr(0, most);
    data.remove_prefix(block.size());
    const auto length = static_cast<std::uint32_t>(block.size());
    out += data.empty() ? '\1' : '\0';
    for (const std::uint32_t n : {length, ~length}) {
      out += static_cast<char>(n & 255U);
      out += static_cast<char>(n >> 8 & 255U);
    }
    out += block;
  } while (!data.empty());
  append_big_endian(out, b << 16 | a);
  return out;
}

}  // namespace detail

// Returns a PNG file of an image [height, width, channels], uncompressed: 1 channel is grey, 3 are red, green and blue.
// Throws UsageError for other sizes.
[[nodiscard]] inline std::string write_png(std::span<const std::uint8_t> image, std::int64_t height, std::int64_t width,
                                           std::int64_t channels) {
  constexpr std::int64_t most = 1 << 14;
  if (height < 1 || width < 1 || height > most || width > most || (channels != 1 && channels != 3) ||
      image.size() != static_cast<std::size_t>(height * width * channels))
    fail<UsageError>("write_png", "an image [height, width, 1 or 3] of at most 2^14 pixels a side",
                     {"[", height, ", ", width, ", ", channels, "] and ", image.size(), " bytes"});
  std::string header;
  detail::append_big_endian(header, static_cast<std::uint32_t>(width));
  detail::append_big_endian(header, static_cast<std::uint32_t>(height));
  header += '\x08';
  header += channels == 1 ? '\0' : '\2';
  header.append(3, '\0');
  const auto row = static_cast<std::size_t>(width * channels);
  std::string rows;
  rows.reserve((row + 1) * static_cast<std::size_t>(height));
  for (std::size_t y = 0; y < static_cast<std::size_t>(height); ++y) {
    rows += '\0';  // no filter
    rows.append(reinterpret_cast<const char*>(image.data()) + y * row, row);
  }
  std::string png = "\x89PNG\r\n\x1a\n";
  detail::append_png_chunk(png, "IHDR", header);
  detail::append_png_chunk(png, "IDAT", detail::zlib_stored(rows));
  detail::append_png_chunk(png, "IEND", "");
  return png;
}

// An image [height, width, channels] reduced to `most` pixels on its longer side; each pixel is the mean of those that
// it replaces. An image that is not larger stays unchanged. If there are not 1 or 3 channels, only the first one or the
// first three are kept.
struct Thumbnail {
  std::int64_t height = 0, width = 0, channels = 0;
  std::vector<std::uint8_t> pixels;
};
[[nodiscard]] inline Thumbnail make_thumbnail(std::span<const std::uint8_t> image, std::int64_t height,
                                              std::int64_t width, std::int64_t channels, std::int64_t most) {
  const std::int64_t longer = height > width ? height : width, to = longer < most ? longer : most;
  const auto shrunk = [&](std::int64_t side) { return side * to / longer > 0 ? side * to / longer : 1; };
  Thumbnail t{shrunk(height), shrunk(width), channels < 3 ? 1 : 3, {}};
  t.pixels.reserve(static_cast<std::size_t>(t.height * t.width * t.channels));
  for (std::int64_t y = 0; y < t.height; ++y)
    for (std::int64_t x = 0; x < t.width; ++x)
      for (std::int64_t c = 0; c < t.channels; ++c) {
        const std::int64_t y0 = y * height / t.height, y1 = (y + 1) * height / t.height;
        const std::int64_t x0 = x * width / t.width, x1 = (x + 1) * width / t.width;
        std::int64_t sum = 0;
        for (std::int64_t sy = y0; sy < y1; ++sy)
          for (std::int64_t sx = x0; sx < x1; ++sx)
            sum += image[static_cast<std::size_t>((sy * width + sx) * channels + c)];
        const std::int64_t count = (y1 - y0) * (x1 - x0);
        t.pixels.push_back(static_cast<std::uint8_t>((sum + count / 2) / count));
      }
  return t;
}

}  // namespace tutti
