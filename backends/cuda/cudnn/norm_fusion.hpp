// SPDX-License-Identifier: MIT
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <string>
#include <vector>

#include <tutti/backends/cuda/cudnn/fusion.hpp>
#include <tutti/backends/cuda/cudnn/graph.hpp>
#include <tutti/core/dtype.hpp>

namespace tutti::cuda {

// The activations of a batch norm, NHWC in memory. cuDNN requires channels in multiples of 8 (f16, bf16) or 4 (f32).
struct NormProblem {
  std::int64_t rows, channels, height, width;
  DType type;

  [[nodiscard]] cudnn::Extents extents() const { return {rows, channels, height, width}; }
};
[[nodiscard]] inline std::string to_string(const NormProblem& p) {
  return std::string(name_of(p.type)) + " n" + std::to_string(p.rows) + " c" + std::to_string(p.channels) + " " +
         std::to_string(p.height) + "x" + std::to_string(p.width);
}

// y = relu?(batch_norm(x) [+ residual]) of a training batch, with mean and inv_std for the backward pass. cuDNN 8.7 and
// later.
struct BatchNormAddRelu {
  NormProblem problem;
  bool residual = false, relu = true;
  float epsilon = 1e-5F, momentum = 0.1F;

  struct Operands {
    const void* x;
    const float *scale, *bias;
    const void* residual;                    // null without one
    float *running_mean, *running_variance;  // updated in place, with the unbiased variance
    void* y;
    float *mean, *inv_std;
  };
  [[nodiscard]] DType dtype() const { return problem.type; }
  [[nodiscard]] std::string name() const {
    return std::string("batch-norm") + (residual ? "-add" : "") + (relu ? "-relu " : " ") + to_string(problem);
  }
  [[nodiscard]] cudnn::OpGraph graph() const {
    using namespace cudnn;
    OpGraph g(name());
    const Extents e = problem.extents(), channels = per_channel(problem.channels);
    const cudnnDataType_t type = data_type(problem.type);
    const auto value = [&](std::int64_t uid, const char* name) -> const Descriptor& {
      return g.tensor(uid, name, channels, CUDNN_DATA_FLOAT).descriptor;
    };
    // Values inside the graph are f32, so only y is rounded, after the addition and the relu.
    const auto next = [&](const char* name, bool last) -> const Tensor& {
      return last ? g.tensor(9, "y", e, type) : g.inner(name, e);
    };
    const Tensor& normal = next("batch norm", !residual && !relu);
    Descriptor& op = g.operation(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR, "batch norm");
    op.set(attr::norm_mode, CUDNN_BATCH_NORM).set(attr::norm_phase, CUDNN_NORM_FWD_TRAINING);
    op.set(attr::norm_x, g.tensor(1, "x", e, type).descriptor).set(attr::norm_y, normal.descriptor);
    op.set(attr::norm_scale, value(2, "scale")).set(attr::norm_bias, value(3, "bias"));
    op.set(attr::norm_old_mean, value(5, "running mean")).set(attr::norm_old_variance, value(6, "running variance"));
    op.set(attr::norm_new_mean, value(7, "new running mean"));
    op.set(attr::norm_new_variance, value(8, "new running variance"));
    op.set(attr::norm_mean, value(10, "mean")).set(attr::norm_inv_std, value(11, "inv_std"));
    op.set(attr::norm_epsilon, g.scalar(13, "epsilon").descriptor);
    op.set(attr::norm_momentum, g.scalar(14, "momentum").descriptor).finalize();
    const Tensor* last = &normal;
    if (residual) {
      const Tensor& sum = next("batch norm + residual", !relu);
      g.pointwise(CUDNN_POINTWISE_ADD, *last, g.tensor(4, "residual", e, type), sum);
      last = &sum;
    }
    if (relu) g.pointwise(CUDNN_POINTWISE_RELU_FWD, *last, next("relu", true));
    return g;
  }
  [[nodiscard]] std::vector<cudnn::Binding> bind(const Operands& o) const {
    std::vector<cudnn::Binding> b{{1, o.x},
                                  {2, o.scale},
                                  {3, o.bias},
                                  {5, o.running_mean},
                                  {6, o.running_variance},
                                  {7, o.running_mean},
                                  {8, o.running_variance},
                                  {9, o.y},
                                  {10, o.mean},
                                  {11, o.inv_std},
                                  {13, &epsilon},
                                  {14, &momentum}};
    if (residual) b.push_back({4, o.residual});
    return b;
  }
};

// The backward pass through relu?(batch_norm(x)). It recomputes the relu's mask from x. cuDNN 8.9.4 and later.
struct BatchNormAddReluBackward {
  NormProblem problem;
  bool relu = true;

  struct Operands {
    const void *dy, *x;
    const float *scale, *bias, *mean, *inv_std;  // bias: only used with a relu
    void* dx;
    float *dscale, *dbias;
  };
  [[nodiscard]] DType dtype() const { return problem.type; }
  [[nodiscard]] std::string name() const {
    return std::string("batch-norm-backward") + (relu ? "-drelu-recomputed " : " ") + to_string(problem);
  }
  [[nodiscard]] cudnn::OpGraph graph() const {
    using namespace cudnn;
    OpGraph g(name());
    const Extents e = problem.extents(), channels = per_channel(problem.channels);
    const cudnnDataType_t type = data_type(problem.type), f32 = CUDNN_DATA_FLOAT;
    const Tensor& x = g.tensor(2, "x", e, type);
    const Tensor& scale = g.tensor(3, "scale", channels, f32);
    const Tensor& mean = g.tensor(5, "mean", channels, f32);
    const Tensor& inv_std = g.tensor(6, "inv_std", channels, f32);
    const Tensor* dy = &g.tensor(1, "dy", e, type);
    if (relu) {
      const Tensor& masked = g.inner("masked dy", e, type);
      const Tensor& y = g.inner("batch norm", e);
      Descriptor& op = g.operation(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR, "batch norm again");
      op.set(attr::norm_mode, CUDNN_BATCH_NORM).set(attr::norm_phase, CUDNN_NORM_FWD_INFERENCE);
      op.set(attr::norm_x, x.descriptor).set(attr::norm_y, y.descriptor);
      op.set(attr::norm_scale, scale.descriptor);
      op.set(attr::norm_bias, g.tensor(4, "bias", channels, f32).descriptor);
      op.set(attr::norm_mean, mean.descriptor).set(attr::norm_inv_std, inv_std.descriptor).finalize();
      g.relu_backward(*dy, y, masked);
      dy = &masked;
    }
    Descriptor& op = g.operation(CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR, "batch norm backward");
    op.set(attr::dnorm_mode, CUDNN_BATCH_NORM).set(attr::dnorm_x, x.descriptor).set(attr::dnorm_dy, dy->descriptor);
    op.set(attr::dnorm_scale, scale.descriptor).set(attr::dnorm_mean, mean.descriptor);
    op.set(attr::dnorm_inv_std, inv_std.descriptor);
    op.set(attr::dnorm_dx, g.tensor(8, "dx", e, type).descriptor);
    op.set(attr::dnorm_dscale, g.tensor(9, "dscale", channels, f32).descriptor);
    op.set(attr::dnorm_dbias, g.tensor(10, "dbias", channels, f32).descriptor).finalize();
    return g;
  }
  [[nodiscard]] std::vector<cudnn::Binding> bind(const Operands& o) const {
    std::vector<cudnn::Binding> b{{1, o.dy},      {2, o.x},  {3, o.scale},  {5, o.mean},
                                  {6, o.inv_std}, {8, o.dx}, {9, o.dscale}, {10, o.dbias}};
    if (relu) b.push_back({4, o.bias});
    return b;
  }
};

}  // namespace tutti::cuda
