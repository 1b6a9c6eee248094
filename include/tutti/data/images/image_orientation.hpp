// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

// The EXIF orientation of a JPEG, which says how the camera was held, and the rotation from stored pixels to the
// displayed picture. Used by the reader of image headers and by ImageDecoders.
namespace tutti {

// Returns the orientation, 1 to 8, in the APP1 segment of a JPEG (EXIF 2.3, tag 0x0112 of the first directory). Returns
// 0 if the segment is not EXIF, is damaged or truncated, or has another value. Pixels are then used as stored.
[[nodiscard]] inline int exif_orientation(std::span<const std::uint8_t> segment) noexcept {
  constexpr std::size_t name = 6, entry = 12;
  if (segment.size() < name + 8 || std::memcmp(segment.data(), "Exif\0", name) != 0) return 0;
  const auto tiff = segment.subspan(name);
  const bool little = tiff[0] == 'I';
  if (tiff[0] != tiff[1] || (!little && tiff[0] != 'M')) return 0;
  // u16 and u32 read within `tiff` only if their caller has checked the end.
  const auto u16 = [&](std::size_t at) {
    return static_cast<std::uint32_t>(little ? tiff[at] | tiff[at + 1] << 8 : tiff[at] << 8 | tiff[at + 1]);
  };
  const auto u32 = [&](std::size_t at) { return little ? u16(at) | u16(at + 2) << 16 : u16(at) << 16 | u16(at + 2); };
  if (u16(2) != 42) return 0;
  const std::size_t directory = u32(4);
  if (directory > tiff.size() - 2) return 0;
  const std::size_t stored = (tiff.size() - 2 - directory) / entry;
  const std::size_t entries = std::min<std::size_t>(u16(directory), stored);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t at = directory + 2 + i * entry;
    if (u16(at) != 0x0112) continue;
    constexpr std::uint32_t type_short = 3, type_long = 4;
    const std::uint32_t type = u16(at + 2);
    if ((type != type_short && type != type_long) || u32(at + 4) != 1) return 0;
    const std::uint32_t value = type == type_short ? u16(at + 8) : u32(at + 8);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 0;
  }
  return 0;
}

// The rotation for an orientation. Pixel (x, y) of the picture is the stored pixel (u, v) = transposed ? (y, x) : (x,
// y), counted from the right if `from_right`, and from the bottom if `from_bottom`.
struct ImageTurn {
  bool transposed = false, from_right = false, from_bottom = false;

  explicit constexpr ImageTurn(int orientation) noexcept
      : transposed(orientation >= 5),
        from_right(orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8),
        from_bottom(orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) {}
};

// Writes the rotated picture of `from`, [height, width, 3] of u8, to `to`, which has as many bytes.
inline void turn_pixels(ImageTurn turn, const std::uint8_t* from, int width, int height, std::uint8_t* to) noexcept {
  const std::ptrdiff_t row = std::ptrdiff_t{3} * width;
  // Steps in `from` for one pixel to the right and one row down in `to`.
  std::ptrdiff_t right = turn.from_right ? -3 : 3, down = turn.from_bottom ? -row : row;
  if (turn.from_right) from += row - 3;
  if (turn.from_bottom) from += row * (height - 1);
  if (turn.transposed) {
    std::swap(right, down);
    std::swap(width, height);
  }
  for (int y = 0; y < height; ++y, from += down) {
    const std::uint8_t* pixel = from;
    for (int x = 0; x < width; ++x, pixel += right, to += 3) std::memcpy(to, pixel, 3);
  }
}

}  // namespace tutti
