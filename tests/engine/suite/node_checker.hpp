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

// Compares the results of a backend node by node with those of the reference loops in f64. The loops get the inputs
// that the backend itself computed, so errors do not accumulate over a net. A tolerance follows from the op's own sums:
// u_out * |result| for storing it, and u * (4 + 4 sqrt(n) + n / 8) * sum |a * b| for n summands: a random walk, and the
// drift of equal terms, as after an average pool.
class NodeChecker {
 public:
  // states: the running statistics before the run.
  NodeChecker(const Executor& e, const Graph& g, std::vector<double> states, const StepScalars& scalars,
              Comparison& to);

  void run();

 private:
  [[nodiscard]] Operand operand(ValueId v) const;
  [[nodiscard]] Operand result(std::size_t k) const { return operand(node_->outputs[k]); }
  // The name of an output, formatted only for an error.
  struct Label {
    const Node& node;
    std::size_t output;
    const char* part;
    explicit operator std::string() const;
  };
  [[nodiscard]] Label label(std::size_t k, const char* part = "") const { return {*node_, k, part}; }
  // Rounds weights to the values that the op reads.
  [[nodiscard]] NodeDesc described() const;
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

  // Checks ops that are linear in their inputs, with n summands.
  template <class O>
  void linear_op(const O& o, double n) {
    const auto expected = reference(o, in_);
    compare_linear(expected, reference(o, magnitudes()), n);
  }
  void compare_linear(const std::vector<Operand>& expected, const std::vector<Operand>& size, double n);
  void compare_exact(const std::vector<Operand>& expected);
  // y and the slope are 0, or x and 1, plus a share of the normal distribution's tail, which has a rounded exponent. k:
  // which input is x.
  void compare_gelu(const std::vector<Operand>& expected, std::size_t k);

  void check(const op::Normalize& o);
  void check(const op::Relu& o) { compare_exact(reference(o, in_)); }
  void check(const op::ReluBackward& o) { compare_exact(reference(o, in_)); }
  void check(const op::Gelu& o) { compare_gelu(reference(o, in_), 0); }
  void check(const op::GeluBackward& o) { compare_gelu(reference(o, in_), 1); }
  void check(const op::MaxPool& o) { compare_exact(reference(o, in_)); }
  void check(const op::Add& o) { linear_op(o, 1); }
  void check(const op::Bias& o) { linear_op(o, 1); }
  void check(const op::BiasBackward& o) { linear_op(o, static_cast<double>(in_[0].shape.numel() / in_[0].shape[1])); }
  void check(const op::MaxPoolBackward& o) { linear_op(o, o.kernel_h * o.kernel_w); }
  void check(const op::GlobalAvgPool& o) { linear_op(o, static_cast<double>(in_[0].shape[2] * in_[0].shape[3])); }
  void check(const op::GlobalAvgPoolBackward& o) { linear_op(o, 1); }
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

  // Convolutions: computes sums a * b over the positions that `terms` calls, and compares. a may already have the error
  // that `terms` passes.
  template <class F>
  void conv(std::size_t count, double rounding, F&& terms);
  void check(const op::Conv2d& o);
  // off: error of the input, element by element; or null.
  void conv_forward(const op::Window& o, const Operand& x, const Operand* off);
  void check(const op::Conv2dBackwardData& o);
  // skip: elements that are not compared; or null.
  void conv_backward_data(const op::Window& o, const std::vector<char>* skip);
  void check(const op::Conv2dBackwardWeights& o);
  void conv_backward_weights(const op::Window& o, const Operand& x, const Operand* off);

  // For the CUDA backend's own ops: relu(scale * x + bias) and its possible error, rounded as the convolution's input.
  [[nodiscard]] std::pair<Operand, Operand> activated() const;
  void check(const cuda::Conv2dStatistics& o);
  void check(const cuda::Conv2dBackwardWeightsActivated& o);
  void check(const cuda::BatchNormFromSums& o);
  // Returns whether the relu after gamma * (x - mean) * inv_std + beta was active: 1, 0, or 2 if rounding decides. The
  // inputs from `first` on: x, gamma, beta, mean, inv_std.
  [[nodiscard]] std::vector<char> active(std::size_t first) const;
  void check(const cuda::Conv2dBackwardDataNorm& o);
  void check(const cuda::BatchNormBackwardApply& o);

  // Replaces a batch norm's running statistics among its inputs by those before the run.
  void states_of_before();
  void check(const op::BatchNorm& o);
  void check(const op::BatchNormInference& o);
  void check(const op::BatchNormBackward& o);
  void check(const op::Private&);
  template <class O>
  void check(const O&) {}  // custom ops

  const Executor& e_;
  const Graph& g_;
  std::vector<double> states_;
  StepScalars scalars_;
  Comparison& to_;
  const Node* node_ = nullptr;
  std::vector<Operand> in_, states_after_;
  double u_out_ = 0, u_master_ = 0, u_ = 0;
};

}  // namespace tutti::testing
