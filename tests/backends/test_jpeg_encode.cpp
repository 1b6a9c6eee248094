// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <tutti/backends/turbojpeg/encode.hpp>
#include <tutti/backends/turbojpeg/turbojpeg.hpp>
#include <tutti/core/error.hpp>
#include <tutti/data/images/image_decoder.hpp>
#include <tutti/data/images/image_header.hpp>

#include "../data/temp_folder.hpp"

using namespace tutti;
using namespace tutti::test;

namespace {

using Bytes = std::vector<std::uint8_t>;

// Returns a smooth picture with all colours.
Bytes picture(int width, int height, int channels) {
  Bytes p;
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c)
        p.push_back(static_cast<std::uint8_t>(
            std::lround(127.5 + 120 * std::sin(0.05 * x * (c + 1) + c) * std::cos(0.04 * y + c))));
  return p;
}

Bytes encoded(const Bytes& pixels, int width, int height, int channels, JpegOptions options = {}) {
  Bytes out{1, 2, 3};
  encode_jpeg({pixels.data(), width, height, channels}, options, out);
  return out;
}

// Returns the mean absolute difference of the decoded JPEG from `pixels`.
double error_of(const Bytes& jpeg, const Bytes& pixels, int channels) {
  const ImageHeader h = read_image_header(jpeg, "test");
  DecodedImage image;
  TurbojpegDecoder().decode(jpeg, h, {{0, 0, h.width, h.height}, 0, 0, DecodeQuality::accurate}, "test", image);
  double sum = 0;
  const std::size_t n = static_cast<std::size_t>(h.width) * static_cast<std::size_t>(h.height);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t c = 0; c < 3; ++c) {
      const auto k = static_cast<std::size_t>(channels);
      sum += std::abs(int{image.pixels[3 * i + c]} - int{pixels[k * i + (k == 1 ? 0 : c)]});
    }
  return sum / static_cast<double>(3 * n);
}

}  // namespace

TEST_CASE("an encoded image decodes to nearly the same pixels") {
  struct Size {
    int width, height;
  };
  for (const auto size : {Size{1, 1}, Size{7, 3}, Size{64, 48}, Size{301, 203}, Size{1, 700}})
    for (const int channels : {1, 3}) {
      const int width = size.width, height = size.height;
      CAPTURE(width);
      CAPTURE(channels);
      const Bytes pixels = picture(width, height, channels);
      const Bytes jpeg = encoded(pixels, width, height, channels, {95});
      const ImageHeader h = read_image_header(jpeg, "test");
      CHECK(h.format == ImageFormat::jpeg);
      CHECK(h.width == width);
      CHECK(h.height == height);
      CHECK(h.components == channels);
      CHECK(error_of(jpeg, pixels, channels) < 2.5);
    }
}

TEST_CASE("each option of the encoder changes size and error as documented") {
  const Bytes pixels = picture(301, 203, 3);
  const Bytes usual = encoded(pixels, 301, 203, 3);
  CHECK(encoded(pixels, 301, 203, 3) == usual);
  std::size_t bytes = 0;
  double error = 1000;
  for (const int quality : {1, 30, 85, 100}) {
    const Bytes jpeg = encoded(pixels, 301, 203, 3, {quality});
    CHECK(jpeg.size() > bytes);
    CHECK(error_of(jpeg, pixels, 3) < error);
    bytes = jpeg.size();
    error = error_of(jpeg, pixels, 3);
  }
  const Bytes full = encoded(pixels, 301, 203, 3, {85, false});
  CHECK(full.size() > usual.size());
  CHECK(error_of(full, pixels, 3) < error_of(usual, pixels, 3));
  CHECK(encoded(pixels, 301, 203, 3, {85, true, false}).size() > usual.size());
}

TEST_CASE("wrong arguments are refused, and the next image is encoded correctly") {
  const Bytes pixels = picture(16, 16, 3);
  const Bytes good = encoded(pixels, 16, 16, 3);
  Bytes out;
  const auto message = [&](PixelView v, JpegOptions o = {}) {
    return message_of<UsageError>([&] { encode_jpeg(v, o, out); });
  };
  for (const int quality : {-1, 0, 101}) CHECK(contains(message({pixels.data(), 16, 16, 3}, {quality}), "quality"));
  for (const int channels : {0, 2, 4}) CHECK(contains(message({pixels.data(), 16, 16, channels}), "1 or 3 channels"));
  CHECK(contains(message({nullptr, 16, 16, 3}), "16x16"));
  CHECK(contains(message({pixels.data(), 0, 16, 3}), "0x16"));
  CHECK(contains(message({pixels.data(), 65501, 1, 1}), "65500"));
  CHECK(contains(message({pixels.data(), 1, 70000, 1}), "70000"));
  CHECK(encoded(pixels, 16, 16, 3) == good);
  const Bytes line(65500, 9);
  CHECK(read_image_header(encoded(line, 65500, 1, 1), "test").width == 65500);
  CHECK(encoded(pixels, 16, 16, 3) == good);
}

TEST_CASE("several threads encode the same image with the same bytes") {
  const Bytes pixels = picture(120, 90, 3), want = encoded(pixels, 120, 90, 3);
  std::vector<Bytes> got(4);
  std::vector<std::thread> threads;
  for (auto& g : got)
    threads.emplace_back([&] {
      for (int k = 0; k < 20; ++k) g = encoded(pixels, 120, 90, 3);
    });
  for (auto& t : threads) t.join();
  for (const auto& g : got) CHECK(g == want);
}
