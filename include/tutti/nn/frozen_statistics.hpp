// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/math.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/tensor/view.hpp>

// Batch norms that use their running statistics in training too, and do not change them: for fine-tuning with few
// images or small batches.
namespace tutti {

namespace detail {

// y = relu?(a * x + b [+ residual]), with a = gamma / sqrt(running_var + eps) and b = beta - running_mean * a. The
// inputs are those of op::BatchNorm. Activations are [N, H, W, C] in memory.
class FrozenNorm {
 public:
  FrozenNorm(float eps, bool relu, bool residual) : eps_(eps), relu_(relu), residual_(residual) {}

  // x, gamma, beta, running_mean, running_var [, residual] -> y
  void forward(std::span<const TensorRef> in, std::span<const TensorRef> out) const {
    const Channels c = channels(in);
    with_float_type(in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      const T* const x = in[0].as<T>();
      const T* const res = residual_ ? in[5].as<T>() : nullptr;
      T* const y = out[0].as<T>();
      const auto count = static_cast<std::size_t>(in[0].shape.numel());
      for (std::size_t at = 0; at < count; at += c.a.size())
        for (std::size_t k = 0; k < c.a.size(); ++k) {
          float v = static_cast<float>(x[at + k]) * c.a[k] + c.b[k];
          if (res != nullptr) v += static_cast<float>(res[at + k]);
          y[at + k] = static_cast<T>(relu_ && !(v > 0) ? 0.F : v);
        }
    });
  }
  // dy, the inputs of forward(), y -> dx, dgamma, dbeta, two that are not written [, dresidual]
  void backward(std::span<const TensorRef> in, std::span<const TensorRef> out) const {
    const Channels c = channels(in.subspan(1));
    std::vector<double> of_gamma(c.a.size()), of_beta(c.a.size());
    with_float_type(in[1].dtype, [&](auto zero) {
      using T = decltype(zero);
      const T *const dy = in[0].as<T>(), *const x = in[1].as<T>(), *const y = in[residual_ ? 7 : 6].as<T>();
      T* const dx = out[0].as<T>();
      T* const dres = residual_ ? out[5].as<T>() : nullptr;
      const auto count = static_cast<std::size_t>(in[1].shape.numel());
      for (std::size_t at = 0; at < count; at += c.a.size())
        for (std::size_t k = 0; k < c.a.size(); ++k) {
          const bool passes = !relu_ || static_cast<float>(y[at + k]) > 0;
          const float d = passes ? static_cast<float>(dy[at + k]) : 0.F;
          dx[at + k] = static_cast<T>(d * c.a[k]);
          if (dres != nullptr) dres[at + k] = static_cast<T>(d);
          of_beta[k] += static_cast<double>(d);
          of_gamma[k] += static_cast<double>(d * (static_cast<float>(x[at + k]) - c.mean[k]) * c.inv[k]);
        }
    });
    write(of_gamma, out[1]);
    write(of_beta, out[2]);
  }

 private:
  struct Channels {
    std::vector<float> a, b, mean, inv;
  };

  [[nodiscard]] static std::vector<float> read(const TensorRef& from) {
    std::vector<float> values(static_cast<std::size_t>(from.shape.numel()));
    with_float_type(from.dtype, [&](auto zero) {
      const auto* const v = from.as<decltype(zero)>();
      for (std::size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>(v[k]);
    });
    return values;
  }
  static void write(const std::vector<double>& values, const TensorRef& to) {
    with_float_type(to.dtype, [&](auto zero) {
      auto* const v = to.as<decltype(zero)>();
      for (std::size_t k = 0; k < values.size(); ++k) v[k] = static_cast<decltype(zero)>(values[k]);
    });
  }
  [[nodiscard]] Channels channels(std::span<const TensorRef> in) const {
    const std::vector<float> gamma = read(in[1]), beta = read(in[2]), variance = read(in[4]);
    Channels c{gamma, beta, read(in[3]), gamma};
    for (std::size_t k = 0; k < gamma.size(); ++k) {
      c.inv[k] = static_cast<float>(1 / math::sqrt(static_cast<double>(variance[k]) + static_cast<double>(eps_)));
      c.a[k] = gamma[k] * c.inv[k];
      c.b[k] = beta[k] - c.mean[k] * c.a[k];
    }
    return c;
  }

  float eps_;
  bool relu_, residual_;
};

[[nodiscard]] inline std::shared_ptr<const CustomOp> frozen_norm(const op::BatchNorm& bn) {
  auto op = std::make_shared<CustomOp>();
  const FrozenNorm norm(bn.eps, bn.relu, bn.residual);
  op->name = "batch norm with frozen statistics";
  op->shape = [](const CustomOp::Shapes& in) { return CustomOp::Shapes{in.at(0)}; };
  op->forward["host"] = [norm](std::span<const TensorRef> in, std::span<const TensorRef> out) {
    norm.forward(in, out);
  };
  op->backward["host"] = [norm](std::span<const TensorRef> in, std::span<const TensorRef> out) {
    norm.backward(in, out);
  };
  return op;
}

}  // namespace detail

// Changes a recorded model: its batch norms use their running statistics in training too, and training does not change
// these. Names and shapes of the tensors stay. Returns the number of batch norms. For backends on the host; such a
// batch norm runs on one thread.
inline std::size_t freeze_statistics(Graph& g) {
  std::size_t frozen = 0;
  for (Node& n : g.nodes) {
    const auto* const bn = std::get_if<op::BatchNorm>(&n.op);
    if (bn == nullptr) continue;
    const std::shared_ptr<const CustomOp> with = detail::frozen_norm(*bn);
    n.op = Op(std::in_place_type<op::Custom>, op::Custom{with.get()});
    n.owned = with;
    n.outputs.resize(1);
    ++frozen;
  }
  return frozen;
}

}  // namespace tutti
