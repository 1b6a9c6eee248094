// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/backends/cuda/cudnn/conv_problem.hpp>
#include <tutti/backends/cuda/cudnn/fused_convolutions.hpp>
#include <tutti/backends/cuda/cudnn/plan.hpp>
#include <tutti/backends/cuda/cudnn/planner.hpp>
#include <tutti/backends/cuda/device.hpp>

namespace tutti::cuda {

// Convolutions on one device. Each problem's plan is made once; layers of the same shape share it. Calls must come
// from one thread at a time.
class Convolutions {
 public:
  explicit Convolutions(const Device& device, ConvolutionOptions options = {})
      : planner_(device, std::move(options)), fused_(planner_) {}
  // Not copyable: the fused plans refer to the planner.
  Convolutions(const Convolutions&) = delete;
  Convolutions& operator=(const Convolutions&) = delete;

  // Starts a thread that opens the library and creates its handle. The first plan waits for it.
  void begin() { planner_.handle().begin(); }

  // Returns the bytes that run() needs for this problem. Makes the plan, which may take seconds and device memory of
  // its own. Must not be called while a CUDA graph is captured. Throws ShapeError if the extents do not fit together,
  // and DeviceError if cuDNN has no engine for the problem.
  [[nodiscard]] std::size_t workspace_bytes(ConvPass pass, const ConvProblem& p) {
    return plan_of(pass, p).workspace_bytes();
  }

  // Runs a problem for which workspace_bytes() was called. forward: a = x, b = w, out = y. backward_data: a = dy, b =
  // w, out = dx. backward_weights: a = x, b = dy, out = dw. workspace: workspace_bytes(), aligned to 256 bytes; null if
  // there are 0.
  void run(ConvPass pass, const ConvProblem& p, const void* a, const void* b, void* out, void* workspace,
           cudaStream_t stream) {
    using namespace cudnn;
    const auto found = made_.find({pass, p});
    if (found == made_.end())
      fail<DeviceError>({"cudnn convolution ", to_string(pass)}, {"a plan made in advance for ", to_string(p)}, "none",
                        "after Trainer::synchronise(), call Executor::prepare_again(true) for the backend's other "
                        "executors");
    found->second.run(planner_.handle().on(stream), std::array<Binding, 3>{{{conv_a, a}, {conv_b, b}, {conv_out, out}}},
                      workspace);
  }

  // The same functions for a convolution that is fused with the ops next to it (cudnn/fused_convolutions.hpp). Returns
  // an empty value if cuDNN refuses the fusion: the caller must run the ops step by step.
  [[nodiscard]] std::optional<std::size_t> fused_workspace_bytes(FusedPass pass, const ConvProblem& p) {
    return fused_.workspace_bytes(pass, p);
  }
  void run_fused(FusedPass pass, const ConvProblem& p, const FusedOperands& o, void* workspace, cudaStream_t stream) {
    fused_.run(pass, p, o, workspace, stream);
  }
  // Returns one kernel for a whole batch norm, or null if cuDNN refuses the fusion.
  template <Fusion F>
  [[nodiscard]] std::shared_ptr<FusedKernel<F>> kernel(const F& f) {
    struct Planned : FusedKernel<F> {
      explicit Planned(FusedPlan<F> p) : plan(std::move(p)) {}
      [[nodiscard]] std::size_t workspace_bytes() const override { return plan.workspace_bytes(); }
      void run(const typename F::Operands& o, void* workspace, cudaStream_t stream) override {
        plan.run(o, workspace, stream);
      }
      FusedPlan<F> plan;
    };
    // The graph's name does not contain the numbers that are part of a kernel, so the key contains them.
    std::string key = f.name();
    if constexpr (requires { f.momentum; })
      for (const float number : {f.epsilon, f.momentum})
        key.append(" ").append(std::to_string(std::bit_cast<std::uint32_t>(number)));
    const auto [at, first] = kernels_.try_emplace(key);
    std::string why;
    if (first)
      if (auto plan = plan_fusion(planner_, f, why))
        at->second = std::shared_ptr<FusedKernel<F>>(std::make_shared<Planned>(*std::move(plan)));
    return std::static_pointer_cast<FusedKernel<F>>(at->second);
  }
  // Returns true if the first of two ways to compute `what` is no slower than the second. Each pair is measured once.
  template <class One, class Other>
  [[nodiscard]] bool no_slower(const std::string& what, One&& one, Other&& other) {
    return planner_.no_slower(what, one, other);
  }

  // The choices of plans (Planner). If take_choices() returns true, every problem must be prepared again, as before its
  // first run: its plan may need more workspace.
  [[nodiscard]] std::string choices() const { return planner_.choices(); }
  [[nodiscard]] bool take_choices(std::string_view choices) {
    if (!planner_.take(choices)) return false;
    made_.clear();
    fused_.forget();
    kernels_.clear();
    return true;
  }

  // Returns the library's version.
  [[nodiscard]] static std::string version() { return cudnn_version(); }
  // Return the number of plans made so far, and how many of them were restored from the store.
  [[nodiscard]] std::size_t plans() const noexcept { return made_.size(); }
  [[nodiscard]] std::size_t restored() const noexcept { return planner_.restored(); }
  // Plans fusions on the same device.
  [[nodiscard]] Planner& planner() noexcept { return planner_; }

 private:
  cudnn::Plan& plan_of(ConvPass pass, const ConvProblem& p) {
    const std::pair key{pass, p};
    if (const auto found = made_.find(key); found != made_.end()) return found->second;
    std::string why;
    auto plan = planner_.plan(cudnn::convolution_graph(pass, p, p.type), p.type, why);
    if (!plan)
      fail<DeviceError>({"cudnn convolution ", to_string(pass)}, {"an engine for ", to_string(p)}, why,
                        planner_.options().deterministic ? "leave out --deterministic, or use another --precision"
                                                         : "use another --precision, or a newer cuDNN");
    return made_.emplace(key, *std::move(plan)).first->second;
  }

  Planner planner_;
  FusedConvolutions fused_;
  std::map<std::string, std::shared_ptr<void>> kernels_;
  std::map<std::pair<ConvPass, ConvProblem>, cudnn::Plan> made_;
};

}  // namespace tutti::cuda
