// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <vector>

#include <tutti/core/isa.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/images/resize.hpp>

namespace tutti::test {

// Scales images of random bytes to many sizes with and without NEON. Returns the number of bytes that differ.
inline int count_different_pixels(cpu::Isa isa) {
  int wrong = 0;
  for (const int width : {1, 3, 17, 64})
    for (const int height : {2, 31}) {
      Rng rng(static_cast<std::uint64_t>(width + height), Purpose::user);
      std::vector<std::uint8_t> pixels(static_cast<std::size_t>(width * height * 3));
      for (std::uint8_t& v : pixels) v = rng.below(3) == 0 ? 255 : static_cast<std::uint8_t>(rng.below(256));
      const RgbView image{pixels.data(), width, height};
      const ResizeBox whole{0, 0, static_cast<double>(width), static_cast<double>(height)};
      for (const int out : {1, 4, 5, 6, 7, 24, 33})
        for (const bool antialias : {false, true})
          for (const bool mirror : {false, true}) {
            const auto scaled = [&](cpu::Isa by) {
              std::vector<std::uint8_t> to(static_cast<std::size_t>(out * 9 * 3 + 1), 77);
              Resizer{by}(image, whole, whole, out, 9, antialias, mirror, to.data());
              return to;
            };
            const auto plain = scaled(cpu::Isa::baseline), fast = scaled(isa);
            int here = 0;
            for (std::size_t i = 0; i < plain.size(); ++i) here += plain[i] != fast[i] ? 1 : 0;
            if (here > 0) std::printf("%d bytes of %dx%d to %dx9 differ\n", here, width, height, out);
            wrong += here;
          }
    }
  return wrong;
}

}  // namespace tutti::test
