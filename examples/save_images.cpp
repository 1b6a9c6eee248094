// SPDX-License-Identifier: MIT
// header-only
// Writes images as PNG files, to try the pages of tutti without your own images:
//   save_images FOLDER COUNT             FOLDER/train/<class>/ gets COUNT drawn shapes of each of four classes, and
//                                        FOLDER/validation/<class>/ a quarter as many
//   save_images FOLDER COUNT DATA        FOLDER gets the first COUNT test images of CIFAR-10 or Fashion-MNIST in DATA
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/exit_code_of.hpp>
#include <tutti/core/rng.hpp>
#include <tutti/data/images/png_write.hpp>
#include <tutti/data/memory_dataset.hpp>
#include <tutti/datasets/cifar10/cifar10.hpp>
#include <tutti/datasets/fashion_mnist/fashion_mnist.hpp>
#include <tutti/io/file.hpp>
#include <tutti/io/file_writer.hpp>

using namespace tutti;

namespace {

constexpr int side = 72;  // pixels of a drawn image
constexpr const char* shapes[] = {"circle", "cross", "square", "triangle"};

// Returns whether the point is within the shape of radius 1 around the origin.
bool holds(int shape, double x, double y) {
  if (shape == 0) return x * x + y * y < 1;
  if (shape == 1) return std::max(std::abs(x), std::abs(y)) < 1 && std::min(std::abs(x), std::abs(y)) < 0.3;
  if (shape == 2) return std::max(std::abs(x), std::abs(y)) < 0.8;
  return y < 0.7 && y > 2 * std::abs(x) - 1;
}

// Draws a light shape of random size, place, angle and colour on a dark background, with noise.
std::vector<std::uint8_t> draw(int shape, Rng& rng) {
  const auto between = [&](double low, double high) { return low + (high - low) * rng.uniform53(); };
  const double radius = between(0.25, 0.4) * side, turn = between(-0.3, 0.3);
  const double cx = between(0.4, 0.6) * side, cy = between(0.4, 0.6) * side;
  double inside[3], outside[3];
  for (int c = 0; c < 3; ++c) {
    outside[c] = between(20, 90);
    inside[c] = between(140, 235);
  }
  std::vector<std::uint8_t> pixels;
  for (int py = 0; py < side; ++py)
    for (int px = 0; px < side; ++px) {
      const double x = (px - cx) / radius, y = (py - cy) / radius;
      const bool in = holds(shape, x * std::cos(turn) - y * std::sin(turn), x * std::sin(turn) + y * std::cos(turn));
      for (int c = 0; c < 3; ++c)
        pixels.push_back(
            static_cast<std::uint8_t>(std::clamp((in ? inside : outside)[c] + between(-15, 15), 0., 255.)));
    }
  return pixels;
}

void draw_classes(const io::Path& folder, std::int64_t count) {
  for (const bool train : {true, false})
    for (int shape = 0; shape < 4; ++shape) {
      const io::Path place = folder / (train ? "train" : "validation") / shapes[shape];
      io::make_directories(place);
      for (std::int64_t i = 0; i < (train ? count : std::max<std::int64_t>(count / 4, 1)); ++i) {
        Rng rng(train ? 1 : 2, Purpose::user, static_cast<std::uint64_t>(shape), static_cast<std::uint64_t>(i));
        io::replace_file(place / (std::to_string(i) + ".png"), write_png(draw(shape, rng), side, side, 3));
      }
    }
}

MemoryDataset test_images(const io::Path& data) {
  try {
    return load_cifar10(data, Split::test);
  } catch (const DataError&) {
    return load_fashion_mnist(data, Split::test);
  }
}

// Writes test images. The name of each file ends with the class of its image.
void save_test_images(const io::Path& folder, std::int64_t count, const io::Path& data) {
  const MemoryDataset images = test_images(data);
  const Schema& s = images.schema();
  io::make_directories(folder);
  for (std::int64_t i = 0; i < std::min(count, images.size()); ++i) {
    std::string name = s.class_names.at(static_cast<std::size_t>(images.label(i)));
    std::replace_if(
        name.begin(), name.end(), [](char c) { return c == '/' || c == ' '; }, '-');
    io::replace_file(folder / ("test-" + std::to_string(i) + "-" + name + ".png"),
                     write_png(images.image(i), s.height, s.width, s.channels));
  }
}

}  // namespace

int main(int argc, char** argv) {
  return exit_code_of("save_images", [&] {
    const std::int64_t count = argc > 2 ? std::atoll(argv[2]) : 0;
    if (argc < 3 || argc > 4 || count < 1)
      fail<UsageError>("command line", "save_images FOLDER COUNT [DATA]", argc < 3 ? "less" : "something else");
    if (argc == 3)
      draw_classes(argv[1], count);
    else
      save_test_images(argv[1], count, argv[3]);
    return 0;
  });
}
