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
#include <tutti/core/error.hpp>
#include <tutti/core/threads/function_ref.hpp>

namespace tutti::cuda::cudnn {

namespace detail {

// Device memory for a measurement. data() is null if the device has too little memory.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) {
    if (cudaMalloc(&data_, std::max<std::size_t>(bytes, 256)) == cudaSuccess) return;
    data_ = nullptr;
    cudaGetLastError();  // clears the error: it is not sticky
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

namespace detail {

// Work captured as a CUDA graph, as in a training step. The time of a replay is the device's time. It does not contain
// the host's time to start the work, which would be the larger part of the time of small kernels.
class Captured {
 public:
  // Captures the work that `start` starts on the device's stream; `start` must have run once before. Ends the capture
  // also if start() throws.
  template <class F>
  Captured(const Device& device, F&& start) : device_(device) {
    struct End {
      const Device& device;
      cudaGraph_t graph = nullptr;
      bool open = true;
      ~End() {
        if (open) cudaStreamEndCapture(device.stream(), &graph);
        if (graph != nullptr) cudaGraphDestroy(graph);
      }
    } end{device};
    device.check_op(cudaStreamBeginCapture(device.stream(), cudaStreamCaptureModeThreadLocal),
                    "the start of a capture");
    start();
    end.open = false;
    device.check_op(cudaStreamEndCapture(device.stream(), &end.graph), "a captured measurement");
    device.check_op(cudaGraphInstantiate(&exec_, end.graph, 0), "a captured measurement made ready");
  }
  ~Captured() {
    if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

  // Returns the shortest time of three replays, in seconds. Stops after a replay that is much slower than `best`.
  [[nodiscard]] double shortest(double best = std::numeric_limits<double>::max()) const {
    cuda::Event begin(device_, true), end(device_, true);
    double shortest = std::numeric_limits<double>::max();
    for (int turn = 0; turn < 3 && shortest <= 2 * best; ++turn) {
      begin.record(device_.stream());
      device_.check_op(cudaGraphLaunch(exec_, device_.stream()), "a measurement");
      end.record(device_.stream());
      device_.check_op(cudaEventSynchronize(end.get()), "a measurement");
      shortest = std::min(shortest, end.seconds_since(begin));
    }
    return shortest;
  }

 private:
  const Device& device_;
  cudaGraphExec_t exec_ = nullptr;
};

// How many times a graph contains the measured work.
inline constexpr std::size_t repetitions = 6;

// Call it in a handler of a DeviceError. Returns if the error belongs to one candidate: cuDNN does not run its plan, or
// its work cannot be captured. Throws the error again if the device has failed.
inline void require_working(const Device& device) {
  cudaGetLastError();
  if (cudaStreamSynchronize(device.stream()) != cudaSuccess) throw;
}

// Returns the number of the candidate whose work takes the least time, measured as in a captured step, or an empty
// value if none of them runs. start(i, k): starts the work of candidate i for the k-th time.
[[nodiscard]] inline std::optional<std::size_t> fastest_of(const Device& device, std::size_t count,
                                                           FunctionRef<void(std::size_t i, std::size_t k)> start) {
  std::optional<std::size_t> best;
  double shortest = std::numeric_limits<double>::max();
  for (std::size_t i = 0; i < count; ++i) {
    try {
      for (std::size_t k = 0; k < 2; ++k) start(i, k);  // loads the kernels
      const Captured captured(device, [&] {
        for (std::size_t k = 0; k < repetitions; ++k) start(i, k);
      });
      const double time = captured.shortest(shortest);
      if (time >= shortest) continue;
      shortest = time;
      best = i;
    } catch (const DeviceError&) {
      require_working(device);
    }
  }
  return best;
}

}  // namespace detail

// Returns the index of the fastest plan of a graph, measured on memory of its own, or an empty value if there is too
// little memory. The stream must be idle, and no CUDA graph may be under capture. The repetitions alternate between two
// sets of operands if there is memory for both: so a repetition does not find its operands in the L2 cache.
[[nodiscard]] inline std::optional<std::size_t> fastest_plan(const Device& device, Handle& handle, const OpGraph& graph,
                                                             std::vector<Plan>& plans) {
  if (plans.size() == 1) return 0;
  device.use();
  cudaStream_t stream = device.stream();
  std::vector<detail::Scratch> memory;
  std::vector<std::vector<Binding>> sets;
  for (int set = 0; set < 2; ++set) {
    std::vector<Binding> operands;
    for (const auto& [uid, bytes] : graph.operands()) {
      memory.emplace_back(bytes);
      if (memory.back().data() == nullptr) break;
      // Values of which each byte is 0x3c are small in every type: 0.0115 in f32 and bf16, 1.06 in f16. With zeros the
      // device would run at higher clocks than with real data.
      device.check_op(cudaMemsetAsync(memory.back().data(), 0x3c, bytes, stream), "memory for a measurement");
      operands.push_back({uid, memory.back().data()});
    }
    if (operands.size() < graph.operands().size()) {
      if (set == 0) return {};
      break;
    }
    sets.push_back(std::move(operands));
  }
  std::size_t workspace_bytes = 0;
  for (const Plan& p : plans) workspace_bytes = std::max(workspace_bytes, p.workspace_bytes());
  const detail::Scratch workspace(workspace_bytes);
  if (workspace.data() == nullptr) return {};

  cudnnHandle_t raw = handle.on(stream);
  return detail::fastest_of(device, plans.size(), [&](std::size_t i, std::size_t k) {
    plans[i].run(raw, sets[k % sets.size()], workspace.data());
  });
}

// Returns the time of the work that `start` starts on the device's stream, as part of a captured step, in seconds. If
// cuDNN fails to run its plan, or the work cannot be captured, returns the largest number. The stream must be idle.
template <class F>
[[nodiscard]] double shortest_time(const Device& device, F&& start) {
  device.use();
  try {
    start();  // loads the kernels
    const detail::Captured captured(device, [&] {
      for (std::size_t k = 0; k < detail::repetitions; ++k) start();
    });
    return captured.shortest() / static_cast<double>(detail::repetitions);
  } catch (const DeviceError&) {
    detail::require_working(device);
    return std::numeric_limits<double>::max();
  }
}

}  // namespace tutti::cuda::cudnn
