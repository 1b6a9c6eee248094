// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <tutti/backends/cuda/cudnn/conv_problem.hpp>
#include <tutti/backends/cuda/launcher.hpp>
#include <tutti/backends/cuda/ops/weight_gradients.hpp>
#include <tutti/backends/cuda/workspace.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/graph/ops.hpp>

// Maps a convolution of the graph to a convolution of the library: pads the channels to whole vectors, and reorders the
// weights and their gradient.
namespace tutti::cuda {

// The numbers of channels that the library gets: whole vectors of 16 bytes. Images (the input of the stem) get 4
// channels, for which cuDNN has kernels in f16. In bf16 they get 8: otherwise cuDNN would pad them to 8 in every pass.
[[nodiscard]] constexpr std::int64_t padded_out_channels(DType t, std::int64_t channels) noexcept {
  const std::int64_t unit = vector_of(t);
  return (channels + unit - 1) / unit * unit;
}
[[nodiscard]] constexpr std::int64_t padded_in_channels(DType t, std::int64_t channels) noexcept {
  return channels <= 4 && t != DType::bf16 ? 4 : padded_out_channels(t, channels);
}

// Describes packed weights: OIHW f32 -> [padded O, H, W, padded I] in the compute type. Forward and backward passes
// read the same form.
struct PackedWeights {
  std::int64_t rows, columns, taps, padded_rows, padded_columns;

  PackedWeights(DType t, const Shape& w)
      : rows(w[0]),
        columns(w[1]),
        taps(w[2] * w[3]),
        padded_rows(padded_out_channels(t, w[0])),
        padded_columns(padded_in_channels(t, w[1])) {}
  // Returns true if the master weights already have this form, so that no copy is needed.
  [[nodiscard]] bool is_master(DType t) const {
    return t == DType::f32 && taps == 1 && padded_rows == rows && padded_columns == columns;
  }
  [[nodiscard]] std::int64_t count() const { return padded_rows * taps * padded_columns; }
};

// A prepared convolution of a plan: the problem with its padded channels, and the offsets in the workspace.
struct PreparedConv {
  ConvPass pass;
  ConvProblem problem;
  std::int64_t in_channels, out_channels;                            // channels of the graph's activations
  std::int64_t columns;                                              // input channels of the graph's weights
  std::size_t a_offset = 0, b_offset = 0, out_offset = 0, rest = 0;  // positions in the workspace
  std::size_t workspace_bytes = 0;

  // x, w, y: shapes of the convolution in the forward direction. x may already have the padded channels.
  PreparedConv(ConvPass which, const op::Window& o, DType t, const Shape& x, const Shape& w, const Shape& y)
      : pass(which),
        problem{x[0],
                padded_in_channels(t, w[1]),
                x[2],
                x[3],
                padded_out_channels(t, w[0]),
                y[2],
                y[3],
                o.kernel_h,
                o.kernel_w,
                o.stride,
                o.stride,
                o.padding,
                o.padding,
                o.padding,
                o.padding,
                t},
        in_channels(x[1]),
        out_channels(w[0]),
        columns(w[1]) {
    if (in_channels != columns && in_channels != problem.in_channels)
      fail<ShapeError>("convolution", {columns, " channels, as the weights have"}, to_string(x));
  }

  [[nodiscard]] bool pads_in() const { return problem.in_channels != in_channels; }
  [[nodiscard]] bool pads_out() const { return problem.out_channels != out_channels; }
  [[nodiscard]] std::size_t taps() const {
    return static_cast<std::size_t>(problem.kernel_h) * static_cast<std::size_t>(problem.kernel_w);
  }
  // Returns true if the library's gradient differs in type, order or size from the f32 gradient that the graph expects.
  [[nodiscard]] bool unpacks() const {
    return problem.type != DType::f32 || taps() > 1 || problem.in_channels != columns || pads_out();
  }
  // Returns the form in which the library writes the gradient of the weights.
  [[nodiscard]] WeightGradients::Form gradient_form() const {
    return {out_channels, static_cast<int>(columns), static_cast<int>(taps()), static_cast<int>(problem.in_channels),
            static_cast<std::size_t>(problem.out_channels * problem.in_channels) * taps() * size_of(problem.type)};
  }
  [[nodiscard]] std::int64_t in_pixels() const { return problem.rows * problem.in_height * problem.in_width; }
  [[nodiscard]] std::int64_t out_pixels() const { return problem.rows * problem.out_height * problem.out_width; }

  // Assigns the offsets in the workspace. library: bytes that the library itself needs there.
  void lay_out(std::size_t library) {
    const std::size_t unit = size_of(problem.type);
    const std::size_t x =
        pads_in() ? static_cast<std::size_t>(in_pixels() * problem.in_channels) * unit : std::size_t{0};
    const std::size_t y =
        pads_out() ? static_cast<std::size_t>(out_pixels() * problem.out_channels) * unit : std::size_t{0};
    std::size_t at = 0;
    const auto take = [&](std::size_t bytes) { return std::exchange(at, at + Workspace::round_up(bytes)); };
    switch (pass) {
      case ConvPass::forward:
        a_offset = take(x);
        out_offset = take(y);
        break;
      case ConvPass::backward_data:
        a_offset = take(y);
        out_offset = take(x);
        break;
      case ConvPass::backward_weights:
        a_offset = take(x);
        b_offset = take(y);
        break;
    }
    rest = at;
    workspace_bytes = at + library;
  }
};

// The conversions before and after the library's convolution.
class ConvSteps {
 public:
  ConvSteps(Launcher& l, const Workspace& w, const PreparedConv& k) : l_(l), w_(w), k_(k), p_(k.problem) {}

  // Copies pixels of `old` channels to pixels of `now` channels.
  void change(const void* from, void* to, std::int64_t old, std::int64_t now, std::int64_t pixels) const {
    l_.op(p_.type, OpKernel::change_channels, l_.blocks(pixels * now), Launcher::block, from, to, static_cast<int>(old),
          static_cast<int>(now), pixels);
  }
  // Returns the address of the activation with padded channels: of a copy at `offset` in the workspace if padding is
  // needed, otherwise of the graph's own buffer.
  [[nodiscard]] const void* padded_in(const void* x, std::size_t offset) const {
    if (!k_.pads_in()) return x;
    change(x, w_.at<void>(offset), k_.in_channels, p_.in_channels, k_.in_pixels());
    return w_.at<void>(offset);
  }
  [[nodiscard]] const void* padded_out(const void* y, std::size_t offset) const {
    if (!k_.pads_out()) return y;
    change(y, w_.at<void>(offset), k_.out_channels, p_.out_channels, k_.out_pixels());
    return w_.at<void>(offset);
  }
  // Returns the address to which the library writes the gradient of the weights.
  [[nodiscard]] void* gradient(WeightGradients& g, void* dw) const {
    return k_.unpacks() ? g.place(p_.type, k_.gradient_form(), dw) : dw;
  }

 private:
  Launcher& l_;
  const Workspace& w_;
  const PreparedConv& k_;
  const ConvProblem& p_;
};

// Runs a prepared convolution. A gradient of weights is complete only after g.finish(). C: the library's class. It asks
// for the stream after its own kernels have been started, as Device::stream() demands.
template <class C>
void run_convolution(C& library, Launcher& l, const Workspace& w, WeightGradients& g, const PreparedConv& k,
                     const Call& c) {
  const ConvProblem& p = k.problem;
  const ConvSteps steps(l, w, k);
  void* const out = c.out[0].data;
  void* const room = w.at<void>(k.out_offset);
  void* const rest = w.at<void>(k.rest);
  switch (k.pass) {
    case ConvPass::forward: {
      const void* const x = steps.padded_in(c.in[0].data, k.a_offset);
      library.run(k.pass, p, x, c.in[1].data, k.pads_out() ? room : out, rest, l.device().stream());
      if (k.pads_out()) steps.change(room, out, p.out_channels, k.out_channels, k.out_pixels());
      break;
    }
    case ConvPass::backward_data: {
      const void* const dy = steps.padded_out(c.in[0].data, k.a_offset);
      library.run(k.pass, p, dy, c.in[1].data, k.pads_in() ? room : out, rest, l.device().stream());
      if (k.pads_in()) steps.change(room, out, p.in_channels, k.in_channels, k.in_pixels());
      break;
    }
    case ConvPass::backward_weights: {
      const void* const x = steps.padded_in(c.in[0].data, k.a_offset);
      const void* const dy = steps.padded_out(c.in[1].data, k.b_offset);
      void* const dw = steps.gradient(g, out);
      library.run(k.pass, p, x, dy, dw, rest, l.device().stream());
      break;
    }
  }
}

}  // namespace tutti::cuda
