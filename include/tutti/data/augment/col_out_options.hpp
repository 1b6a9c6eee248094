// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

// The options of ColOut, which col_out.hpp implements.
namespace tutti {

// MosaicML's ColOut: leaves out random rows and columns of pixels, the same ones of all images of a batch, which become
// smaller.
struct ColOut {
  double rows = 0, columns = 0;  // shares that are left out, 0 to 0.9; 0: none

  [[nodiscard]] bool any() const noexcept { return rows > 0 || columns > 0; }
  // Returns how many of `size` rows or columns stay, for a share of them that is left out: rounded down, as in
  // Composer.
  [[nodiscard]] static std::int64_t kept(std::int64_t size, double share) noexcept {
    return static_cast<std::int64_t>((1 - share) * static_cast<double>(size));
  }
  friend bool operator==(const ColOut&, const ColOut&) = default;
};

}  // namespace tutti
