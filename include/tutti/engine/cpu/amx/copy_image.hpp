// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tutti/core/float/bf16.hpp>
#include <tutti/engine/cpu/amx/layout.hpp>

namespace tutti::cpu::amx {

// Copies lines first <= line < end of an image's copy; with Way::direct, all of the image. shift: lines of the image by
// which the copy begins later, for a layout of fewer lines of output.
inline void copy_image(const Layout& l, const bf16* from, std::int64_t first, std::int64_t end, bf16* to,
                       std::int64_t shift = 0) {
  const auto copy = [](const bf16* source, std::int64_t n, bf16* target) {
    std::memcpy(target, source, static_cast<std::size_t>(n) * sizeof(bf16));
  };
  const auto zero = [](bf16* target, std::int64_t n) {
    std::memset(static_cast<void*>(target), 0, static_cast<std::size_t>(n) * sizeof(bf16));
  };
  if (l.way == Way::direct) return copy(from, l.h * l.w * l.channels, to);
  const std::int64_t line = l.columns * l.pixel;
  const bool whole_pixels = l.copy_stride == 1 && l.pixel == l.channels;
  for (int a = 0; a < l.copies_h; ++a)
    for (int b = 0; b < l.copies_w; ++b)
      for (std::int64_t i = first; i < end; ++i) {
        bf16* at = to + ((std::int64_t{a} * l.copies_w + b) * l.lines + i) * line;
        const std::int64_t y = i * l.copy_stride + a - l.top + shift;
        if (y < 0 || y >= l.h) {
          zero(at, line);
          continue;
        }
        const bf16* const source = from + y * l.w * l.channels;
        if (whole_pixels) {
          const std::int64_t count = std::min(l.w, l.columns - l.left);
          zero(at, l.left * l.pixel);
          copy(source, count * l.pixel, at + l.left * l.pixel);
          zero(at + (l.left + count) * l.pixel, (l.columns - l.left - count) * l.pixel);
          continue;
        }
        for (std::int64_t j = 0; j < l.columns; ++j, at += l.pixel) {
          const std::int64_t x = j * l.copy_stride + b - l.left;
          const bf16* const pixel = x >= 0 && x < l.w ? source + x * l.channels : nullptr;
          std::int64_t c = 0;
          // Of a fixed size, so that the compiler needs no call.
          for (; c + side <= l.channels; c += side)
            pixel != nullptr ? copy(pixel + c, side, at + c) : zero(at + c, side);
          for (; c < l.channels; ++c) at[c] = pixel != nullptr ? pixel[c] : bf16{};
          for (; c < l.pixel; ++c) at[c] = bf16{};
        }
      }
  // A tile may read beyond the last pixel of a line. Its weights are zeros there, which a NaN would outlive.
  if (l.way == Way::lines) zero(to + end * line, depth);
}

}  // namespace tutti::cpu::amx
