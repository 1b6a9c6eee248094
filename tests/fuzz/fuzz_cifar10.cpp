// SPDX-License-Identifier: MIT
// Reads any bytes as a CIFAR-10 batch file. The result is either DataError or images with labels of 0 to 9.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include <tutti/datasets/cifar10/cifar10.hpp>

namespace fuzz::cifar10 {

int run(const std::uint8_t* data, std::size_t size) {
  for (const bool strict : {false, true}) {
    std::vector<std::uint8_t> pixels;
    std::vector<std::int32_t> labels;
    try {
      tutti::cifar10::parse(std::span(data, size), "fuzz", strict, pixels, labels);
    } catch (const tutti::DataError&) {
      continue;
    }
    if (labels.size() * 3073 != size || pixels.size() != labels.size() * 3072) std::abort();
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] < 0 || labels[i] > 9) std::abort();
      if (pixels[i * 3072 + 3 * 5 + 2] != data[i * 3073 + 1 + 2048 + 5]) std::abort();
    }
  }
  return 0;
}

}  // namespace fuzz::cifar10
