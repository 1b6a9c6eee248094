// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/cudnn/conv_problem.hpp>
#include <tutti/backends/cuda/cudnn/graph.hpp>
#include <tutti/backends/cuda/cudnn/plan.hpp>
#include <tutti/backends/cuda/cudnn/planner.hpp>

namespace tutti::cuda {

// A computation that cuDNN may run as one kernel: a small value that describes it, the operands of a run, the graph for
// cuDNN, and the mapping from operands to the graph.
template <class F>
concept Fusion = std::copyable<F> && requires(const F& f, const typename F::Operands& o) {
  { f.graph() } -> std::same_as<cudnn::OpGraph>;
  { f.bind(o) } -> std::same_as<std::vector<cudnn::Binding>>;
  { f.dtype() } -> std::same_as<DType>;
};

// A fusion with its plan.
template <Fusion F>
class FusedPlan {
 public:
  FusedPlan(Planner& planner, const F& fusion, cudnn::Plan plan)
      : planner_(&planner), fusion_(std::make_unique<F>(fusion)), plan_(std::move(plan)) {}

  [[nodiscard]] const F& fusion() const noexcept { return *fusion_; }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return plan_.workspace_bytes(); }
  // workspace: workspace_bytes(), aligned to 256 bytes; null if there are 0.
  void run(const typename F::Operands& operands, void* workspace, cudaStream_t stream) {
    plan_.run(planner_->handle().on(stream), fusion_->bind(operands), workspace);
  }

 private:
  Planner* planner_;
  std::unique_ptr<F> fusion_;  // at a stable address: cuDNN reads its numbers during each run
  cudnn::Plan plan_;
};

// A fusion that any library has prepared. Layers of the same kind share it.
template <Fusion F>
class FusedKernel {
 public:
  virtual ~FusedKernel() = default;
  [[nodiscard]] virtual std::size_t workspace_bytes() const = 0;
  virtual void run(const typename F::Operands& operands, void* workspace, cudaStream_t stream) = 0;
};

// Returns a plan for a fusion. If cuDNN has no plan, returns an empty value and sets `why` to the reason: the caller
// must run the ops unfused.
template <Fusion F>
[[nodiscard]] std::optional<FusedPlan<F>> plan_fusion(Planner& planner, const F& fusion, std::string& why) {
  try {
    if (auto plan = planner.plan(fusion.graph(), fusion.dtype(), why, true))
      return FusedPlan<F>(planner, fusion, *std::move(plan));
  } catch (const cudnn::CudnnError& e) {
    why = e.what();
  }
  return {};
}

// y = conv(relu(scale * x + bias), w), with the sums over N, H and W of y and of its squares. It applies the
// batch norm before the convolution, and computes the statistics of the batch norm after it. f16 and bf16. cuDNN
// supports it on Ampere and Hopper. Without `activate` the convolution reads x itself.
struct ScaleBiasReluConvStatistics {
  ConvProblem problem;
  bool activate = true;

  struct Operands {
    const void *x, *scale, *bias, *w;  // scale and bias: [C of x], of the problem's type; null without `activate`
    void* y;
    float *sum, *square_sum;  // [C of y]
  };
  [[nodiscard]] DType dtype() const { return problem.type; }
  [[nodiscard]] cudnn::OpGraph graph() const {
    using namespace cudnn;
    require_consistent(problem);
    OpGraph g(std::string(activate ? "scale-bias-relu-convolution-statistics " : "convolution-statistics ") +
              to_string(problem));
    const cudnnDataType_t type = data_type(problem.type);
    const Extents in = input_of(problem), channels = per_channel(problem.out_channels);
    const Tensor* x = &g.tensor(1, "x", in, type);
    if (activate) x = &activated(g, *x, in, type);
    const Tensor& w = g.tensor(4, "w", weights_of(problem), type);
    const Tensor& y = g.tensor(5, "y", output_of(problem), type);
    g.convolution(geometry_of(problem), *x, w, y);
    const Tensor& sum = g.tensor(6, "sum", channels, CUDNN_DATA_FLOAT);
    g.statistics(y, sum, g.tensor(7, "square sum", channels, CUDNN_DATA_FLOAT));
    return g;
  }
  [[nodiscard]] std::vector<cudnn::Binding> bind(const Operands& o) const {
    std::vector<cudnn::Binding> b{{1, o.x}, {4, o.w}, {5, o.y}, {6, o.sum}, {7, o.square_sum}};
    if (activate) b.insert(b.end(), {{2, o.scale}, {3, o.bias}});
    return b;
  }

  // Returns relu(scale * x + bias). The operands of `g` with the numbers 2 and 3 are scale and bias. The value never
  // reaches memory.
  static const cudnn::Tensor& activated(cudnn::OpGraph& g, const cudnn::Tensor& x, const cudnn::Extents& extents,
                                        cudnnDataType_t type, cudnnDataType_t between = CUDNN_DATA_FLOAT) {
    using namespace cudnn;
    const Extents channels = per_channel(extents[1]);
    const Tensor& scaled = g.inner("scale * x", extents, between);
    const Tensor& biased = g.inner("scale * x + bias", extents, between);
    const Tensor& relu = g.inner("relu", extents, between);
    g.pointwise(CUDNN_POINTWISE_MUL, x, g.tensor(2, "scale", channels, type), scaled);
    g.pointwise(CUDNN_POINTWISE_ADD, scaled, g.tensor(3, "bias", channels, type), biased);
    g.pointwise(CUDNN_POINTWISE_RELU_FWD, biased, relu);
    return relu;
  }
};

// dw = backward weights of conv(relu(scale * x + bias), w). It recomputes the convolution's input, which is not kept.
struct ScaleBiasReluConvBackwardWeights {
  ConvProblem problem;
  DType gradient = problem.type;  // type of dw; cuDNN 9.19 refuses f32

  struct Operands {
    const void *x, *scale, *bias, *dy;  // scale and bias: [C of x], of the problem's type
    void* dw;
  };
  [[nodiscard]] DType dtype() const { return problem.type; }
  [[nodiscard]] cudnn::OpGraph graph() const {
    using namespace cudnn;
    require_consistent(problem);
    OpGraph g("scale-bias-relu-wgrad " + to_string(problem) + " to " + std::string(name_of(gradient)));
    const cudnnDataType_t type = data_type(problem.type);
    const Tensor& x = g.tensor(1, "x", input_of(problem), type);
    const Tensor& a = ScaleBiasReluConvStatistics::activated(g, x, input_of(problem), type, type);
    const Tensor& dy = g.tensor(4, "dy", output_of(problem), type);
    const Tensor& dw = g.tensor(5, "dw", weights_of(problem), data_type(gradient));
    g.convolution_backward_weights(geometry_of(problem), a, dy, dw);
    return g;
  }
  [[nodiscard]] std::vector<cudnn::Binding> bind(const Operands& o) const {
    return {{1, o.x}, {2, o.scale}, {3, o.bias}, {4, o.dy}, {5, o.dw}};
  }
};

// The backward pass through conv(relu(batch_norm(x))): dr = relu'(..) * backward data(dy, w). For the batch norm it
// computes dscale, dbias and the factors of dx = from_dr * dr + from_x * x + constant, one value for each channel. f16
// and bf16; cuDNN 9.8 and later, on Ampere and Hopper. `problem` is the convolution's: x has the extents of its input.
struct ConvBackwardDataReluBatchNorm {
  ConvProblem problem;

  struct Operands {
    const void *dy, *w, *x;
    const float *mean, *inv_std, *scale, *bias;
    void* dr;
    float *dscale, *dbias, *from_dr, *from_x, *constant;
  };
  [[nodiscard]] DType dtype() const { return problem.type; }
  [[nodiscard]] cudnn::OpGraph graph() const {
    using namespace cudnn;
    require_consistent(problem);
    OpGraph g("dgrad-drelu-batch-norm " + to_string(problem));
    const cudnnDataType_t type = data_type(problem.type), f32 = CUDNN_DATA_FLOAT;
    const Extents in = input_of(problem), channels = per_channel(problem.in_channels);
    const Tensor& dy = g.tensor(1, "dy", output_of(problem), type);
    const Tensor& w = g.tensor(2, "w", weights_of(problem), type);
    const Tensor& into = g.inner("backward data", in);
    g.convolution_backward_data(geometry_of(problem), dy, w, into);

    const Tensor& x = g.tensor(3, "x", in, type);
    const Tensor& mean = g.tensor(5, "mean", channels, f32);
    const Tensor& inv_std = g.tensor(6, "inv_std", channels, f32);
    const Tensor& scale = g.tensor(7, "scale", channels, f32);
    const Tensor& centred = g.inner("x - mean", in);
    const Tensor& normal = g.inner("normalised", in);
    const Tensor& scaled = g.inner("scaled", in);
    const Tensor& forward = g.inner("batch norm", in);
    g.pointwise(CUDNN_POINTWISE_ADD, x, mean, centred, -1.F);
    g.pointwise(CUDNN_POINTWISE_MUL, centred, inv_std, normal);
    g.pointwise(CUDNN_POINTWISE_MUL, normal, scale, scaled);
    g.pointwise(CUDNN_POINTWISE_ADD, scaled, g.tensor(8, "bias", channels, f32), forward);
    const Tensor& dr = g.tensor(9, "dr", in, type);
    g.relu_backward(into, forward, dr);

    Descriptor& op = g.operation(CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR, "batch norm's gradients");
    const auto channel_value = [&](std::int64_t uid, const char* name) -> const Descriptor& {
      return g.tensor(uid, name, channels, f32).descriptor;
    };
    op.set(attr::dweights_precision, f32).set(attr::dweights_x, x.descriptor).set(attr::dweights_dy, dr.descriptor);
    op.set(attr::dweights_mean, mean.descriptor).set(attr::dweights_inv_std, inv_std.descriptor);
    op.set(attr::dweights_scale, scale.descriptor);
    op.set(attr::dweights_dscale, channel_value(10, "dscale")).set(attr::dweights_dbias, channel_value(11, "dbias"));
    op.set(attr::dweights_eq_dy_scale, channel_value(12, "factor of dr"));
    op.set(attr::dweights_eq_x_scale, channel_value(13, "factor of x"));
    op.set(attr::dweights_eq_bias, channel_value(14, "constant")).finalize();
    return g;
  }
  [[nodiscard]] std::vector<cudnn::Binding> bind(const Operands& o) const {
    return {{1, o.dy}, {2, o.w},       {3, o.x},      {5, o.mean},     {6, o.inv_std}, {7, o.scale},    {8, o.bias},
            {9, o.dr}, {10, o.dscale}, {11, o.dbias}, {12, o.from_dr}, {13, o.from_x}, {14, o.constant}};
  }
};

}  // namespace tutti::cuda
