// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <tutti/data/images/image_decoder.hpp>
#include <tutti/io/safetensors/safetensors.hpp>

#include "data/temp_folder.hpp"

// Reads the images of tests/data/fixtures/images and the pixels that PIL decodes from them.
namespace tutti::test {

using Bytes = std::vector<std::uint8_t>;

inline Bytes read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

inline std::filesystem::path image_fixtures() { return source_root() / "tests" / "data" / "fixtures" / "images"; }
inline Bytes image_fixture(const std::string& name) { return read_bytes(image_fixtures() / name); }

// An image as RGB pixels.
struct Picture {
  int width = 0, height = 0;
  Bytes pixels;
};

inline const io::Safetensors& image_goldens() {
  static const io::Safetensors file = io::Safetensors::open(image_fixtures() / "images.safetensors");
  return file;
}
inline Picture golden(const std::string& name) {
  const auto r = image_goldens().record(name);
  const auto* data = reinterpret_cast<const std::uint8_t*>(r.bytes.data());
  return {static_cast<int>(r.shape[1]), static_cast<int>(r.shape[0]), Bytes(data, data + r.bytes.size())};
}

// The difference of two images: the largest difference, and the share of values that differ.
struct Difference {
  int most = 0;
  double share = 0;
};
inline Difference difference(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  if (a.size() != b.size()) return {256, 1};
  Difference d;
  for (std::size_t i = 0; i < a.size(); ++i) {
    d.most = std::max(d.most, std::abs(a[i] - b[i]));
    d.share += a[i] != b[i] ? 1 : 0;
  }
  d.share /= static_cast<double>(std::max<std::size_t>(1, a.size()));
  return d;
}

// Returns the header of a JPEG that states this width and height but contains no image data.
inline Bytes jpeg_of_size(int width, int height, int components = 3) {
  const auto high = [](int v) { return static_cast<std::uint8_t>(v >> 8); };
  const auto low = [](int v) { return static_cast<std::uint8_t>(v & 255); };
  Bytes b{0xff, 0xd8, 0xff, 0xc0, 0, static_cast<std::uint8_t>(8 + 3 * components), 8};
  for (const auto v : {high(height), low(height), high(width), low(width)}) b.push_back(v);
  b.push_back(static_cast<std::uint8_t>(components));
  for (int c = 0; c < components; ++c)
    for (const int v : {c + 1, 0x11, 0}) b.push_back(static_cast<std::uint8_t>(v));
  for (const int v : {0xff, 0xda, 0, 2, 0xff, 0xd9}) b.push_back(static_cast<std::uint8_t>(v));
  return b;
}

// Returns the EXIF segment of a JPEG, including its marker. The orientation stands between two entries of other kinds.
inline Bytes exif_segment(int orientation, bool little) {
  Bytes tiff;
  const auto number = [&](std::uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i)
      tiff.push_back(static_cast<std::uint8_t>(value >> (8 * (little ? i : bytes - 1 - i))));
  };
  const auto entry = [&](std::uint32_t tag, std::uint32_t value) {
    number(tag, 2);
    number(3, 2);  // SHORT
    number(1, 4);
    number(value, 2);
    number(0, 2);
  };
  for (int i = 0; i < 2; ++i) tiff.push_back(little ? 'I' : 'M');
  number(42, 2);
  number(10, 4);  // offset of the directory
  number(0, 2);
  number(3, 2);
  entry(0x0100, 640);
  entry(0x0112, static_cast<std::uint32_t>(orientation));
  entry(0x0213, 1);
  number(0, 4);
  Bytes segment{0xff, 0xe1, 0, static_cast<std::uint8_t>(tiff.size() + 8), 'E', 'x', 'i', 'f', 0, 0};
  for (const std::uint8_t byte : tiff) segment.push_back(byte);
  return segment;
}

// Returns the JPEG with a segment inserted after its start marker.
inline Bytes with_segment(Bytes jpeg, const Bytes& segment) {
  jpeg.insert(jpeg.begin() + 2, segment.begin(), segment.end());
  return jpeg;
}

// Returns the picture as a viewer shows it in this EXIF orientation. Copies pixel by pixel and follows the table of the
// EXIF specification, which states on which side of the picture the first stored row and the first stored column are.
inline Picture turned(const Picture& p, int orientation) {
  const bool on_side = orientation >= 5;
  Picture out{on_side ? p.height : p.width, on_side ? p.width : p.height, Bytes(p.pixels.size())};
  for (int v = 0; v < p.height; ++v)
    for (int u = 0; u < p.width; ++u) {
      const int right = p.width - 1 - u, below = p.height - 1 - v;
      // Element k - 1: for orientation k, the position (x, y) at which the stored pixel in column u and row v is shown.
      const int places[8][2] = {{u, v}, {right, v}, {right, below}, {u, below},
                                {v, u}, {below, u}, {below, right}, {v, right}};
      const int x = places[orientation - 1][0], y = places[orientation - 1][1];
      for (int c = 0; c < 3; ++c)
        out.pixels[static_cast<std::size_t>((y * out.width + x) * 3 + c)] =
            p.pixels[static_cast<std::size_t>((v * p.width + u) * 3 + c)];
    }
  return out;
}

// Returns the encoded images in imagenet-sample.tar (ustar format); empty if the file does not exist.
inline std::vector<Bytes> imagenet_sample() {
  std::vector<Bytes> images;
  const auto folder = source_root().parent_path() / "shared" / "data";
  for (const auto& path : {real_data() / "imagenet-sample.tar", folder / "imagenet-sample.tar"}) {
    if (!images.empty() || !std::filesystem::exists(path)) continue;
    const Bytes tar = read_bytes(path);
    for (std::size_t at = 0; at + 512 <= tar.size() && tar[at] != 0;) {
      const std::string size(reinterpret_cast<const char*>(tar.data() + at + 124), 11);
      const std::size_t n = std::stoul(size, nullptr, 8);
      if (n > tar.size() - at - 512) throw std::runtime_error("damaged " + path.string());
      if (tar[at + 156] == '0' && n > 0)
        images.emplace_back(tar.begin() + static_cast<std::ptrdiff_t>(at + 512),
                            tar.begin() + static_cast<std::ptrdiff_t>(at + 512 + n));
      at += 512 + (n + 511) / 512 * 512;
    }
  }
  return images;
}

}  // namespace tutti::test
