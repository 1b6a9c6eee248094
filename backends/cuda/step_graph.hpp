// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/device.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/threads/function_ref.hpp>

namespace tutti::cuda {

// Runs captured as CUDA graphs, with everything on which they depend as key. The first run of a key starts its ops
// without a graph, so that the libraries load what they need. The second run is captured, and from then on replayed. A
// run that cannot be captured, for example because a custom op allocates memory, starts its ops one by one instead, and
// says so once.
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
      graphs_.emplace(key_, Entry{});
      return;
    }
    Entry& entry = at->second;
    if (entry.exec == nullptr && !entry.refused) {
      try {
        entry.exec = capture(f);
      } catch (const DeviceError& e) {
        // No op of a failed capture has run. If the device itself has failed, f() fails again.
        entry.refused = true;
        cudaGetLastError();
        if (device_.ranks() > 1)
          fail<DeviceError>("cuda", "a step captured as a CUDA graph, because other ranks capture theirs", e.what(),
                            "give all ranks --cuda-graph 0");
        if (!std::exchange(told_, true))
          std::fprintf(
              stderr,
              "tutti: a step cannot be captured as a CUDA graph, and runs without one, which is slower: %s hint: "
              "--cuda-graph 0 does not try it\n",
              e.what());
      }
    }
    if (entry.refused) return f();
    device_.set_op("a captured step");
    device_.check_op(cudaGraphLaunch(entry.exec, device_.stream()), "a captured step started");
  }

 private:
  static constexpr std::size_t most = 64;
  struct Entry {
    cudaGraphExec_t exec = nullptr;  // null before the capture
    bool refused = false;            // the capture has failed
  };

  void clear() noexcept {
    for (auto& [key, g] : graphs_)
      if (g.exec != nullptr) cudaGraphExecDestroy(g.exec);
    graphs_.clear();
  }

  template <class F>
  cudaGraphExec_t capture(F&& f) {
    struct Capture {
      bool& flag;
      const Device& device;
      cudaGraph_t graph = nullptr;
      // Ends the capture also if f throws.
      ~Capture() {
        if (std::exchange(flag, false)) cudaStreamEndCapture(device.stream(), &graph);
        if (graph != nullptr) cudaGraphDestroy(graph);
      }
    } c{capturing_, device_};
    device_.check_op(cudaStreamBeginCapture(device_.stream(), cudaStreamCaptureModeThreadLocal),
                     "the start of a capture");
    capturing_ = true;
    f();
    capturing_ = false;
    device_.check_op(cudaStreamEndCapture(device_.stream(), &c.graph), "a captured step");
    cudaGraphExec_t exec = nullptr;
    device_.check_op(cudaGraphInstantiate(&exec, c.graph, 0), "a captured step made ready");
    ++captured_;
    return exec;
  }

  Device& device_;
  std::vector<std::uint64_t> key_;
  std::map<std::vector<std::uint64_t>, Entry> graphs_;
  bool capturing_ = false, told_ = false;
  std::size_t captured_ = 0;
};

}  // namespace tutti::cuda
