// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <variant>

#include <tutti/core/shape.hpp>

namespace tutti {

struct CustomOp;  // graph/custom.hpp

// What a graph records: small structs with the attributes of an op. Operands are listed as "in -> out"; shapes are
// logical (activations NCHW, convolution weights OIHW, linear weights OI). The meaning of each op is its loop in
// engine/reference. What is not small an op refers to, and Node::owned keeps it: then an Op is copied as plain bytes,
// which costs a compiler much less than a table of functions.
namespace op {

// image u8 [N,C,H,W] -> x: (image - mean[c]) * inv_std[c]
struct Normalize {
  static constexpr std::string_view name = "normalize";
  std::span<const float> mean, inv_std;
};

struct Window {
  int kernel_h = 3, kernel_w = 3, stride = 1, padding = 1;
  [[nodiscard]] std::int64_t out_h(std::int64_t h) const { return (h + 2 * padding - kernel_h) / stride + 1; }
  [[nodiscard]] std::int64_t out_w(std::int64_t w) const { return (w + 2 * padding - kernel_w) / stride + 1; }
};

struct Conv2d : Window {  // x, w -> y
  static constexpr std::string_view name = "conv2d";
};
struct Conv2dBackwardData : Window {  // dy, w -> dx
  static constexpr std::string_view name = "conv2d_backward_data";
};
struct Conv2dBackwardWeights : Window {  // x, dy -> dw
  static constexpr std::string_view name = "conv2d_backward_weights";
};

// x, gamma, beta, running_mean, running_var [, residual] -> y, mean, inv_std
// y = relu?(gamma * (x - mean) * inv_std + beta [+ residual]); statistics per channel over N, H, W.
// running = (1 - momentum) * running + momentum * batch, with the unbiased variance (PyTorch's convention). Ioffe and
// Szegedy 2015.
struct BatchNorm {
  static constexpr std::string_view name = "batch_norm";
  float eps = 1e-5F, momentum = 0.1F;
  bool relu = false, residual = false;
};
// The same inputs -> y, with the running statistics. With saved_inv_std the last two are a training batch's mean and
// inv_std instead: that computes the output of a BatchNorm again.
struct BatchNormInference {
  static constexpr std::string_view name = "batch_norm_inference";
  float eps = 1e-5F;
  bool relu = false, residual = false;
  bool saved_inv_std = false;
};
// dy [, dy2], x, gamma, beta, mean, inv_std [, y] -> dx, dgamma, dbeta [, dresidual]
// The incoming gradient is dy (+ dy2), masked where the forward relu was not active: by y where there was a residual,
// else by the sign of the recomputed output. dresidual is the masked gradient.
struct BatchNormBackward {
  static constexpr std::string_view name = "batch_norm_backward";
  bool relu = false, residual = false, second = false;
};

struct Relu {  // x -> y
  static constexpr std::string_view name = "relu";
};
struct ReluBackward {  // dy, y -> dx
  static constexpr std::string_view name = "relu_backward";
};
// x -> x * Phi(x), where Phi is the normal distribution's: PyTorch's nn.GELU(), not its approximation by tanh. What is
// far from zero comes out as relu's would, infinities too. Hendrycks and Gimpel 2016.
struct Gelu {
  static constexpr std::string_view name = "gelu";
};
struct GeluBackward {  // dy, x -> dx
  static constexpr std::string_view name = "gelu_backward";
};
struct Add {  // a, b -> a + b
  static constexpr std::string_view name = "add";
};
struct Bias {  // x, b [C] -> y
  static constexpr std::string_view name = "bias";
};
struct BiasBackward {  // dy -> db
  static constexpr std::string_view name = "bias_backward";
};

struct MaxPool : Window {  // x -> y, which (u8: index in the window)
  static constexpr std::string_view name = "max_pool";
};
struct MaxPoolBackward : Window {  // dy, which -> dx
  static constexpr std::string_view name = "max_pool_backward";
};
struct GlobalAvgPool {  // x [N,C,H,W] -> y [N,C,1,1]
  static constexpr std::string_view name = "global_avg_pool";
};
struct GlobalAvgPoolBackward {  // dy -> dx
  static constexpr std::string_view name = "global_avg_pool_backward";
};

struct Linear {  // x [N,I], w [O,I], b [O] -> y [N,O]
  static constexpr std::string_view name = "linear";
};
struct LinearBackwardData {  // dy, w -> dx
  static constexpr std::string_view name = "linear_backward_data";
};
struct LinearBackwardWeights {  // x, dy -> dw, db
  static constexpr std::string_view name = "linear_backward_weights";
};

// The label of rows that only fill a batch, such as samples that could not be read.
inline constexpr std::int32_t ignored_label = -1;

// logits [N,K], labels i32 [N] -> metrics f64 [4] (sum of losses, top-1 hits, top-k hits, rows) [, dlogits]
// dlogits = loss_scale * (softmax - target) / global batch, with target smoothed by label_smoothing / K. The loss in
// the metrics is the cross entropy against the smoothed target. A row with the label ignored_label is a row without
// loss, hits and gradient: who wants means over the others takes it off the rows. Any other label outside 0..K-1 is a
// DataError.
struct SoftmaxCrossEntropy {
  static constexpr std::string_view name = "softmax_cross_entropy";
  float label_smoothing = 0;
  int top_k = 5;
  bool backward = false;
};

// Optional ops: only a backend's lower() makes them (graph/lower.hpp), of a differentiated graph; no other backend
// meets them. With a = relu(scale[c] * x + bias[c]), what batch norm and relu make of x, which then need not be in
// memory:

// x, w [, scale, bias] -> y, sum, square_sum
// y = conv(activate ? a : x, w), and per channel the sums over N, H and W of y and of its squares.
struct Conv2dStatistics : Window {
  static constexpr std::string_view name = "conv2d_statistics";
  bool activate = false;
};
// x, dy, scale, bias -> dw: of conv(a, w).
struct Conv2dBackwardWeightsActivated : Window {
  static constexpr std::string_view name = "conv2d_backward_weights_activated";
};
// x, gamma, beta, running_mean, running_var, sum, square_sum [, residual] -> [y,] mean, inv_std [, scale, bias]
// A BatchNorm whose statistics are known but for their last step. With `output` y as BatchNorm's, else scale and bias.
struct BatchNormFromSums {
  static constexpr std::string_view name = "batch_norm_from_sums";
  float eps = 1e-5F, momentum = 0.1F;
  bool relu = false, residual = false, output = true;
};
// dy, w, x, gamma, beta, mean, inv_std -> g, dgamma, dbeta, from_g, from_x, constant
// Back through conv and relu(batch_norm(x)) to what BatchNormBackwardApply needs. g is the gradient of relu's output;
// where the relu was not active it may be anything.
struct Conv2dBackwardDataNorm : Window {
  static constexpr std::string_view name = "conv2d_backward_data_norm";
};
// g, x, gamma, beta, mean, inv_std, from_g, from_x, constant -> dx
// dx = from_g * (g where the relu was active, else 0) + from_x * x + constant, factors per channel.
struct BatchNormBackwardApply {
  static constexpr std::string_view name = "batch_norm_backward_apply";
};

// The user's own op and its gradient.
struct Custom {
  static constexpr std::string_view name = "custom";
  const CustomOp* def = nullptr;
};
struct CustomBackward {
  static constexpr std::string_view name = "custom_backward";
  const CustomOp* def = nullptr;
};

}  // namespace op

// Those of a user's own first: what is behind them every backend has a kernel for.
using Op = std::variant<op::Custom, op::CustomBackward, op::Normalize, op::Conv2d, op::Conv2dBackwardData,
                        op::Conv2dBackwardWeights, op::BatchNorm, op::BatchNormInference, op::BatchNormBackward,
                        op::Relu, op::ReluBackward, op::Gelu, op::GeluBackward, op::Add, op::Bias, op::BiasBackward,
                        op::MaxPool, op::MaxPoolBackward, op::GlobalAvgPool, op::GlobalAvgPoolBackward, op::Linear,
                        op::LinearBackwardData, op::LinearBackwardWeights, op::SoftmaxCrossEntropy,
                        op::Conv2dStatistics, op::Conv2dBackwardWeightsActivated, op::BatchNormFromSums,
                        op::Conv2dBackwardDataNorm, op::BatchNormBackwardApply>;
static_assert(std::is_trivially_copyable_v<Op>);

// f(the op). A switch: std::visit would compile a function an op and a table of them for each f.
template <class F>
decltype(auto) visit_op(const Op& o, F&& f) {
  static_assert(std::variant_size_v<Op> == 29);
  // clang-format off
  switch (o.index()) {
    case 0: return f(*std::get_if<0>(&o));
    case 1: return f(*std::get_if<1>(&o));
    case 2: return f(*std::get_if<2>(&o));
    case 3: return f(*std::get_if<3>(&o));
    case 4: return f(*std::get_if<4>(&o));
    case 5: return f(*std::get_if<5>(&o));
    case 6: return f(*std::get_if<6>(&o));
    case 7: return f(*std::get_if<7>(&o));
    case 8: return f(*std::get_if<8>(&o));
    case 9: return f(*std::get_if<9>(&o));
    case 10: return f(*std::get_if<10>(&o));
    case 11: return f(*std::get_if<11>(&o));
    case 12: return f(*std::get_if<12>(&o));
    case 13: return f(*std::get_if<13>(&o));
    case 14: return f(*std::get_if<14>(&o));
    case 15: return f(*std::get_if<15>(&o));
    case 16: return f(*std::get_if<16>(&o));
    case 17: return f(*std::get_if<17>(&o));
    case 18: return f(*std::get_if<18>(&o));
    case 19: return f(*std::get_if<19>(&o));
    case 20: return f(*std::get_if<20>(&o));
    case 21: return f(*std::get_if<21>(&o));
    case 22: return f(*std::get_if<22>(&o));
    case 23: return f(*std::get_if<23>(&o));
    case 24: return f(*std::get_if<24>(&o));
    case 25: return f(*std::get_if<25>(&o));
    case 26: return f(*std::get_if<26>(&o));
    case 27: return f(*std::get_if<27>(&o));
    default: return f(std::get<28>(o));
  }
  // clang-format on
}

[[nodiscard]] inline std::string_view name_of(const Op& o) {
  return visit_op(o, [](const auto& op) { return op.name; });
}

// Whether the op reads weights that a backend may want in a form of its own: its second input.
[[nodiscard]] inline bool reads_weights(const Op& o) {
  return std::holds_alternative<op::Conv2d>(o) || std::holds_alternative<op::Conv2dBackwardData>(o) ||
         std::holds_alternative<op::Linear>(o) || std::holds_alternative<op::LinearBackwardData>(o) ||
         std::holds_alternative<op::Conv2dStatistics>(o) || std::holds_alternative<op::Conv2dBackwardDataNorm>(o);
}

}  // namespace tutti
