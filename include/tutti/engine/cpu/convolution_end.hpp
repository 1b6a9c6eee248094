// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/graph/ops.hpp>

// What follows a convolution in a net for inference with folded batch norms: a bias, and possibly a sum and a
// relu. engine/add_ends.hpp makes one op of them; its kernel is in cpu/ended_convolution.hpp.
namespace tutti::cpu {

struct ConvolutionEnd {
  bool residual = false, relu = false;
};

// x, w, bias [O] [, residual] -> y = relu?(convolution(x, w) + bias [+ residual])
struct EndedConvolution : ConvolutionEnd {
  static constexpr OpInfo info{.name = "conv2d_end", .weights = true};
  Op convolution;  // op::Conv2d
};

// A kernel of a convolution that computes the end too, before it rounds the sums.
class TakesEnd {
 public:
  TakesEnd() = default;
  TakesEnd(const TakesEnd&) = delete;
  TakesEnd& operator=(const TakesEnd&) = delete;
  virtual ~TakesEnd() = default;
  // Called before anything else. The calls then have the inputs of EndedConvolution.
  virtual void take_end(const ConvolutionEnd& end) = 0;
};

struct Band {  // The lines first <= line < end of one image's output.
  std::int64_t image, first, end;
};

// A kernel of a convolution that computes bands of lines in the tasks of Phase::whole.
class ComputesBands {
 public:
  ComputesBands() = default;
  ComputesBands(const ComputesBands&) = delete;
  ComputesBands& operator=(const ComputesBands&) = delete;
  virtual ~ComputesBands() = default;
  [[nodiscard]] virtual Band band(int task, int tasks) const = 0;
};

}  // namespace tutti::cpu
