// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace tutti {

// Returns XXH64 with seed 0, as specified (Collet, "xxHash fast digest algorithm", version 0.1.1): the same number on
// every machine, at about the speed of memory. Detects accidental differences, not deliberate ones.
[[nodiscard]] inline std::uint64_t xxh64(std::string_view bytes) noexcept {
  constexpr std::uint64_t p1 = 0x9e3779b185ebca87, p2 = 0xc2b2ae3d27d4eb4f, p3 = 0x165667b19e3779f9,
                          p4 = 0x85ebca77c2b2ae63, p5 = 0x27d4eb2f165667c5;
  const char* at = bytes.data();
  const char* const end = at + bytes.size();
  // Numbers are little-endian.
  const auto swap = [](std::uint64_t v) {
    std::uint64_t turned = 0;
    for (int i = 0; i < 8; ++i) turned |= ((v >> (8 * i)) & 0xff) << (56 - 8 * i);
    return turned;
  };
  const auto word = [swap](const char* p) {
    std::uint64_t v = 0;
    std::memcpy(&v, p, sizeof v);
    return std::endian::native == std::endian::little ? v : swap(v);
  };
  const auto round = [](std::uint64_t lane, std::uint64_t v) { return std::rotl(lane + v * p2, 31) * p1; };

  std::uint64_t h = p5;
  if (bytes.size() >= 32) {
    // Four independent lanes.
    std::uint64_t a = p1 + p2, b = p2, c = 0, d = 0 - p1;
    // Prefetches far enough to keep the memory fully busy. The processor itself prefetches less far.
    constexpr std::ptrdiff_t ahead = 2048;
    for (; end - at >= 32; at += 32) {
      __builtin_prefetch(at + std::min(end - at, ahead));
      a = round(a, word(at));
      b = round(b, word(at + 8));
      c = round(c, word(at + 16));
      d = round(d, word(at + 24));
    }
    h = std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
    for (const std::uint64_t lane : {a, b, c, d}) h = (h ^ round(0, lane)) * p1 + p4;
  }
  h += bytes.size();
  for (; end - at >= 8; at += 8) h = std::rotl(h ^ round(0, word(at)), 27) * p1 + p4;
  if (end - at >= 4) {
    std::array<char, 8> low{};
    std::copy(at, at + 4, low.begin());
    h = std::rotl(h ^ (word(low.data()) * p1), 23) * p2 + p3;
    at += 4;
  }
  for (; at != end; ++at) h = std::rotl(h ^ (static_cast<unsigned char>(*at) * p5), 11) * p1;
  h = (h ^ (h >> 33)) * p2;
  h = (h ^ (h >> 29)) * p3;
  return h ^ (h >> 32);
}

}  // namespace tutti
