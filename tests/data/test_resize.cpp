// SPDX-License-Identifier: MIT
// optimised
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/data/images/resize.hpp>

#include "data/image_fixtures.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

Bytes random_bytes(std::size_t n, std::uint64_t seed) {
  Rng rng(seed, Purpose::user);
  Bytes v(n);
  for (auto& b : v) b = static_cast<std::uint8_t>(rng.next());
  return v;
}

// Returns the weights of one output pixel along one axis, computed from the definition in double: the triangle filter
// around the output's centre, limited to the pixels within the bounds.
std::vector<double> axis(double at, double length, double low, double high, int outputs, int i, bool antialias,
                         int size) {
  const double scale = length / outputs, centre = at + (i + 0.5) * scale,
               width = antialias ? std::max(1.0, scale) : 1.0;
  std::vector<double> w(static_cast<std::size_t>(size));
  double sum = 0;
  for (int k = static_cast<int>(std::floor(low)); k < static_cast<int>(std::ceil(high)); ++k)
    sum += w[static_cast<std::size_t>(k)] = std::max(0.0, 1 - std::abs(k + 0.5 - centre) / width);
  for (auto& v : w) v /= sum;
  return w;
}
std::vector<double> reference(const Picture& p, const ResizeBox& box, const ResizeBox& bounds, int ow, int oh,
                              bool antialias, bool mirror) {
  std::vector<double> out;
  for (int y = 0; y < oh; ++y) {
    const auto wy = axis(box.y, box.height, bounds.y, bounds.y + bounds.height, oh, y, antialias, p.height);
    for (int x = 0; x < ow; ++x) {
      const auto wx =
          axis(box.x, box.width, bounds.x, bounds.x + bounds.width, ow, mirror ? ow - 1 - x : x, antialias, p.width);
      for (int c = 0; c < 3; ++c) {
        double sum = 0;
        for (int j = 0; j < p.height; ++j)
          for (int i = 0; i < p.width; ++i)
            sum += wy[static_cast<std::size_t>(j)] * wx[static_cast<std::size_t>(i)] *
                   p.pixels[static_cast<std::size_t>((j * p.width + i) * 3 + c)];
        out.push_back(sum);
      }
    }
  }
  return out;
}

Bytes resized(const Picture& p, const ResizeBox& box, const ResizeBox& bounds, int ow, int oh, bool antialias,
              bool mirror, cpu::Isa isa) {
  Bytes out(static_cast<std::size_t>(ow * oh) * 3);
  Resizer resizer(isa);
  resizer({p.pixels.data(), p.width, p.height}, box, bounds, ow, oh, antialias, mirror, out.data());
  return out;
}

ResizeBox whole(const Picture& p) { return {0, 0, static_cast<double>(p.width), static_cast<double>(p.height)}; }

}  // namespace

TEST_CASE("scaling equals its definition within one level, with the same pixels on every instruction set") {
  Rng rng(5, Purpose::user);
  int cases = 0;
  for (const auto& [w, h] : {std::array{1, 1}, {1, 9}, {9, 1}, {2, 3}, {13, 7}, {40, 31}})
    for (const auto& [ow, oh] : {std::array{1, 1}, {4, 5}, {17, 3}, {33, 34}})
      for (int k = 0; k < 8; ++k) {
        const Picture p{w, h, random_bytes(static_cast<std::size_t>(w * h) * 3, rng.next())};
        ResizeBox box = whole(p);
        if (k >= 4) {  // a box with fractional positions
          box.x = rng.uniform53() * w * 0.5;
          box.y = rng.uniform53() * h * 0.5;
          box.width = (0.2 + 0.8 * rng.uniform53()) * (w - box.x);
          box.height = (0.2 + 0.8 * rng.uniform53()) * (h - box.y);
        }
        const bool antialias = (k & 1) != 0, mirror = (k & 2) != 0;
        for (const ResizeBox& bounds : {box, whole(p)}) {
          const auto want = reference(p, box, bounds, ow, oh, antialias, mirror);
          const Bytes got = resized(p, box, bounds, ow, oh, antialias, mirror, cpu::Isa::baseline);
          double most = 0;
          for (std::size_t i = 0; i < want.size(); ++i) most = std::max(most, std::abs(want[i] - got[i]));
          CHECK(most < 1.0);
          for (const cpu::Isa isa : {cpu::Isa::neon, cpu::Isa::avx2, cpu::Isa::avx512})
            if (isa <= cpu::detect_isa()) REQUIRE(got == resized(p, box, bounds, ow, oh, antialias, mirror, isa));
          ++cases;
        }
      }
  CHECK(cases == 384);
}

TEST_CASE("antialiased scaling gives the pixels of PIL within one level") {
  const Picture image = golden("image/image.png");
  int seen = 0;
  for (const auto& e : image_goldens().entries()) {
    const bool crop = e.name.rfind("crop/", 0) == 0;
    if (!crop && e.name.rfind("resize/", 0) != 0) continue;
    CAPTURE(e.name);
    double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
    char comma = 0;
    std::istringstream text(e.name.substr(e.name.find("png/") + 4));
    text >> x0 >> comma >> y0 >> comma >> x1 >> comma >> y1;
    const Picture want = golden(e.name);
    const ResizeBox box{x0, y0, x1 - x0, y1 - y0};
    const Bytes got =
        resized(image, box, crop ? box : whole(image), want.width, want.height, true, false, cpu::detect_isa());
    const Difference d = difference(got, want.pixels);
    CHECK(d.most <= 1);
    CHECK(d.share < 0.25);  // PIL rounds after its first pass, tutti does not
    ++seen;
  }
  CHECK(seen == 8);
}

TEST_CASE("an image that is scaled to its own size is unchanged, or only mirrored") {
  const Picture p{21, 5, random_bytes(315, 3)};
  for (const bool antialias : {false, true}) {
    CHECK(resized(p, whole(p), whole(p), 21, 5, antialias, false, cpu::detect_isa()) == p.pixels);
    const Bytes m = resized(p, whole(p), whole(p), 21, 5, antialias, true, cpu::detect_isa());
    for (std::size_t y = 0; y < 5; ++y)
      for (std::size_t x = 0; x < 21; ++x)
        for (std::size_t c = 0; c < 3; ++c) REQUIRE(m[(y * 21 + x) * 3 + c] == p.pixels[(y * 21 + 20 - x) * 3 + c]);
  }
}

TEST_CASE("constant images stay constant at every scale") {
  for (const int v : {0, 1, 127, 255}) {
    const Picture p{300, 3, Bytes(2700, static_cast<std::uint8_t>(v))};
    for (const int n : {1, 2, 7, 299, 301})
      for (const auto out : resized(p, whole(p), whole(p), n, 2, true, false, cpu::detect_isa())) REQUIRE(out == v);
  }
}

TEST_CASE("one Resizer scales images of different sizes one after another") {
  Resizer resizer;
  for (const int n : {50, 3, 20, 1, 60}) {
    const Picture p{n, n + 1, random_bytes(static_cast<std::size_t>(n * (n + 1)) * 3, 9)};
    Bytes got(16 * 16 * 3);
    resizer({p.pixels.data(), n, n + 1}, whole(p), whole(p), 16, 16, n % 2 == 0, false, got.data());
    CHECK(got == resized(p, whole(p), whole(p), 16, 16, n % 2 == 0, false, cpu::detect_isa()));
  }
}

TEST_CASE("boxes that are empty or extend beyond the image are refused") {
  const Picture p{4, 4, Bytes(48)};
  for (const ResizeBox& box :
       {ResizeBox{0, 0, 0, 4}, {0, 0, 4, -1}, {-1, 0, 2, 2}, {3, 0, 2, 2}, {0, 3, 2, 2}, {0, 0, 5, 5}})
    CHECK_THROWS_AS(resized(p, box, box, 2, 2, false, false, cpu::Isa::baseline), UsageError);
  CHECK_THROWS_AS(resized(p, whole(p), {0, 0, 2, 2}, 2, 2, false, false, cpu::Isa::baseline), UsageError);
  CHECK_THROWS_AS(resized(p, whole(p), whole(p), 0, 2, false, false, cpu::Isa::baseline), UsageError);
}
