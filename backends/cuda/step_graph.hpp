// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/device.hpp>
#include <tutti/core/threads/function_ref.hpp>

namespace tutti::cuda {

// Runs captured as CUDA graphs, with everything on which they depend as key. The first run of a key starts its ops
// without a graph, so that the libraries load what they need. The second run is captured, and from then on replayed.
class StepGraphs {
 public:
  explicit StepGraphs(Device& device) : device_(device) {
    device_.on_forget([this] { clear(); });
  }
  ~StepGraphs() {
    device_.on_forget({});
    clear();
  }
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  [[nodiscard]] bool capturing() const noexcept { return capturing_; }
  // Returns the number of graphs that are replayed.
  [[nodiscard]] std::size_t captured() const noexcept { return captured_; }

  // Runs f, or replays its graph. key: everything on which f's ops depend, mainly addresses. shared: memory that these
  // ops use too.
  void run(std::span<const std::uint64_t> key, std::initializer_list<const void*> shared, FunctionRef<void()> f) {
    key_.assign(key.begin(), key.end());  // reuses the memory of key_: repeated steps allocate no memory
    for (const void* at : shared) key_.push_back(reinterpret_cast<std::uintptr_t>(at));
    const auto at = graphs_.find(key_);
    if (at == graphs_.end()) {
      f();
      // Most of these graphs belong to destroyed models, which never request them again.
      if (graphs_.size() >= most) clear();
      graphs_.emplace(key_, nullptr);
      return;
    }
    if (at->second == nullptr) at->second = capture(f);
    device_.set_op("a captured step");
    device_.check_op(cudaGraphLaunch(at->second, device_.stream()), "a captured step started");
  }

 private:
  static constexpr std::size_t most = 64;

  void clear() noexcept {
    for (auto& [key, g] : graphs_)
      if (g != nullptr) cudaGraphExecDestroy(g);
    graphs_.clear();
  }

  template <class F>
  cudaGraphExec_t capture(F&& f) {
    struct Capture {
      bool& flag;
      cudaStream_t stream;
      cudaGraph_t graph = nullptr;
      // Ends the capture also if f throws.
      ~Capture() {
        if (std::exchange(flag, false)) cudaStreamEndCapture(stream, &graph);
        if (graph != nullptr) cudaGraphDestroy(graph);
      }
    } c{capturing_, device_.stream()};
    device_.check_op(cudaStreamBeginCapture(c.stream, cudaStreamCaptureModeThreadLocal), "the start of a capture");
    capturing_ = true;
    f();
    capturing_ = false;
    device_.check_op(cudaStreamEndCapture(c.stream, &c.graph), "a captured step");
    cudaGraphExec_t exec = nullptr;
    device_.check_op(cudaGraphInstantiate(&exec, c.graph, 0), "a captured step made ready");
    ++captured_;
    return exec;
  }

  Device& device_;
  std::vector<std::uint64_t> key_;
  std::map<std::vector<std::uint64_t>, cudaGraphExec_t> graphs_;
  bool capturing_ = false;
  std::size_t captured_ = 0;
};

}  // namespace tutti::cuda
