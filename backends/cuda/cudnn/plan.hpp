// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/async_init.hpp>
#include <tutti/backends/cuda/cudnn/descriptor.hpp>
#include <tutti/backends/cuda/cudnn/graph.hpp>
#include <tutti/backends/cuda/device.hpp>

namespace tutti::cuda::cudnn {

// Throws DeviceError if this cuDNN does not support this GPU: tutti needs 9.8, and 9.11 dropped GPUs older than Turing.
inline void require_version(std::size_t version, const Device& device) {
  constexpr std::size_t oldest = 90800, first_without_volta = 91100;
  const bool volta = device.architecture() < 75;
  if (version >= oldest && !(volta && version >= first_without_volta)) return;
  fail<DeviceError>(
      "cudnn", volta ? "cuDNN 9.8 to 9.10 for " + device.name_and_capability() : "cuDNN 9.8 or newer",
      version_text(version),
      volta ? "install cuDNN 9.10 (pip's nvidia-cudnn-cu12==9.10.2.21); newer versions do not support this GPU"
            : "update cuDNN");
}

// cuDNN's handle of a device. Its creation takes long: it starts at begin(), or at the first use without begin().
class Handle {
 public:
  explicit Handle(const Device& device) : device_(device) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  [[nodiscard]] const Device& device() const noexcept { return device_; }
  void begin() {
    made_.begin([&d = device_] {
      require_version(cudnnGetVersion(), d);
      d.use();
      auto h = std::make_unique<Owned>();
      check(cudnnCreate(&h->raw), "handle", "a handle of " + d.name());
      return h;
    });
  }
  [[nodiscard]] cudnnHandle_t get() {
    begin();
    return made_.get().raw;
  }
  [[nodiscard]] cudnnHandle_t on(cudaStream_t stream) {
    cudnnHandle_t h = get();
    if (!stream_ || *stream_ != stream) {
      check(cudnnSetStream(h, stream), "handle", "its stream");
      stream_ = stream;
    }
    return h;
  }

 private:
  struct Owned {
    cudnnHandle_t raw = nullptr;
    Owned() = default;
    ~Owned() {
      if (raw != nullptr) cudnnDestroy(raw);
    }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;
  };

  const Device& device_;
  AsyncInit<Owned> made_;
  std::optional<cudaStream_t> stream_;
};

// The GPU for which plans are made: a GPU of this machine, or a GPU of another machine, given by its description.
class Target {
 public:
  explicit Target(Handle& handle) : handle_(&handle) {}
  // Throws DeviceError if cuDNN does not understand the description.
  explicit Target(std::string_view json) : described_(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, "device description") {
    described_.set(attr::device_json, std::span<const char>(json.data(), json.size()));
    described_.finalize("use a description from a GPU with the same cuDNN");
  }

  [[nodiscard]] cudnnHandle_t handle() const { return handle_ == nullptr ? nullptr : handle_->get(); }
  [[nodiscard]] const Descriptor& described() const noexcept { return described_; }

 private:
  Handle* handle_ = nullptr;
  Descriptor described_;
};

// Which engines may be chosen.
struct EngineFilter {
  bool deterministic = false;  // only engines that give the same bits every time
  bool exact_f32 = false;      // for f32 data: no engines that shorten the inputs, for example to TF32

  [[nodiscard]] bool allows(std::span<const cudnnBackendNumericalNote_t> notes) const {
    const auto has = [&](cudnnBackendNumericalNote_t n) {
      return std::find(notes.begin(), notes.end(), n) != notes.end();
    };
    // With any options, sums are f32, and inputs are not converted to a smaller type.
    if (has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION) || has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS))
      return false;
    if (deterministic && has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return false;
    return !(exact_f32 && has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE));
  }
};

// An operand of a run: its number in the graph and its address. A scalar's address is in the host's memory.
struct Binding {
  std::int64_t uid;
  const void* data;
};

// An execution plan: a graph with an engine for it.
class Plan {
 public:
  // Throws CudnnError if the engine does not run this graph.
  Plan(const Target& target, const Descriptor& config, const std::string& name) : Plan(name) {
    bind(target);
    plan_.set(attr::plan_config, config);
    finalize();
  }
  // Restores a plan from the text of Plan::json(). Throws CudnnError if it was made for another device or cuDNN.
  Plan(const Target& target, std::string_view json, const std::string& name) : Plan(name) {
    bind(target);
    plan_.set(attr::plan_json, std::span<const char>(json.data(), json.size()));
    finalize();
  }

  [[nodiscard]] const std::string& name() const noexcept { return plan_.name(); }
  [[nodiscard]] std::size_t workspace_bytes() const noexcept { return workspace_; }
  [[nodiscard]] std::string json() const { return plan_.get_text(attr::plan_json); }

  void run(cudnnHandle_t handle, std::span<const Binding> operands, void* workspace) {
    check(cudnnBackendExecute(handle, plan_.raw(), pack(operands, workspace).raw()), plan_.name(), "it to start");
  }

 private:
  explicit Plan(const std::string& name) : plan_(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "plan " + name) {}
  void bind(const Target& target) {
    if (target.handle() != nullptr)
      plan_.set(attr::plan_handle, target.handle());
    else
      plan_.set(attr::plan_device, target.described());
  }
  void finalize() {
    plan_.finalize();
    workspace_ = static_cast<std::size_t>(plan_.get(attr::plan_workspace));
  }

  // Returns the operands in cuDNN's form. Keeps the descriptor, because most steps have the same operands.
  const Descriptor& pack(std::span<const Binding> operands, void* workspace) {
    for (const Pack& p : packs_)
      if (p.workspace == workspace &&
          std::equal(p.operands.begin(), p.operands.end(), operands.begin(), operands.end(),
                     [](const Binding& a, const Binding& b) { return a.uid == b.uid && a.data == b.data; }))
        return p.descriptor;
    std::vector<std::int64_t> uids;
    std::vector<DataPointer> data;
    for (const Binding& b : operands) {
      uids.push_back(b.uid);
      data.push_back({const_cast<void*>(b.data)});
    }
    Descriptor d(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "operands of " + plan_.name());
    d.set(attr::pack_uids, uids).set(attr::pack_pointers, data).set(attr::pack_workspace, DataPointer{workspace});
    d.finalize();
    // A step uses one descriptor for each layer that shares this plan. A net has a few dozen layers of the same shape.
    if (packs_.size() == most_packs) packs_.erase(packs_.begin());
    packs_.push_back({{operands.begin(), operands.end()}, workspace, std::move(d)});
    return packs_.back().descriptor;
  }

  struct Pack {
    std::vector<Binding> operands;
    void* workspace;
    Descriptor descriptor;
  };
  static constexpr std::size_t most_packs = 64;

  Descriptor plan_;
  std::size_t workspace_ = 0;
  std::vector<Pack> packs_;
};

// Returns engine configurations for a graph, the best guess first: all proposals of the heuristics' mode A (in f32 the
// first two dozen use TF32, and proposals with exact products follow), and after them the fallbacks unless
// `guessed_only`.
[[nodiscard]] inline std::vector<Descriptor> engine_configs(const Target& target, OpGraph& graph,
                                                            bool guessed_only = false) {
  std::vector<Descriptor> found;
  const Descriptor& operations = graph.finish(target.handle());
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    const bool last = guessed_only || mode == CUDNN_HEUR_MODE_FALLBACK;
    Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, "heuristics of " + graph.name());
    heuristics.set(attr::heuristics_graph, operations).set(attr::heuristics_mode, mode);
    if (target.described()) heuristics.set(attr::heuristics_device, target.described());
    std::vector<Descriptor> some;
    std::size_t n = 0;
    try {
      heuristics.finalize();
      const std::int64_t there = heuristics.count(attr::heuristics_results);
      for (std::int64_t i = 0; i < there; ++i)
        some.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, "engine of " + graph.name());
      if (there > 0) n = heuristics.get_into(attr::heuristics_results, std::span(some));
    } catch (const CudnnError&) {
      // If one mode has no proposal for this graph, the other may have one.
      if (last && found.empty()) throw;
    }
    for (std::size_t i = 0; i < n; ++i) found.push_back(std::move(some[i]));
    if (last) break;
  }
  return found;
}

// Returns the numerical notes of a configuration's engine.
[[nodiscard]] inline std::vector<cudnnBackendNumericalNote_t> notes_of(const Descriptor& config) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR, config.name());
  config.get_into(attr::config_engine, engine);
  return engine.get_some(attr::engine_notes, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
}

// Why there is no plan for a graph. lasting: with this cuDNN and this device, there will never be one.
struct Refusal {
  std::string why;
  bool lasting = true;

  void operator()(const CudnnError& e) {
    why = e.what();
    lasting = lasting && e.unsupported();
  }
};

// Makes at most `most` plans of a graph, the best guess first. If cuDNN has no plan that the filter allows within
// `workspace_limit` bytes, returns an empty list and sets `refusal` to the reason for the last engine.
[[nodiscard]] inline std::vector<Plan> make_plans(const Target& target, OpGraph& graph, const EngineFilter& filter,
                                                  std::size_t workspace_limit, std::size_t most, Refusal& refusal,
                                                  bool guessed_only = false) {
  std::vector<Plan> plans;
  refusal = {"cuDNN has no engine for it", true};
  try {
    for (const Descriptor& config : engine_configs(target, graph, guessed_only)) {
      if (plans.size() == most) break;
      if (!filter.allows(notes_of(config))) {
        refusal.why = "the engines for it do not round or add in the required way";
        continue;
      }
      try {
        Plan plan(target, config, graph.name());
        if (plan.workspace_bytes() <= workspace_limit)
          plans.push_back(std::move(plan));
        else
          refusal.why = "it needs " + std::to_string(plan.workspace_bytes() >> 20) + " MiB of workspace";
      } catch (const CudnnError& e) {
        refusal(e);
      }
    }
  } catch (const CudnnError& e) {
    refusal(e);
  }
  return plans;
}

}  // namespace tutti::cuda::cudnn
