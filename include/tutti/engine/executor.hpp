// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/function_ref.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/engine/metrics.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/view.hpp>

namespace tutti {

struct Plan;          // engine/plan.hpp
struct PreparedPlan;  // engine/prepared_plan.hpp
class ValueWatcher;   // engine/value_watcher.hpp

struct ExecutorOptions {
  DType compute = DType::f32;  // f32, bf16; f64 on ReferenceBackend, f16 on CUDA
  bool keep_all = false;
  // Is told what each op has come to; ops then run one after the other. Null: nobody is.
  ValueWatcher* watcher = nullptr;
};

// Runs a model on a backend: owns its arenas, makes a plan per batch size and mode, and walks the plan's segments.
class Executor {
 public:
  using Options = ExecutorOptions;
  // Called during a training run when the first `slices` slices of the gradient arena are final, but for what
  // Backend::finish_gradients() is called for.
  using OnReady = std::function<void(std::size_t slices)>;

  // Given the layouts of parameters and running statistics, says where in the backend's memory the gradient arena lies;
  // null: in memory of its own.
  using PlaceGradients = FunctionRef<void*(const ArenaLayout& parameters, const ArenaLayout& states)>;

  // `forward`: a model recorded on a Builder.
  Executor(Backend& backend, const Graph& forward, Options options = {});
  Executor(Backend& backend, const Graph& forward, Options options, PlaceGradients place_gradients);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  [[nodiscard]] Backend& backend() const noexcept { return b_; }
  [[nodiscard]] const Graph& graph() const noexcept { return train_; }
  [[nodiscard]] const ArenaLayout& parameters() const noexcept { return parameters_; }
  [[nodiscard]] const ArenaLayout& states() const noexcept { return states_; }
  [[nodiscard]] DType compute() const noexcept { return options_.compute; }
  // The arenas. Whoever writes parameters calls parameters_changed() afterwards.
  [[nodiscard]] void* parameter_data() const noexcept;
  [[nodiscard]] void* gradient_data() const noexcept;
  [[nodiscard]] void* state_data() const noexcept;
  void parameters_changed() noexcept;

  // Makes the plan for a batch size ahead of its first use and allocates what it needs.
  const Plan& prepare(std::int64_t rows, bool training);
  // The same of a training step where that takes no more memory for runs than there is. False: it would, or there was
  // one.
  bool prepare_within_memory(std::int64_t rows);
  [[nodiscard]] bool has_plan(std::int64_t rows, bool training) const { return find(rows, training) != nullptr; }
  // How many there are.
  [[nodiscard]] std::size_t plans() const noexcept;
  // What of such a training step runs whole and on one thread by the reference loops, because the backend has no kernel
  // of its own: "op (layer)".
  [[nodiscard]] std::vector<std::string> fallbacks(std::int64_t rows);

  // Forward and backward; fills the gradient arena with d(sum of losses * scalars).
  Metrics train(const BatchView& batch, const StepScalars& scalars, const OnReady& on_ready = {});
  // Of the run that is going on or the last one; final as soon as a slice of gradients is. Waits where a device runs
  // it.
  [[nodiscard]] Metrics metrics() const;
  // They lie there in the backend's memory, as four f64.
  [[nodiscard]] const void* metrics_data() const { return value(train_.metrics).data; }

  // A part of a step: calls begin(), starts forward and backward, and calls end(), which starts what belongs behind. Of
  // a batch without rows, begin() and end() alone. scalars: filled in by begin(); null where the backend has them from
  // elsewhere (StepEnd). Then a backend that captures such parts replays all of it, unless begin, on_ready or end would
  // do other things than before, which `key` tells; nobody waits, and end() repacks the weights it changes.
  void start(const BatchView& batch, const StepScalars* scalars, std::span<const std::uint64_t> key,
             const OnReady& on_ready, FunctionRef<void()> begin, FunctionRef<void()> end);
  // After weights have changed, in the order of the backend's work.
  void repack();
  // Forward with the running statistics.
  Metrics evaluate(const BatchView& batch);
  // The same that nobody waits for, where a device runs it; keep_metrics() then keeps what it came to, in the backend's
  // memory behind that of other evaluations, as four f64 each (evaluation_sum.hpp).
  static constexpr std::size_t kept_metrics = 256;
  void start_evaluation(const BatchView& batch);
  void keep_metrics(std::size_t place);
  [[nodiscard]] const void* kept_metrics_data() const noexcept;

  // Where a value of the last run lies: logits always, others with keep_all.
  [[nodiscard]] TensorRef value(ValueId v) const;

  struct MemoryUse {  // bytes of each kind
    std::size_t parameters, gradients, states, activations, scratch, packed;
  };
  [[nodiscard]] MemoryUse memory() const;

  // Nanoseconds of CPU time per node and phase, summed over workers.
  struct Profile {
    std::vector<std::array<std::int64_t, 4>> nodes;
  };
  // Fills it from now on; null ends it.
  void profile(Profile* p);

 private:
  static constexpr std::size_t metrics_bytes = 4 * sizeof(double);

  PreparedPlan& prepared(std::int64_t rows, bool training);
  [[nodiscard]] PreparedPlan* find(std::int64_t rows, bool training) const;
  // A plan with its kernels, which take memory when it is made ready.
  std::unique_ptr<PreparedPlan> lay_out(std::int64_t rows, bool training);
  PreparedPlan& make_ready(std::unique_ptr<PreparedPlan> p);
  // Of memory that a run with this plan allocates, on a device.
  [[nodiscard]] std::size_t run_bytes(const Plan& p) const;
  void run(PreparedPlan& p, const BatchView& batch, const StepScalars& scalars, const OnReady& on_ready);
  void make_key(const PreparedPlan* p);

  Backend& b_;
  Options options_;
  Graph train_, eval_;
  ArenaLayout parameters_, states_;
  struct Parts;  // executor_definitions.hpp
  std::unique_ptr<Parts> parts_;
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/engine/executor_definitions.hpp>
#endif
