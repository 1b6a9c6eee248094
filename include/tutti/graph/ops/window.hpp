// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/graph/ops/op.hpp>

namespace tutti::op {

// The sliding window of convolutions and pools.
struct Window {
  int kernel_h = 3, kernel_w = 3, stride = 1, padding = 1;
  [[nodiscard]] std::int64_t out_h(std::int64_t h) const { return (h + 2 * padding - kernel_h) / stride + 1; }
  [[nodiscard]] std::int64_t out_w(std::int64_t w) const { return (w + 2 * padding - kernel_w) / stride + 1; }
  // x [1,C,H,W] -> [1,channels,H',W']; throws ShapeError if the window does not fit.
  [[nodiscard]] Shape over(const std::string& layer, const Shape& x, std::int64_t channels) const;
};

inline Shape Window::over(const std::string& layer, const Shape& x, std::int64_t channels) const {
  if (kernel_h < 1 || kernel_w < 1 || stride < 1 || padding < 0)
    fail<ShapeError>(layer, "a kernel and stride of 1 or more",
                     {"kernel ", kernel_h, "x", kernel_w, ", stride ", stride});
  if (x[2] + 2 * padding < kernel_h || x[3] + 2 * padding < kernel_w)
    fail<ShapeError>(layer, "an image at least as large as the kernel", to_string(x));
  return Shape{1, channels, out_h(x[2]), out_w(x[3])};
}

}  // namespace tutti::op
