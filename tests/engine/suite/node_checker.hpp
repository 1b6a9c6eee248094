// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/threads/function_ref.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/reference/reference.hpp>

#include "backends/fused_reference.hpp"
#include "engine/comparison.hpp"

namespace tutti::testing {

// Compares the result of each node on a backend with the result of the reference loops in f64. The loops read the
// inputs that the backend itself computed, so errors do not accumulate over a net. The tolerance follows from the op's
// own sums: u_out * |result| for storing the result, plus u * (4 + 4 sqrt(n) + n / 8) * sum |a * b| for n summands. The
// term with sqrt(n) is a random walk. The term n / 8 is the drift of equal summands, which occur after an average pool.
class NodeChecker {
 public:
  // states: the running statistics before the run.
  NodeChecker(const Executor& e, const Graph& g, std::vector<double> states, const StepScalars& scalars,
              Comparison& to);

  void run();

 private:
  [[nodiscard]] Operand operand(ValueId v) const;
  [[nodiscard]] Operand result(std::size_t k) const { return operand(node_->outputs[k]); }
  // Names an output. The name is formatted only if an error needs it.
  struct Label {
    const Node& node;
    std::size_t output;
    const char* part;
    explicit operator std::string() const;
  };
  [[nodiscard]] Label label(std::size_t k, const char* part = "") const { return {*node_, k, part}; }
  // Returns the description of the node that its kernel received.
  [[nodiscard]] NodeDesc described() const;
  // Rounds the weights among the inputs to the precision in which the op reads them.
  void round_weights();
  [[nodiscard]] double sums(double n) const { return u_ * (4 + 4 * std::sqrt(n) + n / 8); }
  [[nodiscard]] double u_of(std::size_t k) const;

  // Runs the reference loops in f64 on the given inputs.
  template <class O>
  std::vector<Operand> reference(const O& o, std::vector<Operand> in) {
    return run_reference(std::move(in), [&](Call& c) { FusedReference().run(o, c); });
  }
  std::vector<Operand> run_reference(std::vector<Operand> in, FunctionRef<void(Call&)> run);
  [[nodiscard]] std::vector<Operand> magnitudes() const;

  // Checks an op that is linear in its inputs and adds n summands.
  template <class O>
  void linear_op(const O& o, double n) {
    const auto expected = reference(o, in_);
    compare_linear(expected, reference(o, magnitudes()), n);
  }
  void compare_linear(const std::vector<Operand>& expected, const std::vector<Operand>& size, double n);
  void compare_exact(const std::vector<Operand>& expected);
  // The exact y is 0 or x, and the exact slope 0 or 1, plus a multiple of the normal distribution's tail. The backend
  // rounds the exponent of the tail. k: the index of the input x.
  void compare_gelu(const std::vector<Operand>& expected, std::size_t k);

  void check(const op::Normalize& o);
  void check(const op::Relu& o) { compare_exact(reference(o, in_)); }
  void check(const op::ReluBackward& o) { compare_exact(reference(o, in_)); }
  void check(const op::Activation& o);
  void check(const op::ActivationBackward& o);
  void check(const op::Multiply& o) { linear_op(o, 1); }
  void check(const op::MultiplyBackward& o) {
    linear_op(o, static_cast<double>(in_[0].shape.numel() / result(0).shape.numel()));
  }
  void check(const op::Concat& o) { compare_exact(reference(o, in_)); }
  void check(const op::ConcatBackward& o) { compare_exact(reference(o, in_)); }
  void check(const op::LayerNorm& o);
  void check(const op::LayerNormBackward& o);
  void check(const op::Dropout& o) { linear_op(o, 1); }
  void check(const op::MaxPool& o) { compare_exact(reference(o, in_)); }
  void check(const op::Add& o) { linear_op(o, 1); }
  void check(const op::Bias& o) { linear_op(o, 1); }
  void check(const op::BiasBackward& o) { linear_op(o, static_cast<double>(in_[0].shape.numel() / in_[0].shape[1])); }
  void check(const op::MaxPoolBackward& o) { linear_op(o, o.kernel_h * o.kernel_w); }
  void check(const op::AvgPool& o) {
    const op::Window& w = o.window;
    linear_op(o, static_cast<double>(o.global() ? in_[0].shape[2] * in_[0].shape[3] : w.kernel_h * w.kernel_w));
  }
  void check(const op::AvgPoolBackward& o) { linear_op(o, o.global() ? 1 : o.window.kernel_h * o.window.kernel_w); }
  void check(const op::Linear& o) {
    round_weights();
    linear_op(o, static_cast<double>(in_[0].shape.row_numel()));
  }
  void check(const op::LinearBackwardData& o) {
    round_weights();
    linear_op(o, static_cast<double>(in_[0].shape.row_numel()));
  }
  void check(const op::LinearBackwardWeights& o) { linear_op(o, static_cast<double>(in_[0].shape[0])); }
  void check(const op::SoftmaxCrossEntropy& o);

  // Checks a convolution: computes the sum of a * b over the pairs that `terms` passes, and compares the result.
  // `terms` also passes the error that `a` may have.
  template <class F>
  void conv(std::size_t count, double rounding, F&& terms);
  void check(const op::Conv2d& o);
  // off: the possible error of each input element; null: the input has no error.
  // Whether the backend computes this op by Winograd's algorithm.
  [[nodiscard]] bool by_winograd() const;
  // Winograd's algorithm computes the outputs of a tile together. The rounding errors of one output follow the products
  // of all pixels that the tile reads, even if its own pixels are small. The lengths of these pixels and of the weights
  // bound the products. Empty for other algorithms.
  struct TileErrors {
    std::vector<double> around, weights;  // of each pixel; of each output
    [[nodiscard]] double of(std::int64_t pixel, std::int64_t output) const {
      return around[static_cast<std::size_t>(pixel)] * weights[static_cast<std::size_t>(output)];
    }
  };
  // x: what the convolution reads. by_outputs: the weights of a result are those of an output channel, otherwise of an
  // input channel.
  [[nodiscard]] TileErrors tile_errors(const Operand& x, std::int64_t reach, bool by_outputs) const;
  void conv_forward(const op::Window& o, const Operand& x, const Operand* off, int groups = 1);
  void check(const op::Conv2dBackwardData& o);
  // skip: marks the elements that are not compared; null: all elements are compared.
  void conv_backward_data(const op::Window& o, const std::vector<char>* skip, int groups = 1);
  void check(const op::Conv2dBackwardWeights& o);
  void conv_backward_weights(const op::Window& o, const Operand& x, const Operand* off, int groups = 1);

  // For ops that only the CUDA backend has: returns relu(scale * x + bias), which is the convolution's input, and the
  // possible rounding error of each element.
  [[nodiscard]] std::pair<Operand, Operand> activated() const;
  void check(const cuda::Conv2dStatistics& o);
  void check(const cuda::Conv2dBackwardWeightsActivated& o);
  void check(const cuda::BatchNormFromSums& o);
  // Returns for each element whether the relu after gamma * (x - mean) * inv_std + beta was active: 1 for yes, 0 for
  // no, 2 if rounding decides. The op's inputs from index `first` on must be x, gamma, beta, mean and inv_std.
  [[nodiscard]] std::vector<char> active(std::size_t first) const;
  void check(const cuda::Conv2dBackwardDataNorm& o);
  void check(const cuda::BatchNormBackwardApply& o);
  void check(const cuda::BatchNormWithMask& o);
  void check(const cuda::BatchNormBackwardFromMask& o);
  void check(const cuda::BatchNormOfShortcut& o);
  void check(const cuda::BatchNormAddShortcut& o);
  void check(const cuda::BatchNormBackwardAddShortcut& o);
  void check(const cuda::BatchNormBackwardOfShortcut&) {}  // checked with the op that writes its sums
  // Output 3 must have a bit for each value of output 0, the result, that tells whether the value is positive.
  void check_mask();

  // In the inputs of a batch norm, replaces the running statistics by their values before the run.
  void states_of_before();
  void check(const op::BatchNorm& o);
  void check(const op::BatchNormInference& o);
  void check(const op::BatchNormBackward& o);
  void check(const op::Private&);
  template <class O>
  void check(const O&) {}  // custom ops are not checked

  const Executor& e_;
  const Graph& g_;
  std::vector<double> states_;
  StepScalars scalars_;
  Comparison& to_;
  const Node* node_ = nullptr;
  std::vector<Operand> in_, states_after_;
  double u_out_ = 0, u_master_ = 0, u_ = 0;
  // Of batch norms: the relative error of the residual, and whether the output, or the gradient of the residual, is
  // defined.
  double u_residual_ = 0;
  bool written_ = true;
};

}  // namespace tutti::testing
