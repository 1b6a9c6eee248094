// SPDX-License-Identifier: MIT
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>

#include <tutti/backends/cuda/cudnn/graph.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>

namespace tutti::cuda {

// One convolution with everything on which the choice of its kernel depends. Activations are NHWC in memory, weights
// KRSC. `type` is the type of activations, weights and gradients: cuDNN 9 has no engine, for any GPU, that computes an
// f32 gradient of the weights from 16-bit data.
struct ConvProblem {
  std::int64_t rows, in_channels, in_height, in_width, out_channels, out_height, out_width;
  int kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, pad_bottom, pad_right;
  DType type;

  auto operator<=>(const ConvProblem&) const = default;  // NOLINT(modernize-use-nullptr): there is no pointer
};

enum class ConvPass : std::uint8_t { forward, backward_data, backward_weights };

// Example: "bf16 n256 c64 56x56 k64 56x56 f3x3 s1x1 p1,1,1,1"
[[nodiscard]] inline std::string to_string(const ConvProblem& p) {
  const auto pair = [](auto a, auto b) { return std::to_string(a) + "x" + std::to_string(b); };
  return std::string(name_of(p.type)) + " n" + std::to_string(p.rows) + " c" + std::to_string(p.in_channels) + " " +
         pair(p.in_height, p.in_width) + " k" + std::to_string(p.out_channels) + " " + pair(p.out_height, p.out_width) +
         " f" + pair(p.kernel_h, p.kernel_w) + " s" + pair(p.stride_h, p.stride_w) + " p" + std::to_string(p.pad_top) +
         "," + std::to_string(p.pad_left) + "," + std::to_string(p.pad_bottom) + "," + std::to_string(p.pad_right);
}
[[nodiscard]] inline std::string to_string(ConvPass pass) {
  switch (pass) {
    case ConvPass::forward:
      return "forward";
    case ConvPass::backward_data:
      return "backward data";
    case ConvPass::backward_weights:
      return "backward weights";
  }
  return "?";
}

// Throws ShapeError if the output's extents do not follow from the other extents.
inline void require_consistent(const ConvProblem& p) {
  const auto out = [](std::int64_t in, int pads, int kernel, int stride) { return (in + pads - kernel) / stride + 1; };
  const bool positive = p.rows > 0 && p.in_channels > 0 && p.in_height > 0 && p.in_width > 0 && p.out_channels > 0 &&
                        p.kernel_h > 0 && p.kernel_w > 0 && p.stride_h > 0 && p.stride_w > 0;
  const bool pads = p.pad_top >= 0 && p.pad_left >= 0 && p.pad_bottom >= 0 && p.pad_right >= 0;
  if (!positive || !pads) fail<ShapeError>("convolution", "positive extents and strides", to_string(p));
  if (p.in_height + p.pad_top + p.pad_bottom < p.kernel_h || p.in_width + p.pad_left + p.pad_right < p.kernel_w)
    fail<ShapeError>("convolution", "a kernel no larger than the padded image", to_string(p));
  const auto h = out(p.in_height, p.pad_top + p.pad_bottom, p.kernel_h, p.stride_h);
  const auto w = out(p.in_width, p.pad_left + p.pad_right, p.kernel_w, p.stride_w);
  if (h != p.out_height || w != p.out_width)
    fail<ShapeError>("convolution", {"an output of ", h, "x", w}, to_string(p));
}

namespace cudnn {

[[nodiscard]] inline Extents input_of(const ConvProblem& p) { return {p.rows, p.in_channels, p.in_height, p.in_width}; }
[[nodiscard]] inline Extents output_of(const ConvProblem& p) {
  return {p.rows, p.out_channels, p.out_height, p.out_width};
}
[[nodiscard]] inline Extents weights_of(const ConvProblem& p) {
  return {p.out_channels, p.in_channels, p.kernel_h, p.kernel_w};
}
[[nodiscard]] inline ConvGeometry geometry_of(const ConvProblem& p) {
  return {{p.pad_top, p.pad_left}, {p.pad_bottom, p.pad_right}, {p.stride_h, p.stride_w}};
}

// The operands of a convolution's graph: two are read and one is written.
enum ConvOperand : std::int64_t { conv_a = 1, conv_b = 2, conv_out = 3 };

// forward: x, w -> y. backward_data: dy, w -> dx. backward_weights: x, dy -> dw, of type `out`.
[[nodiscard]] inline OpGraph convolution_graph(ConvPass pass, const ConvProblem& p, DType out) {
  require_consistent(p);
  const std::string to = out == p.type ? "" : " to " + std::string(name_of(out));
  OpGraph g("convolution " + to_string(pass) + " " + to_string(p) + to);
  const cudnnDataType_t type = data_type(p.type);
  switch (pass) {
    case ConvPass::forward: {
      const Tensor& x = g.tensor(conv_a, "x", input_of(p), type);
      const Tensor& w = g.tensor(conv_b, "w", weights_of(p), type);
      g.convolution(geometry_of(p), x, w, g.tensor(conv_out, "y", output_of(p), data_type(out)));
      break;
    }
    case ConvPass::backward_data: {
      const Tensor& dy = g.tensor(conv_a, "dy", output_of(p), type);
      const Tensor& w = g.tensor(conv_b, "w", weights_of(p), type);
      g.convolution_backward_data(geometry_of(p), dy, w, g.tensor(conv_out, "dx", input_of(p), data_type(out)));
      break;
    }
    case ConvPass::backward_weights: {
      const Tensor& x = g.tensor(conv_a, "x", input_of(p), type);
      const Tensor& dy = g.tensor(conv_b, "dy", output_of(p), type);
      g.convolution_backward_weights(geometry_of(p), x, dy, g.tensor(conv_out, "dw", weights_of(p), data_type(out)));
      break;
    }
  }
  return g;
}

}  // namespace cudnn
}  // namespace tutti::cuda
