// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <tutti/backends/cuda/cudnn/conv_problem.hpp>
#include <tutti/backends/cuda/cudnn/plan.hpp>
#include <tutti/backends/cuda/cudnn/planner.hpp>
#include <tutti/backends/cuda/device.hpp>

namespace tutti::cuda {

// Convolutions on one device. The plan of a problem is made once; layers of the same shape share it. From one thread at
// a time.
class Convolutions {
 public:
  explicit Convolutions(const Device& device, ConvolutionOptions options = {}) : planner_(device, std::move(options)) {}

  // Bytes that run() needs for this problem. Makes the plan, which may take seconds and device memory of its own; not
  // while a CUDA graph is captured. ShapeError: extents that do not fit together. DeviceError: cuDNN has no engine for
  // the problem.
  [[nodiscard]] std::size_t workspace_bytes(ConvPass pass, const ConvProblem& p) { return plan_of(pass, p).bytes(); }

  // forward: a = x, b = w, out = y. backward_data: a = dy, b = w, out = dx. backward_weights: a = x, b = dy,
  // out = dw (f32). workspace: of workspace_bytes(), aligned to 256 bytes; null where that is 0.
  void run(ConvPass pass, const ConvProblem& p, const void* a, const void* b, void* out, void* workspace,
           cudaStream_t stream) {
    using namespace cudnn;
    Made& made = plan_of(pass, p);
    cudnnHandle_t handle = planner_.handle().on(stream);
    if (!made.widen) {
      made.plan.run(handle, std::array<Binding, 3>{{{conv_a, a}, {conv_b, b}, {conv_out, out}}}, workspace);
      return;
    }
    auto* const narrow = static_cast<std::byte*>(workspace);
    std::byte* const rest = narrow + made.narrow_bytes;
    made.plan.run(handle, std::array<Binding, 3>{{{conv_a, a}, {conv_b, b}, {conv_out, narrow}}}, rest);
    made.widen->run(handle, std::array<Binding, 2>{{{conv_a, narrow}, {conv_out, out}}}, rest);
  }

  // Plans made so far, and how many of them were stored ones.
  [[nodiscard]] std::size_t plans() const noexcept { return made_.size(); }
  [[nodiscard]] std::size_t restored() const noexcept { return planner_.restored(); }
  // For fusions on the same device.
  [[nodiscard]] Planner& planner() noexcept { return planner_; }

 private:
  // A plan, and where cuDNN can write dw only in the type of the activations, one that widens that to f32.
  struct Made {
    cudnn::Plan plan;
    std::optional<cudnn::Plan> widen;
    std::size_t narrow_bytes = 0;
    [[nodiscard]] std::size_t bytes() const {
      return narrow_bytes + std::max(plan.workspace_bytes(), widen ? widen->workspace_bytes() : 0);
    }
  };

  Made& plan_of(ConvPass pass, const ConvProblem& p) {
    const std::pair key{pass, p};
    if (const auto found = made_.find(key); found != made_.end()) return found->second;
    return made_.emplace(key, make(pass, p)).first->second;
  }

  Made make(ConvPass pass, const ConvProblem& p) {
    const DType out = pass == ConvPass::backward_weights ? DType::f32 : p.type;
    std::string why;
    if (auto plan = planner_.plan(cudnn::convolution_graph(pass, p, out), p.type, why))
      return {*std::move(plan), {}, 0};
    if (out != p.type) {
      auto narrow = planner_.plan(cudnn::convolution_graph(pass, p, p.type), p.type, why);
      auto widen = narrow ? planner_.plan(cudnn::widening_graph(p), p.type, why) : std::nullopt;
      if (widen) {
        const auto e = cudnn::weights_of(p);
        const std::size_t bytes = static_cast<std::size_t>(e[0] * e[1] * e[2] * e[3]) * size_of(p.type);
        return {*std::move(narrow), std::move(widen), (bytes + 255) / 256 * 256};
      }
    }
    fail<DeviceError>("cudnn convolution " + to_string(pass), "an engine for " + to_string(p), why,
                      planner_.options().deterministic ? "leave out --deterministic, or use another --precision"
                                                       : "use another --precision, or a newer cuDNN");
  }

  Planner planner_;
  std::map<std::pair<ConvPass, ConvProblem>, Made> made_;
};

}  // namespace tutti::cuda
