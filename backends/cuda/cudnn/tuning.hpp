// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/cudnn/graph.hpp>
#include <tutti/backends/cuda/cudnn/plan.hpp>
#include <tutti/backends/cuda/device.hpp>
#include <tutti/backends/cuda/memory.hpp>

namespace tutti::cuda::cudnn {

namespace detail {

// Device memory for a measurement; none where there is too little.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) {
    if (cudaMalloc(&data_, std::max<std::size_t>(bytes, 256)) == cudaSuccess) return;
    data_ = nullptr;
    cudaGetLastError();  // it is no lasting error
  }
  Scratch(Scratch&& o) noexcept : data_(std::exchange(o.data_, nullptr)) {}
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch() {
    if (data_ != nullptr) cudaFree(data_);
  }
  [[nodiscard]] void* data() const noexcept { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace detail

// The index of the fastest plan of a graph, on memory of its own; nothing where that does not fit. The stream must be
// idle, and no CUDA graph under capture.
[[nodiscard]] inline std::optional<std::size_t> fastest_plan(const Device& device, Handle& handle, const OpGraph& graph,
                                                             std::vector<Plan>& plans) {
  if (plans.size() == 1) return 0;
  device.use();
  cudaStream_t stream = device.stream();
  std::vector<detail::Scratch> memory;
  std::vector<Binding> operands;
  for (const auto& [uid, bytes] : graph.operands()) {
    memory.emplace_back(bytes);
    if (memory.back().data() == nullptr) return {};
    // The same byte everywhere is a small number in every floating type: 0.0115 in f32 and bf16, 1.06 in f16. Zeros
    // would let the device run at clocks that it does not keep up with data.
    device.check_op(cudaMemsetAsync(memory.back().data(), 0x3c, bytes, stream), "memory for a measurement");
    operands.push_back({uid, memory.back().data()});
  }
  std::size_t workspace_bytes = 0;
  for (const Plan& p : plans) workspace_bytes = std::max(workspace_bytes, p.workspace_bytes());
  const detail::Scratch workspace(workspace_bytes);
  if (workspace.data() == nullptr) return {};

  cudnnHandle_t raw = handle.on(stream);
  cuda::Event start(device, true), stop(device, true);
  std::optional<std::size_t> best;
  double shortest = std::numeric_limits<double>::max();
  for (std::size_t i = 0; i < plans.size(); ++i) {
    constexpr int turns = 6;
    for (int turn = 0; turn < turns; ++turn) {
      try {
        start.record(stream);
        plans[i].run(raw, operands, workspace.data());
      } catch (const CudnnError&) {
        break;  // a plan that does not run is not chosen
      }
      stop.record(stream);
      device.check_op(cudaEventSynchronize(stop.get()), "a measurement");
      const double time = stop.seconds_since(start);
      if (turn > 0 && time < shortest) {  // the first turn loads the kernel
        shortest = time;
        best = i;
      }
      // Not again what is far behind.
      if (turn > 0 && time > 2 * shortest) break;
    }
  }
  return best;
}

// Seconds that what `start` starts on the device's stream takes, the shortest of a few turns; the largest number where
// cuDNN does not run its plan after all. The stream must be idle.
template <class F>
[[nodiscard]] double shortest_time(const Device& device, F&& start) {
  device.use();
  cuda::Event begin(device, true), end(device, true);
  double shortest = std::numeric_limits<double>::max();
  constexpr int turns = 6;
  for (int turn = 0; turn < turns; ++turn) {
    begin.record(device.stream());
    try {
      start();
    } catch (const CudnnError&) {
      return std::numeric_limits<double>::max();
    }
    end.record(device.stream());
    device.check_op(cudaEventSynchronize(end.get()), "a measurement");
    if (turn > 0) shortest = std::min(shortest, end.seconds_since(begin));  // the first turn loads the kernels
  }
  return shortest;
}

}  // namespace tutti::cuda::cudnn
