// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include <tutti/backends/cuda/cudnn/conv_problem.hpp>
#include <tutti/backends/cuda/cudnn/fusion.hpp>
#include <tutti/backends/cuda/cudnn/plan.hpp>
#include <tutti/backends/cuda/cudnn/planner.hpp>

namespace tutti::cuda {

// A convolution that also computes parts of the batch norms next to it. "Activated": the convolution's input is
// relu(scale * x + bias).
enum class FusedPass : std::uint8_t {
  statistics,                  // forward, and the sums of y and of its squares
  activated_statistics,        // the same, of an activated input
  activated_backward_weights,  // weight gradient of a convolution with an activated input
  backward_data_norm           // backward data, relu backward, and the sums for batch norm backward
};

[[nodiscard]] constexpr ConvPass plain_pass(FusedPass pass) noexcept {
  switch (pass) {
    case FusedPass::activated_backward_weights:
      return ConvPass::backward_weights;
    case FusedPass::backward_data_norm:
      return ConvPass::backward_data;
    default:
      return ConvPass::forward;
  }
}
[[nodiscard]] inline std::string to_string(FusedPass pass) {
  static constexpr std::array names{"convolution-statistics", "scale-bias-relu-convolution-statistics",
                                    "scale-bias-relu-wgrad", "dgrad-drelu-batch-norm"};
  return names[static_cast<std::size_t>(pass)];
}

// Pointers that a pass does not use are null. Vectors of channels are f32, except scale and bias, which have the
// problem's type.
struct FusedOperands {
  const void *a = nullptr, *b = nullptr;  // operands of the plain pass: x and w, x and dy, or dy and w
  void* out = nullptr;                    // y, dw (KRSC), or the gradient masked by the relu
  const void *scale = nullptr, *bias = nullptr;
  float *sum = nullptr, *square_sum = nullptr;
  const void* x = nullptr;  // input of the batch norm, followed by its parameters
  const float *gamma = nullptr, *beta = nullptr, *mean = nullptr, *inv_std = nullptr;
  float *dgamma = nullptr, *dbeta = nullptr, *from_g = nullptr, *from_x = nullptr, *constant = nullptr;
};

// The plans of fused convolutions on one device. cuDNN is asked once for each problem.
class FusedConvolutions {
 public:
  explicit FusedConvolutions(Planner& planner) : planner_(planner) {}

  // Returns the bytes that run() needs, or an empty value if cuDNN has no plan: why_not() returns the reason. Must not
  // be called while a CUDA graph is captured.
  [[nodiscard]] std::optional<std::size_t> workspace_bytes(FusedPass pass, const ConvProblem& p) {
    const std::pair key{pass, p};
    auto found = made_.find(key);
    if (found == made_.end()) found = made_.emplace(key, make(pass, p)).first;
    const auto& made = found->second;
    if (!made) return {};
    return std::visit([](const auto& m) { return m.workspace_bytes(); }, *made);
  }
  [[nodiscard]] const std::string& why_not() const noexcept { return why_; }
  // Asks again for each problem, because other plans may be chosen.
  void forget() noexcept { made_.clear(); }

  // Runs a problem for which workspace_bytes() returned a value. workspace: that many bytes, aligned to 256.
  void run(FusedPass pass, const ConvProblem& p, const FusedOperands& o, void* workspace, cudaStream_t stream) {
    const auto found = made_.find({pass, p});
    if (found == made_.end() || !found->second)
      fail<DeviceError>({"cudnn ", to_string(pass)}, "a plan made in advance", to_string(p));
    std::visit([&](auto& m) { m.run(o, workspace, stream); }, *found->second);
  }

 private:
  struct Statistics {
    FusedPlan<ScaleBiasReluConvStatistics> plan;
    [[nodiscard]] std::size_t workspace_bytes() const { return plan.workspace_bytes(); }
    void run(const FusedOperands& o, void* workspace, cudaStream_t stream) {
      plan.run({o.a, o.scale, o.bias, o.b, o.out, o.sum, o.square_sum}, workspace, stream);
    }
  };
  struct BackwardWeights {
    FusedPlan<ScaleBiasReluConvBackwardWeights> plan;
    [[nodiscard]] std::size_t workspace_bytes() const { return plan.workspace_bytes(); }
    void run(const FusedOperands& o, void* workspace, cudaStream_t stream) {
      plan.run({o.a, o.scale, o.bias, o.b, o.out}, workspace, stream);
    }
  };
  struct BackwardData {
    FusedPlan<ConvBackwardDataReluBatchNorm> plan;
    [[nodiscard]] std::size_t workspace_bytes() const { return plan.workspace_bytes(); }
    void run(const FusedOperands& o, void* workspace, cudaStream_t stream) {
      plan.run(
          {o.a, o.b, o.x, o.mean, o.inv_std, o.gamma, o.beta, o.out, o.dgamma, o.dbeta, o.from_g, o.from_x, o.constant},
          workspace, stream);
    }
  };
  using Made = std::variant<Statistics, BackwardWeights, BackwardData>;

  std::optional<Made> make(FusedPass pass, const ConvProblem& p) {
    // cuDNN's fused kernels support only 16-bit types, not f32.
    if (p.type != DType::bf16 && p.type != DType::f16) {
      why_ = "cuDNN fuses only 16-bit convolutions";
      return {};
    }
    switch (pass) {
      case FusedPass::statistics:
      case FusedPass::activated_statistics:
        if (auto plan =
                plan_fusion(planner_, ScaleBiasReluConvStatistics{p, pass == FusedPass::activated_statistics}, why_))
          return Statistics{*std::move(plan)};
        break;
      case FusedPass::activated_backward_weights:
        if (auto plan = plan_fusion(planner_, ScaleBiasReluConvBackwardWeights{p}, why_))
          return BackwardWeights{*std::move(plan)};
        break;
      case FusedPass::backward_data_norm:
        if (auto plan = plan_fusion(planner_, ConvBackwardDataReluBatchNorm{p}, why_))
          return BackwardData{*std::move(plan)};
        break;
    }
    return {};
  }
  Planner& planner_;
  std::map<std::pair<FusedPass, ConvProblem>, std::optional<Made>> made_;
  std::string why_;
};

}  // namespace tutti::cuda
