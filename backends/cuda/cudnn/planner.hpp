// SPDX-License-Identifier: MIT
#pragma once

#include <cudnn.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/api/cublaslt.hpp>
#include <tutti/backends/cuda/api/nvrtc.hpp>
#include <tutti/backends/cuda/cudnn/graph.hpp>
#include <tutti/backends/cuda/cudnn/plan.hpp>
#include <tutti/backends/cuda/cudnn/plan_store.hpp>
#include <tutti/backends/cuda/cudnn/tuning.hpp>
#include <tutti/backends/cuda/cudnn/tuning_time.hpp>
#include <tutti/backends/cuda/device.hpp>
#include <tutti/core/dtype.hpp>

namespace tutti::cuda {

struct ConvolutionOptions {
  bool tf32 = false;      // f32 products with the precision of TF32
  bool autotune = false;  // if no measured plan is stored, measure the plans and take the fastest
  // How long the measurements of a process may take together (Tuning); empty: no limit.
  std::optional<std::chrono::duration<double>> tuning_limit{};
  bool deterministic = false;     // only kernels that give the same bits every time
  bool measured = true;           // take a stored plan that was the fastest in a measurement
  bool fallback_fusions = false;  // also fusions that cuDNN's heuristics propose only as a fallback
  std::size_t workspace_limit = std::size_t{1} << 30;         // bytes
  std::filesystem::path plan_folder = default_plan_folder();  // empty: plans are not stored
};

// Chooses plans for one device: a stored plan, otherwise the fastest in a measurement (with autotune, within its limit)
// or the first of cuDNN's heuristics (Tuning). Stores the choice. Calls must come from one thread at a time, not while
// a CUDA graph is captured.
class Planner {
 public:
  Planner(const Device& device, ConvolutionOptions options)
      : device_(device),
        handle_(device),
        options_(std::move(options)),
        store_(options_.plan_folder),
        tuning_(store_, {options_.autotune, options_.measured, options_.tuning_limit}) {}
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  [[nodiscard]] cudnn::Handle& handle() noexcept { return handle_; }
  [[nodiscard]] const ConvolutionOptions& options() const noexcept { return options_; }
  // Returns how many plans came from the store.
  [[nodiscard]] std::size_t restored() const noexcept { return restored_; }

  // Returns a plan. If cuDNN has no engine that the options allow, returns an empty value and sets `why` to the reason.
  // type: of the data. optional: the caller can continue without a plan. In that case the fallbacks are used only with
  // fallback_fusions, and a refusal is stored too.
  [[nodiscard]] std::optional<cudnn::Plan> plan(cudnn::OpGraph graph, DType type, std::string& why,
                                                bool optional = false) {
    const bool guessed_only = optional && !options_.fallback_fusions;
    const std::string kind = guessed_only ? " of mode A" : "";
    const std::string timed = key_of(graph, "timed in a graph" + kind), guessed = key_of(graph, "guessed" + kind),
                      refused = key_of(graph, "refused" + kind);
    const cudnn::Target target(handle_);
    if (optional && !(options_.measured && store_.has_file(timed)))
      if (auto text = store_.load(refused)) {
        why = *std::move(text);
        return {};
      }
    // A stored measured plan is used even without autotune: it is better than a guess.
    return tuning_.choose<cudnn::Plan>(
        timed, guessed, [&](const std::string& key) { return restore(target, key, graph.name()); },
        [&](bool measures) { return make(target, graph, type, why, optional, measures, timed, guessed, refused); });
  }

  // Returns true if the first of two ways to compute `what` is no slower than the second, or if nothing may be
  // measured. Both start work on the device's stream. The answer is stored. Must not be called while a CUDA graph is
  // captured.
  template <class One, class Other>
  [[nodiscard]] bool no_slower(const std::string& what, One&& one, Other&& other) {
    const std::string timed = key_of(what, "first of two ways in a graph"), guessed = timed + " | not measured";
    const auto restore = [&](const std::string& key) -> std::optional<bool> {
      const auto kept = store_.load(key);
      return kept ? std::optional(*kept == "yes") : std::nullopt;
    };
    const auto make = [&](bool measures) -> std::optional<bool> {
      const bool yes = !measures || cudnn::shortest_time(device_, one) <= cudnn::shortest_time(device_, other);
      store_.save(measures ? timed : guessed, yes ? "yes" : "no");
      return yes;
    };
    return *tuning_.choose<bool>(timed, guessed, restore, make);
  }

 private:
  // How many plans a measured choice compares. The heuristics' first guess is mostly one of the best three. An optional
  // plan has one candidate, because cuDNN needs a second to compile each of many such plans. The caller compares that
  // candidate with the unfused ops.
  static constexpr std::size_t candidates = 8;

  // Makes and stores a plan for plan().
  [[nodiscard]] std::optional<cudnn::Plan> make(const cudnn::Target& target, cudnn::OpGraph& graph, DType type,
                                                std::string& why, bool optional, bool measures,
                                                const std::string& timed, const std::string& guessed,
                                                const std::string& refused) {
    // cuDNN 9 opens both libraries by name and needs them to make plans. It opens and closes NVRTC for every plan,
    // which would take longer than the rest of the work. Stored plans need neither library.
    open_cublaslt();
    open_nvrtc();
    const cudnn::EngineFilter filter{options_.deterministic, type == DType::f32 && !options_.tf32};
    cudnn::Refusal refusal;
    std::vector<cudnn::Plan> plans =
        cudnn::make_plans(target, graph, filter, options_.workspace_limit, measures && !optional ? candidates : 1,
                          refusal, optional && !options_.fallback_fusions);
    if (plans.empty()) {
      why = std::move(refusal.why);
      if (optional && refusal.lasting) store_.save(refused, why);
      return {};
    }
    const auto fastest = measures ? cudnn::fastest_plan(device_, handle_, graph, plans) : std::nullopt;
    cudnn::Plan& best = plans[fastest.value_or(0)];
    keep(fastest ? timed : guessed, best);
    return std::move(best);
  }

  // Returns everything on which a stored plan depends.
  [[nodiscard]] std::string key_of(const cudnn::OpGraph& graph, std::string_view how) const {
    return key_of(graph.name(), how);
  }
  [[nodiscard]] std::string key_of(const std::string& what, std::string_view how) const {
    std::string key = what + " | " + std::string(how);
    if (options_.deterministic) key += " deterministic";
    if (options_.tf32) key += " tf32";
    return key + " | workspace " + std::to_string(options_.workspace_limit) + " | cudnn " +
           cudnn::version_text(cudnnGetVersion()) + " | cuda " + cuda::version_text(versions_.runtime) + " driver " +
           cuda::version_text(versions_.driver) + " | " + device_.name() + " sm_" +
           std::to_string(device_.architecture());
  }

  std::optional<cudnn::Plan> restore(const cudnn::Target& target, const std::string& key, const std::string& name) {
    const auto text = store_.load(key);
    if (!text) return {};
    try {
      cudnn::Plan plan(target, *text, name);
      if (plan.workspace_bytes() <= options_.workspace_limit) {
        ++restored_;
        return plan;
      }
    } catch (const cudnn::CudnnError&) {
      // The stored plan is from another machine. The newly chosen plan replaces it.
    }
    store_.forget(key);
    return {};
  }
  void keep(const std::string& key, const cudnn::Plan& plan) const {
    try {
      store_.save(key, plan.json());
    } catch (const cudnn::CudnnError&) {
      // Plans of some engines have no form as text, so each process makes such a plan again.
    }
  }

  struct Versions {
    int driver = 0, runtime = 0;
    Versions() {
      cudaDriverGetVersion(&driver);
      cudaRuntimeGetVersion(&runtime);
    }
  };

  const Device& device_;
  cudnn::Handle handle_;
  ConvolutionOptions options_;
  PlanStore store_;
  Tuning tuning_;
  Versions versions_;
  std::size_t restored_ = 0;
};

}  // namespace tutti::cuda
