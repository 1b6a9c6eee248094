// SPDX-License-Identifier: MIT
// optimised
#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <tutti/core/rng.hpp>
#include <tutti/data/augment/apply_op.hpp>

#include "data/augment_fixtures.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

constexpr std::array<std::uint8_t, 3> fill{124, 116, 104};  // of make.py

Bytes applied(const Picture& p, const ImageOpCall& call, cpu::Isa isa) {
  Bytes image = p.pixels;
  std::vector<std::uint8_t> memory;
  apply_op(call, image, p.width, p.height, fill.data(), memory, isa);
  return image;
}

Interpolation interpolation_named(const std::string& name) {
  for (const auto i : {Interpolation::nearest, Interpolation::bicubic})
    if (name == name_of(i)) return i;
  return Interpolation::bilinear;
}

Picture noise(int width, int height, std::uint64_t seed) {
  Picture p{width, height, Bytes(static_cast<std::size_t>(width * height) * 3)};
  Rng rng(seed, Purpose::user);
  for (auto& v : p.pixels) v = static_cast<std::uint8_t>(rng.next());
  return p;
}

}  // namespace

TEST_CASE("operations give the pixels of timm and torchvision within one level, on every instruction set") {
  std::map<std::string, Mismatch> of;
  for (const std::string& name : augment_names("op/")) {
    CAPTURE(name);
    const auto part = parts_of(name);  // op, image, system, operation, value, interpolation
    REQUIRE(part.size() == 6);
    const Picture image = augment_golden("image/" + part[1]), want = augment_golden(name);
    const ImageOpCall call{op_named(part[3]), std::stod(part[4]), interpolation_named(part[5])};
    const Bytes got = applied(image, call, cpu::Isa::baseline);
    for (const cpu::Isa isa : known_isas()) REQUIRE(applied(image, call, isa) == got);
    Mismatch one;
    one.add(got, want.pixels);
    CHECK(one.most <= 1);
    of[part[3] + (is_geometric(call.op) ? " " + part[5] : "")].add(got, want.pixels);
  }
  CHECK(of.size() == 10 + 5 * 3);
  for (const auto& entry : of) {
    const std::string& what = entry.first;
    const Mismatch& m = entry.second;
    CAPTURE(what);
    CHECK(m.beyond_one * 1000 <= m.pixels);
    // Tables and nearest pixels are exact. Blends and interpolations round numbers between levels differently.
    const bool exact = what.find("nearest") != std::string::npos || what == "equalize" || what == "auto_contrast" ||
                       what == "invert" || what == "posterize" || what == "solarize" || what == "solarize_add";
    if (exact) CHECK(m.differing == 0);
  }
}

TEST_CASE("operations with a neutral value return the image") {
  const Picture p = noise(37, 23, 1);
  for (const Interpolation i : {Interpolation::nearest, Interpolation::bilinear, Interpolation::bicubic})
    for (const auto& neutral : {std::pair{ImageOp::identity, 0.0},
                                {ImageOp::rotate, 0.0},
                                {ImageOp::rotate, 360.0},
                                {ImageOp::shear_x, 0.0},
                                {ImageOp::shear_y, 0.0},
                                {ImageOp::translate_x, 0.0},
                                {ImageOp::translate_y, 0.0},
                                {ImageOp::posterize, 8.0},
                                {ImageOp::solarize, 256.0},
                                {ImageOp::solarize_add, 0.0},
                                {ImageOp::colour, 1.0},
                                {ImageOp::contrast, 1.0},
                                {ImageOp::brightness, 1.0},
                                {ImageOp::sharpness, 1.0}})
      for (const cpu::Isa isa : known_isas()) {
        CAPTURE(name_of(neutral.first));
        CHECK(applied(p, {neutral.first, neutral.second, i}, isa) == p.pixels);
      }
}

TEST_CASE("a quarter turn moves each pixel, and two halves make a whole") {
  const Picture p = noise(20, 20, 2);
  for (const Interpolation i : {Interpolation::nearest, Interpolation::bilinear, Interpolation::bicubic}) {
    const Bytes turned = applied(p, {ImageOp::rotate, 90, i}, cpu::detect_isa());
    for (std::size_t y = 0; y < 20; ++y)
      for (std::size_t x = 0; x < 20; ++x)
        for (std::size_t c = 0; c < 3; ++c)
          REQUIRE(turned[(y * 20 + x) * 3 + c] == p.pixels[(x * 20 + 19 - y) * 3 + c]);
    const Picture half{20, 20, applied(p, {ImageOp::rotate, 180, i}, cpu::detect_isa())};
    CHECK(applied(half, {ImageOp::rotate, -180, i}, cpu::detect_isa()) == p.pixels);
  }
}

TEST_CASE("an image that is moved away is all fill colour, and images of one pixel are processed") {
  for (const auto& [w, h] : {std::array{1, 1}, {1, 9}, {9, 1}, {2, 2}, {3, 3}})
    for (int k = 0; k < image_ops; ++k)
      for (const double value : {-0.9, 0.0, 0.4, 1.9})
        for (const Interpolation i : {Interpolation::nearest, Interpolation::bilinear, Interpolation::bicubic}) {
          const auto op = static_cast<ImageOp>(k);
          if (!is_geometric(op) && value < 0) continue;
          const Picture p = noise(w, h, 3);
          const Bytes got = applied(p, {op, value, i}, cpu::Isa::baseline);
          REQUIRE(got.size() == p.pixels.size());
          for (const cpu::Isa isa : known_isas()) REQUIRE(applied(p, {op, value, i}, isa) == got);
        }
  const Picture p = noise(8, 6, 4);
  for (const Interpolation i : {Interpolation::nearest, Interpolation::bilinear, Interpolation::bicubic}) {
    const Bytes gone = applied(p, {ImageOp::translate_x, 8, i}, cpu::detect_isa());
    for (std::size_t k = 0; k < gone.size(); ++k) REQUIRE(gone[k] == fill[k % 3]);
  }
}

TEST_CASE("constant images keep their colour inside the image") {
  for (const int v : {0, 1, 127, 254, 255}) {
    const Picture p{16, 16, Bytes(768, static_cast<std::uint8_t>(v))};
    for (const Interpolation i : {Interpolation::bilinear, Interpolation::bicubic})
      for (const double degrees : {3.0, 44.0, 135.0}) {
        const Bytes got = applied(p, {ImageOp::rotate, degrees, i}, cpu::detect_isa());
        for (std::size_t k = 0; k < got.size(); ++k) REQUIRE((got[k] == v || got[k] == fill[k % 3]));
        for (std::size_t c = 0; c < 3; ++c) REQUIRE(got[(8 * 16 + 8) * 3 + c] == v);
      }
    for (const double factor : {0.0, 0.3, 1.9})
      CHECK(applied(p, {ImageOp::sharpness, factor}, cpu::detect_isa()) == p.pixels);
  }
}

TEST_CASE("each part of colour jitter gives the pixels of torchvision within one level") {
  const Picture image = augment_golden("image/photo");
  int seen = 0;
  for (const std::string& name : augment_names("jitter/")) {
    CAPTURE(name);
    const auto part = parts_of(name);  // jitter, what, amount
    const double amount = std::stod(part[2]);
    Picture got = image;
    if (part[1] == "hue")
      detail::turn_hue(got.pixels, static_cast<std::uint8_t>(static_cast<std::int32_t>(amount * 255)));
    else
      detail::blend_colour(got.pixels, amount,
                           part[1] == "brightness" ? 0
                           : part[1] == "contrast" ? detail::mean_luma(got.pixels)
                                                   : -1);
    Mismatch m;
    m.add(got.pixels, augment_golden(name).pixels);
    CAPTURE(m.beyond_one);
    CHECK(m.beyond_one * 1000 <= m.pixels);
    ++seen;
  }
  CHECK(seen == 8);
}
