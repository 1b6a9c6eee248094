// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/graph/ops/op.hpp>

namespace tutti::op {

// dy [, dy2], x, gamma, beta, mean, inv_std [, y] -> dx, dgamma, dbeta [, dresidual]
// The incoming gradient is dy (+ dy2). If there was a relu, it is zero for elements for which the relu was not active:
// the sign of y shows this if there was a residual, otherwise the sign of the recomputed output. dresidual is the
// resulting gradient. frozen: mean and inv_std do not depend on x.
struct BatchNormBackward {
  static constexpr OpInfo info{.name = "batch_norm_backward", .gradient = true};
  bool relu = false, residual = false, second = false, frozen = false;
};

// x, gamma, beta, running_mean, running_var [, residual] -> y, mean, inv_std
// y = relu?(gamma * (x - mean) * inv_std + beta [+ residual]); statistics for each channel over N, H, W.
// running = (1 - momentum) * running + momentum * batch, with the unbiased variance (PyTorch's convention). Ioffe and
// Szegedy 2015. frozen: the running statistics take the place of the batch's, and stay; for backends on the host.
struct BatchNorm {
  static constexpr OpInfo info{.name = "batch_norm"};
  float eps = 1e-5F, momentum = 0.1F;
  bool relu = false, residual = false, frozen = false;

  [[nodiscard]] OpOutputs outputs(const OpInputs& in) const;

  template <class G>
  void gradient(G& g) const {
    // The backward op adds two summands of the gradient itself, which saves a pass over memory.
    auto from = g.incoming(0, 2);
    if (from.empty()) return;
    const bool second = from.size() == 2;
    from.insert(from.end(), {g.input(0), g.input(1), g.input(2), g.output(1), g.output(2)});
    if (relu && residual) from.push_back(g.output(0));
    std::vector<ValueId> to{g.make(0)};
    for (const std::size_t k : {1U, 2U}) to.push_back(g.make_or_scratch(k));
    if (residual) to.push_back(g.make(5));
    g.add_lists(BatchNormBackward{relu, residual, second, frozen}, std::move(from), to);
    if (g.wanted(0)) g.pass(0, to[0]);
    if (residual && g.wanted(5)) g.pass(5, to[3]);
  }
};

// The inputs of BatchNorm -> y, with the running statistics. With saved_inv_std, the mean and inv_std of a training
// batch take the place of the running statistics: this recomputes the output of a BatchNorm.
struct BatchNormInference {
  static constexpr OpInfo info{.name = "batch_norm_inference"};
  float eps = 1e-5F;
  bool relu = false, residual = false;
  bool saved_inv_std = false;

  [[nodiscard]] OpOutputs outputs(const OpInputs& in) const {
    OpOutputs out = BatchNorm{eps, 0, relu, residual}.outputs(in);
    out.resize(1);
    return out;
  }
  template <class G>
  void gradient(G&) const {
    fail<UsageError>("differentiate", "a training graph", "a graph for inference");
  }
};

// dy, x, gamma -> dx, dgamma, dbeta
struct LayerNormBackward {
  static constexpr OpInfo info{.name = "layer_norm_backward", .gradient = true};
  float eps = 1e-6F;
};
// x, gamma [C], beta [C] -> y = gamma * (x - mean) / sqrt(var + eps) + beta, with the statistics of each pixel over its
// channels: PyTorch's LayerNorm of the last axis of NHWC. Ba et al. 2016.
struct LayerNorm {
  static constexpr OpInfo info{.name = "layer_norm"};
  float eps = 1e-6F;

  [[nodiscard]] OpOutputs outputs(const OpInputs& in) const;

  template <class G>
  void gradient(G& g) const {
    const ValueId dy = g.incoming();
    if (dy == no_value) return;
    const ValueId x = g.recompute(0), dx = g.make(0), dgamma = g.make_or_scratch(1), dbeta = g.make_or_scratch(2);
    g.add(LayerNormBackward{eps}, {dy, x, g.input(1)}, {dx, dgamma, dbeta});
    if (g.wanted(0)) g.pass(0, dx);
  }
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION OpOutputs LayerNorm::outputs(const OpInputs& in) const {
  const Shape& x = in.activation(0);
  if (!(eps > 0 && eps < 1)) fail<UsageError>(in.layer(), "an eps over 0 and under 1", eps);
  for (const std::size_t k : {1U, 2U})
    if (x.rank() < 2 || in.parameter(k) != Shape{x[1]})
      fail<ShapeError>(in.layer(), "one value per channel", {to_string(in.shape(k)), " for ", to_string(in[0])});
  return one_output(in, x);
}
#endif

inline OpOutputs BatchNorm::outputs(const OpInputs& in) const {
  const Shape &x = in.activation(0, 4), channels{x[1]};
  for (const std::size_t k : {1U, 2U, 3U, 4U})
    if (in.parameter_or_state(k) != channels)
      fail<ShapeError>(in.layer(), {"per-channel tensors ", to_string(channels)}, to_string(in.shape(k)));
  if (residual) in.need_same(0, 5);
  return {{in.layer(), x},
          {in.layer() + ".mean", channels, false, Precision::master},
          {in.layer() + ".inv_std", channels, false, Precision::master}};
}

}  // namespace tutti::op
