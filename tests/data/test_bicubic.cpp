// SPDX-License-Identifier: MIT
// optimised
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <sstream>
#include <string>

#include <tutti/core/rng.hpp>
#include <tutti/data/images/bicubic.hpp>

#include "data/augment_fixtures.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

ResizeBox whole(const Picture& p) { return {0, 0, static_cast<double>(p.width), static_cast<double>(p.height)}; }

Bytes resized(const Picture& p, const ResizeBox& box, const ResizeBox& bounds, int w, int h, bool antialias,
              bool mirror, cpu::Isa isa) {
  Bytes out(static_cast<std::size_t>(w * h) * 3);
  BicubicResizer resizer(isa);
  resizer({p.pixels.data(), p.width, p.height}, box, bounds, w, h, antialias, mirror, out.data());
  return out;
}

Picture noise(int width, int height, std::uint64_t seed) {
  Picture p{width, height, Bytes(static_cast<std::size_t>(width * height) * 3)};
  Rng rng(seed, Purpose::user);
  for (auto& v : p.pixels) v = static_cast<std::uint8_t>(rng.next());
  return p;
}

}  // namespace

TEST_CASE("bicubic scaling gives the pixels of PIL and torchvision within one level, on every instruction set") {
  const Picture image = augment_golden("image/photo");
  Mismatch all;
  for (const std::string& name : augment_names("bicubic/")) {
    CAPTURE(name);
    const auto part = parts_of(name);  // bicubic, pil, box, size; or crop; or torch, antialias, size
    const Picture want = augment_golden(name);
    ResizeBox box = whole(image);
    const bool torch = part[1] == "torch", antialias = !torch || part[2] == "1";
    if (!torch) {
      double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
      char comma = 0;
      std::istringstream(part[2]) >> x0 >> comma >> y0 >> comma >> x1 >> comma >> y1;
      box = {x0, y0, x1 - x0, y1 - y0};
    }
    const ResizeBox bounds = part[1] == "crop" ? box : whole(image);
    const Bytes got = resized(image, box, bounds, want.width, want.height, antialias, false, cpu::Isa::baseline);
    for (const cpu::Isa isa : known_isas())
      REQUIRE(resized(image, box, bounds, want.width, want.height, antialias, false, isa) == got);
    Mismatch one;
    one.add(got, want.pixels);
    CHECK(one.most <= 1);
    all.add(got, want.pixels);
  }
  CHECK(all.pixels > 20'000);
  CHECK(all.beyond_one == 0);
  CHECK(all.differing * 20 < all.values);  // weights have 14 bits, PIL's 22
}

TEST_CASE("bicubic scaling has the same pixels on every instruction set, mirrored too, for all small sizes") {
  for (const auto& [w, h] : {std::array{1, 1}, {1, 9}, {9, 1}, {2, 3}, {13, 7}, {40, 31}})
    for (const auto& [ow, oh] : {std::array{1, 1}, {4, 5}, {17, 3}, {33, 34}})
      for (int k = 0; k < 4; ++k) {
        const Picture p = noise(w, h, static_cast<std::uint64_t>(w * 100 + h));
        const bool antialias = (k & 1) != 0;
        ResizeBox box = whole(p);
        if (k >= 2) box = {w * 0.2, h * 0.1, w * 0.7, h * 0.8};
        const Bytes got = resized(p, box, whole(p), ow, oh, antialias, false, cpu::Isa::baseline);
        const Bytes turned = resized(p, box, whole(p), ow, oh, antialias, true, cpu::Isa::baseline);
        for (const cpu::Isa isa : known_isas()) {
          REQUIRE(resized(p, box, whole(p), ow, oh, antialias, false, isa) == got);
          REQUIRE(resized(p, box, whole(p), ow, oh, antialias, true, isa) == turned);
        }
        for (int y = 0; y < oh; ++y)
          for (int x = 0; x < ow; ++x)
            for (int c = 0; c < 3; ++c)
              REQUIRE(turned[static_cast<std::size_t>((y * ow + x) * 3 + c)] ==
                      got[static_cast<std::size_t>((y * ow + ow - 1 - x) * 3 + c)]);
      }
}

TEST_CASE("bicubic scaling to the same size keeps the image, and constant images stay constant") {
  const Picture p = noise(21, 5, 3);
  for (const bool antialias : {false, true})
    CHECK(resized(p, whole(p), whole(p), 21, 5, antialias, false, cpu::detect_isa()) == p.pixels);
  for (const int v : {0, 1, 127, 255}) {
    const Picture flat{300, 3, Bytes(2700, static_cast<std::uint8_t>(v))};
    for (const int n : {1, 2, 7, 299, 301})
      for (const bool antialias : {false, true})
        for (const auto out : resized(flat, whole(flat), whole(flat), n, 2, antialias, false, cpu::detect_isa()))
          REQUIRE(out == v);
  }
}

TEST_CASE("boxes that are empty or extend beyond the image are refused by bicubic scaling") {
  const Picture p{4, 4, Bytes(48)};
  for (const ResizeBox& box : {ResizeBox{0, 0, 0, 4}, {0, 0, 4, -1}, {-1, 0, 2, 2}, {3, 0, 2, 2}, {0, 0, 5, 5}})
    CHECK_THROWS_AS(resized(p, box, box, 2, 2, false, false, cpu::Isa::baseline), UsageError);
  CHECK_THROWS_AS(resized(p, whole(p), whole(p), 0, 2, false, false, cpu::Isa::baseline), UsageError);
}
