// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/core/shape.hpp>

// Parameters and images by formula, with the same numbers as torchvision_resnet.py.
namespace tutti::testing {

// The 64-bit numbers that belong to a name, with indices from 0: SplitMix64 (Steele et al. 2014), which starts with the
// FNV-1a hash of the name.
class Bits {
 public:
  explicit Bits(std::string_view name) {
    for (const char c : name) hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  [[nodiscard]] std::uint64_t operator()(std::size_t i) const {
    std::uint64_t z = hash_ + (i + 1) * 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // Returns a number in [-1, 1) with 24 bits.
  [[nodiscard]] double uniform(std::size_t i) const { return static_cast<double>((*this)(i) >> 40) * 0x1p-23 - 1; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
};

// Returns the values of a parameter or statistic of a ResNet.
inline std::vector<float> formula_values(const std::string& name, const Shape& shape) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  const bool weight = name.ends_with("weight");
  double middle = 0, width = 0.1;
  if (name.ends_with("running_var")) {
    middle = 1;
    width = 0.25;
  } else if (!name.ends_with("running_mean")) {
    if (shape.rank() > 1)
      width = std::sqrt((shape.rank() == 4 ? 6.0 : 1.0) / static_cast<double>(shape.row_numel()));
    else if (has(".bn3.") || (has(".bn2.") && weight))
      middle = weight ? 0.25 : 0;
    else
      middle = weight ? 1 : 0;
  }
  const Bits bits(name);
  std::vector<float> values(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(middle + width * bits.uniform(i));
  return values;
}

// Returns the bytes of images.
inline std::vector<std::uint8_t> formula_images(std::size_t count) {
  const Bits bits("images");
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(bits(i) >> 56);
  return bytes;
}

}  // namespace tutti::testing
