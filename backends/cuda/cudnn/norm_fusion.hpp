// SPDX-License-Identifier: MIT
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <string>
#include <vector>

#include <tutti/backends/cuda/cudnn/fusion.hpp>
#include <tutti/backends/cuda/cudnn/graph.hpp>
#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>

namespace tutti::cuda {

// The activations of a batch norm, in memory NHWC. cuDNN wants channels in multiples of 8 (f16, bf16) or 4 (f32).
struct NormProblem {
  std::int64_t rows, channels, height, width;
  DType type;

  [[nodiscard]] cudnn::Extents extents() const { return {rows, channels, height, width}; }
};
[[nodiscard]] inline std::string to_string(const NormProblem& p) {
  return std::string(name_of(p.type)) + " n" + std::to_string(p.rows) + " c" + std::to_string(p.channels) + " " +
         std::to_string(p.height) + "x" + std::to_string(p.width);
}

// Statistics of a batch (sums of y and of its squares) -> mean, inv_std, the running statistics, and the factors with
// which y becomes eq_scale * y + eq_bias, normalised. What follows ScaleBiasReluConvStatistics.
struct BatchNormFinalize {
  std::int64_t channels = 0;
  std::int64_t count = 0;      // values a channel: N * H * W
  DType factors = DType::f32;  // of eq_scale and eq_bias: as the next convolution wants them
  float epsilon = 1e-5F, momentum = 0.1F;

  struct Operands {
    const float *sum, *square_sum, *scale, *bias;
    float *running_mean, *running_variance;  // updated in place, with the unbiased variance
    float *mean, *inv_std;
    void *eq_scale, *eq_bias;
  };
  [[nodiscard]] DType dtype() const { return DType::f32; }
  [[nodiscard]] cudnn::OpGraph graph() const {
    using namespace cudnn;
    OpGraph g("batch-norm-finalize " + std::string(name_of(factors)) + " c" + std::to_string(channels));
    const auto value = [&](std::int64_t uid, const char* name, DType t = DType::f32) -> const Descriptor& {
      return g.tensor(uid, name, per_channel(channels), data_type(t)).descriptor;
    };
    Descriptor& op = g.operation(CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR, "finalize");
    op.set(attr::finalize_mode, CUDNN_BN_FINALIZE_STATISTICS_TRAINING).set(attr::finalize_precision, CUDNN_DATA_FLOAT);
    op.set(attr::finalize_sum, value(1, "sum")).set(attr::finalize_square_sum, value(2, "square sum"));
    op.set(attr::finalize_scale, value(3, "scale")).set(attr::finalize_bias, value(4, "bias"));
    op.set(attr::finalize_old_mean, value(5, "running mean"));
    op.set(attr::finalize_old_variance, value(6, "running variance"));
    op.set(attr::finalize_new_mean, value(7, "new running mean"));
    op.set(attr::finalize_new_variance, value(8, "new running variance"));
    op.set(attr::finalize_saved_mean, value(9, "mean")).set(attr::finalize_saved_inv_std, value(10, "inv_std"));
    op.set(attr::finalize_eq_scale, value(11, "eq_scale", factors));
    op.set(attr::finalize_eq_bias, value(12, "eq_bias", factors));
    op.set(attr::finalize_epsilon, g.scalar(13, "epsilon").descriptor);
    op.set(attr::finalize_momentum, g.scalar(14, "momentum").descriptor);
    op.set(attr::finalize_count, g.scalar(15, "count", CUDNN_DATA_INT64).descriptor).finalize();
    return g;
  }
  [[nodiscard]] std::vector<cudnn::Binding> bind(const Operands& o) const {
    return {{1, o.sum},          {2, o.square_sum},       {3, o.scale},        {4, o.bias},
            {5, o.running_mean}, {6, o.running_variance}, {7, o.running_mean}, {8, o.running_variance},
            {9, o.mean},         {10, o.inv_std},         {11, o.eq_scale},    {12, o.eq_bias},
            {13, &epsilon},      {14, &momentum},         {15, &count}};
  }
};

// y = relu?(batch_norm(x) [+ residual]) of a training batch, with mean and inv_std for the way back. With `mask` also
// one bit a value: y > 0. cuDNN 8.7 and later.
struct BatchNormAddRelu {
  NormProblem problem;
  bool residual = false, relu = true, mask = false;
  float epsilon = 1e-5F, momentum = 0.1F;

  struct Operands {
    const void* x;
    const float *scale, *bias;
    const void* residual;                    // null without one
    float *running_mean, *running_variance;  // updated in place, with the unbiased variance
    void* y;
    float *mean, *inv_std;
    void* mask;  // null without one; else N * H * W * C / 8 bytes
  };
  [[nodiscard]] DType dtype() const { return problem.type; }
  [[nodiscard]] std::string name() const {
    return std::string("batch-norm") + (residual ? "-add" : "") + (relu ? "-relu" : "") + (mask ? "-mask " : " ") +
           to_string(problem);
  }
  // UsageError: a mask without a relu.
  [[nodiscard]] cudnn::OpGraph graph() const {
    using namespace cudnn;
    if (mask && !relu) fail<UsageError>("batch norm", "a mask of a relu", "a mask without one");
    OpGraph g(name());
    const Extents e = problem.extents(), channels = per_channel(problem.channels);
    const cudnnDataType_t type = data_type(problem.type);
    const auto value = [&](std::int64_t uid, const char* name) -> const Descriptor& {
      return g.tensor(uid, name, channels, CUDNN_DATA_FLOAT).descriptor;
    };
    // What stays inside the graph is f32, and so is added and clipped before it is rounded.
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
    if (relu) {
      const Tensor& y = next("relu", true);
      g.pointwise(CUDNN_POINTWISE_RELU_FWD, *last, y);
      if (mask)
        g.pointwise(CUDNN_POINTWISE_CMP_GT, y, g.scalar(15, "zero"), g.tensor(12, "mask", e, CUDNN_DATA_BOOLEAN));
    }
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
    if (mask) b.insert(b.end(), {{12, o.mask}, {15, &zero}});
    return b;
  }
  static constexpr float zero = 0;
};

// The way back through relu?(batch_norm(x) [+ residual]). Where the relu was active is told by the mask of the forward
// pass, or, where there was no residual, computed again from x. dresidual is the masked gradient. cuDNN 8.9.4 and
// later.
struct BatchNormAddReluBackward {
  NormProblem problem;
  enum class Active : std::uint8_t { everywhere, mask, recomputed } active = Active::recomputed;
  bool residual = false;

  struct Operands {
    const void *dy, *x;
    const float *scale, *bias, *mean, *inv_std;  // bias: only where it is computed again
    const void* mask;                            // null without one
    void* dx;
    float *dscale, *dbias;
    void* dresidual;  // null without a residual
  };
  [[nodiscard]] DType dtype() const { return problem.type; }
  [[nodiscard]] std::string name() const {
    static constexpr const char* ways[] = {"", "-drelu-mask", "-drelu-recomputed"};
    return std::string("batch-norm-backward") + ways[static_cast<std::size_t>(active)] + (residual ? "-add " : " ") +
           to_string(problem);
  }
  // UsageError: a residual without a relu, where dresidual would be dy.
  [[nodiscard]] cudnn::OpGraph graph() const {
    using namespace cudnn;
    if (residual && active == Active::everywhere)
      fail<UsageError>("batch norm backward", "a mask for dresidual", "none", "without a relu it is dy");
    OpGraph g(name());
    const Extents e = problem.extents(), channels = per_channel(problem.channels);
    const cudnnDataType_t type = data_type(problem.type), f32 = CUDNN_DATA_FLOAT;
    const Tensor& x = g.tensor(2, "x", e, type);
    const Tensor& scale = g.tensor(3, "scale", channels, f32);
    const Tensor& mean = g.tensor(5, "mean", channels, f32);
    const Tensor& inv_std = g.tensor(6, "inv_std", channels, f32);
    const Tensor* dy = &g.tensor(1, "dy", e, type);
    if (active != Active::everywhere) {
      const Tensor& masked = residual ? g.tensor(11, "dresidual", e, type) : g.inner("masked dy", e, type);
      if (active == Active::mask) {
        g.pointwise(CUDNN_POINTWISE_MUL, *dy, g.tensor(7, "mask", e, CUDNN_DATA_BOOLEAN), masked);
      } else {
        const Tensor& y = g.inner("batch norm", e);
        Descriptor& op = g.operation(CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR, "batch norm again");
        op.set(attr::norm_mode, CUDNN_BATCH_NORM).set(attr::norm_phase, CUDNN_NORM_FWD_INFERENCE);
        op.set(attr::norm_x, x.descriptor).set(attr::norm_y, y.descriptor);
        op.set(attr::norm_scale, scale.descriptor);
        op.set(attr::norm_bias, g.tensor(4, "bias", channels, f32).descriptor);
        op.set(attr::norm_mean, mean.descriptor).set(attr::norm_inv_std, inv_std.descriptor).finalize();
        g.relu_backward(*dy, y, masked);
      }
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
    if (active == Active::recomputed) b.push_back({4, o.bias});
    if (active == Active::mask) b.push_back({7, o.mask});
    if (residual) b.push_back({11, o.dresidual});
    return b;
  }
};

}  // namespace tutti::cuda
