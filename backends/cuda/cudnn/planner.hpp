// SPDX-License-Identifier: MIT
#pragma once

#include <cudnn.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backends/cuda/api/cublaslt.hpp>
#include <tutti/backends/cuda/api/nvrtc.hpp>
#include <tutti/backends/cuda/cudnn/graph.hpp>
#include <tutti/backends/cuda/cudnn/kernel_choices.hpp>
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
// or the first of cuDNN's heuristics (Tuning). Stores the choice. After take(), a plan is the one of the rank that all
// ranks follow, if that rank has one. Calls must come from one thread at a time, not while a CUDA graph is captured.
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
  // Returns the choices that were made so far, as text (KernelChoices).
  [[nodiscard]] std::string choices() const { return choices_.empty() ? "" : choices_.text(same_device()); }
  // Takes the choices of another rank. Prints a line if they do not fit this device. Returns true if a choice of this
  // rank was replaced: plans must be requested again. Throws DataError if the text is damaged.
  [[nodiscard]] bool take(std::string_view choices) {
    const KernelChoices::Taken taken = choices_.take(same_device(), choices);
    choices_.report(taken);
    if (taken.changed > 0) device_.synchronise();  // no run uses a plan that is replaced
    return taken.changed > 0;
  }

  // Returns a plan. If cuDNN has no engine that the options allow, returns an empty value and sets `why` to the reason.
  // type: of the data. optional: the caller can continue without a plan. In that case the fallbacks are used only with
  // fallback_fusions, and a refusal is stored too.
  [[nodiscard]] std::optional<cudnn::Plan> plan(cudnn::OpGraph graph, DType type, std::string& why,
                                                bool optional = false) {
    const bool guessed_only = optional && !options_.fallback_fusions;
    const std::string kind = guessed_only ? " of mode A" : "";
    const std::string timed = key_of(graph, "timed in a graph" + kind), guessed = key_of(graph, "guessed" + kind),
                      refused = key_of(graph, "refused" + kind), problem = "plan of " + graph.name() + kind;
    const cudnn::Target target(handle_);
    if (const auto* choice = choices_.find(problem)) {
      if (choice->text.starts_with(no_plan)) {
        why = choice->text.substr(no_plan.size());
        return {};
      }
      if (auto plan = restore_taken(target, *choice, timed, graph.name())) return plan;
      choices_.forget(problem);
    }
    if (choices_.must_guess(problem))
      return make(target, graph, type, why, optional, false, {timed, guessed, refused, problem});
    if (optional && !(options_.measured && store_.has_file(timed)))
      if (auto text = store_.load(refused)) {
        why = *std::move(text);
        choices_.record(problem, {false, no_plan + why});
        return {};
      }
    // A stored measured plan is used even without autotune: it is better than a guess.
    return tuning_.choose<cudnn::Plan>(
        timed, guessed,
        [&](const std::string& key) { return restore(target, key, problem, key == timed, graph.name()); },
        [&](bool measures) {
          return make(target, graph, type, why, optional, measures, {timed, guessed, refused, problem});
        });
  }

  // Returns true if the first of two ways to compute `what` is no slower than the second, or if nothing may be
  // measured. Both start work on the device's stream. The answer is stored. Must not be called while a CUDA graph is
  // captured.
  template <class One, class Other>
  [[nodiscard]] bool no_slower(const std::string& what, One&& one, Other&& other) {
    const std::string timed = key_of(what, "first of two ways in a graph"), guessed = timed + " | not measured";
    const std::string problem = "faster of two ways for " + what;
    if (const auto* choice = choices_.find(problem)) {
      if (choice->measured && store_.load(timed) != choice->text) store_.save(timed, choice->text);
      return choice->text == "yes";
    }
    if (choices_.must_guess(problem)) return true;
    const auto record = [&](bool measured, bool yes) {
      choices_.record(problem, {measured, yes ? "yes" : "no"});
      return yes;
    };
    const auto restore = [&](const std::string& key) -> std::optional<bool> {
      const auto kept = store_.load(key);
      return kept ? std::optional(record(key == timed, *kept == "yes")) : std::nullopt;
    };
    const auto make = [&](bool measures) -> std::optional<bool> {
      const bool yes = !measures || cudnn::shortest_time(device_, one) <= cudnn::shortest_time(device_, other);
      store_.save(measures ? timed : guessed, yes ? "yes" : "no");
      return record(measures, yes);
    };
    return *tuning_.choose<bool>(timed, guessed, restore, make);
  }

 private:
  // How many plans a measured choice compares. The heuristics' first guess is mostly one of the best three. An optional
  // plan has one candidate, because cuDNN needs a second to compile each of many such plans. The caller compares that
  // candidate with the unfused ops.
  static constexpr std::size_t candidates = 8;
  // Begins the choice of an optional plan that does not exist; the reason follows.
  inline static const std::string no_plan = "no plan: ";

  // The keys of a plan: in the store, and among the choices.
  struct Keys {
    const std::string &timed, &guessed, &refused, &problem;
  };
  // Makes, records and stores a plan for plan().
  [[nodiscard]] std::optional<cudnn::Plan> make(const cudnn::Target& target, cudnn::OpGraph& graph, DType type,
                                                std::string& why, bool optional, bool measures, const Keys& keys) {
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
      if (optional && refusal.lasting) store_.save(keys.refused, why);
      if (optional) choices_.record(keys.problem, {false, no_plan + why});
      return {};
    }
    const auto fastest = measures ? cudnn::fastest_plan(device_, handle_, graph, plans) : std::nullopt;
    cudnn::Plan& best = plans[fastest.value_or(0)];
    keep(fastest ? keys.timed : keys.guessed, keys.problem, fastest.has_value(), best);
    return std::move(best);
  }

  // Returns everything on which a stored plan depends.
  [[nodiscard]] std::string key_of(const cudnn::OpGraph& graph, std::string_view how) const {
    return key_of(graph.name(), how);
  }
  [[nodiscard]] std::string key_of(const std::string& what, std::string_view how) const {
    return what + " | " + std::string(how) + options_text() + " | workspace " +
           std::to_string(options_.workspace_limit) + " | cudnn " + cudnn::version_text(cudnnGetVersion()) +
           " | cuda " + cuda::version_text(versions_.runtime) + " driver " + cuda::version_text(versions_.driver) +
           " | " + device_.name() + " sm_" + std::to_string(device_.architecture());
  }
  [[nodiscard]] std::string options_text() const {
    return std::string(options_.deterministic ? " deterministic" : "") + (options_.tf32 ? " tf32" : "");
  }
  // Returns what must be equal for a rank to take choices. cuDNN itself refuses a plan that does not fit the driver.
  [[nodiscard]] std::string same_device() const {
    return "cudnn " + cudnn::version_text(cudnnGetVersion()) + " | cuda " + cuda::version_text(versions_.runtime) +
           " | " + device_.name() + " sm_" + std::to_string(device_.architecture()) + " |" + options_text() +
           (options_.fallback_fusions ? " fallbacks" : "") + (options_.measured ? "" : " not measured") +
           " workspace " + std::to_string(options_.workspace_limit);
  }

  std::optional<cudnn::Plan> restore(const cudnn::Target& target, const std::string& key, const std::string& problem,
                                     bool measured, const std::string& name) {
    auto text = store_.load(key);
    if (!text) return {};
    if (auto plan = plan_of(target, *text, name)) {
      choices_.record(problem, {measured, *std::move(text)});
      return plan;
    }
    // The stored plan is from another machine. The newly chosen plan replaces it.
    store_.forget(key);
    return {};
  }
  // Returns the plan of a choice that was taken from another rank or made earlier. A measured plan is stored, so that
  // later runs need not measure it.
  std::optional<cudnn::Plan> restore_taken(const cudnn::Target& target, const KernelChoices::Choice& choice,
                                           const std::string& timed, const std::string& name) {
    if (choice.text.empty()) return {};
    auto plan = plan_of(target, choice.text, name);
    if (!plan && !std::exchange(told_, true))
      std::fprintf(stderr,
                   "tutti: this rank's GPU does not run the plan that was chosen for all ranks for %s: this rank "
                   "chooses its own\n",
                   name.c_str());
    if (plan && choice.measured && store_.load(timed) != choice.text) store_.save(timed, choice.text);
    return plan;
  }
  // Returns the plan of this text, or an empty value if it is for another machine or needs too much memory.
  std::optional<cudnn::Plan> plan_of(const cudnn::Target& target, const std::string& text, const std::string& name) {
    try {
      cudnn::Plan plan(target, text, name);
      if (plan.workspace_bytes() <= options_.workspace_limit) {
        ++restored_;
        return plan;
      }
    } catch (const cudnn::CudnnError&) {
    }
    return {};
  }
  void keep(const std::string& key, const std::string& problem, bool measured, const cudnn::Plan& plan) {
    std::string text;
    try {
      text = plan.json();
      store_.save(key, text);
    } catch (const cudnn::CudnnError&) {
      // Plans of some engines have no form as text, so each process makes such a plan again.
    }
    choices_.record(problem, {measured, std::move(text)});
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
  KernelChoices choices_;
  std::size_t restored_ = 0;
  bool told_ = false;
};

}  // namespace tutti::cuda
