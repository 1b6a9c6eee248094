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
#include <tutti/core/separate.hpp>
#include <tutti/core/threads/function_ref.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/call.hpp>
#include <tutti/engine/metrics.hpp>
#include <tutti/graph/graph.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/view.hpp>

namespace tutti {

struct Plan;          // engine/plan/plan.hpp
struct PreparedPlan;  // engine/plan/prepared_plan.hpp
class ValueWatcher;   // engine/value_watcher.hpp

struct ExecutorOptions {
  DType compute = DType::f32;  // f32, bf16; f64 on ReferenceBackend, f16 on CUDA
  bool keep_all = false;
  // Receives the result of each op; ops then run one after the other. Null: not used.
  ValueWatcher* watcher = nullptr;
};

// Runs a model on a backend: owns its arenas, makes a plan for each batch size, size of images and mode, and runs the
// plan's segments. A net that ends with a global pool takes images of any size: BatchView::size says which.
class Executor {
 public:
  using Options = ExecutorOptions;
  // Called during a training run when the first `slices` slices of the gradient arena are final, except for the work
  // that Backend::finish_gradients() starts.
  using OnReady = std::function<void(std::size_t slices)>;

  // Gets the layouts of parameters and running statistics. Returns memory of the backend for the gradient arena, or
  // null: then the executor allocates it.
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
  // The arenas. Call parameters_changed() after writing parameters.
  [[nodiscard]] void* parameter_data() const noexcept;
  [[nodiscard]] void* gradient_data() const noexcept;
  [[nodiscard]] void* state_data() const noexcept;
  void parameters_changed() noexcept;

  // Makes the plan for a batch size and a size of images before its first use and allocates its memory. Throws a
  // ShapeError that names the layer if the net takes no images of this size.
  const Plan& prepare(std::int64_t rows, bool training, ImageSize size = {});
  // Like prepare() for a training step, if that needs no more memory for runs than is allocated. Returns false if it
  // would need more, or if the plan already existed.
  bool prepare_within_memory(std::int64_t rows, ImageSize size = {});
  [[nodiscard]] bool has_plan(std::int64_t rows, bool training, ImageSize size = {}) const;
  // Call it after Backend::take_choices(). changed: what that returned; kernels of all plans are then prepared again.
  // In any case captured runs are captured again, because all ranks must capture a run together. The backend must be
  // idle.
  void prepare_again(bool changed);
  // Returns the number of plans.
  [[nodiscard]] std::size_t plans() const noexcept;
  // Returns the ops of a training step of this size that run by the reference loops as a whole on one thread, because
  // the backend has no kernel of its own: "op (layer)".
  [[nodiscard]] std::vector<std::string> fallbacks(std::int64_t rows);

  // Runs forward and backward. Fills the gradient arena with d(sum of losses * scalars).
  Metrics train(const BatchView& batch, const StepScalars& scalars, const OnReady& on_ready = {});
  // Returns the metrics of the current or the last run. They are final when one slice of gradients is final. Waits for
  // a device.
  [[nodiscard]] Metrics metrics() const;
  // Returns the address of the metrics in the backend's memory: four f64.
  [[nodiscard]] const void* metrics_data() const { return value(train_.metrics).data; }

  // Runs a part of a step: calls begin(), starts forward and backward, and calls end(), which starts the work after
  // them. For a batch without rows, calls only begin() and end(). scalars: filled in by begin(); null if the backend
  // gets them elsewhere (StepFinisher).
  // With null scalars, a backend that captures runs replays the whole part. `key` must differ if begin, on_ready or end
  // would do other work than before. This call does not wait, and end() repacks the weights that it changes.
  void start(const BatchView& batch, const StepScalars* scalars, std::span<const std::uint64_t> key,
             const OnReady& on_ready, FunctionRef<void()> begin, FunctionRef<void()> end);
  // Kernels on the host may give gradients of weights to this object in the following calls of start(), and then do not
  // write them to the arena (Call::sink). Null: all gradients are in the arena after a run.
  void give_gradients_to(GradientSink* sink) noexcept;
  // Packs the weights after they have changed, in the order of the backend's work.
  void repack();
  // Runs forward with the running statistics.
  Metrics evaluate(const BatchView& batch);
  // Like evaluate(), without waiting for a device. keep_metrics() then copies the result to number `place` of an array
  // in the backend's memory, as four f64 (evaluation_sum.hpp).
  static constexpr std::size_t kept_metrics = 256;
  void start_evaluation(const BatchView& batch);
  void keep_metrics(std::size_t place);
  [[nodiscard]] const void* kept_metrics_data() const noexcept;

  // Returns a value of the last run: the logits always, other values with keep_all.
  [[nodiscard]] TensorRef value(ValueId v) const;

  struct MemoryUse {  // Bytes of each kind.
    std::size_t parameters, gradients, states, activations, scratch, packed;
  };
  [[nodiscard]] MemoryUse memory() const;

  // Nanoseconds of CPU time per node and phase, summed over workers.
  struct Profile {
    std::vector<std::array<std::int64_t, 4>> nodes;
  };
  // Fills the profile from now on; null ends it.
  void profile(Profile* p);

 private:
  static constexpr std::size_t metrics_bytes = 4 * sizeof(double);

  struct Parts;  // executor_definitions.hpp
  struct Sized;  // the net for one size of images

  // Returns the net for a size of images; makes it at the first call.
  Sized& sized(ImageSize size);
  [[nodiscard]] Sized* find_sized(ImageSize size) const;
  [[nodiscard]] Sized& sized_of(const PreparedPlan& p) const;
  PreparedPlan& prepared(std::int64_t rows, bool training, Sized& net);
  [[nodiscard]] PreparedPlan* find(std::int64_t rows, bool training, const Sized& net) const;
  // Makes a plan with its kernels. make_ready() allocates memory for it.
  std::unique_ptr<PreparedPlan> lay_out(std::int64_t rows, bool training, const Sized& net);
  PreparedPlan& make_ready(std::unique_ptr<PreparedPlan> p);
  // Returns the bytes of memory that a run with this plan allocates on a device.
  [[nodiscard]] std::size_t run_bytes(const PreparedPlan& p) const;
  void run(PreparedPlan& p, const BatchView& batch, const StepScalars& scalars, const OnReady& on_ready);
  void make_key(const PreparedPlan* p, const Sized& net);

  Backend& b_;
  Options options_;
  Graph train_, eval_;
  ArenaLayout parameters_, states_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace tutti

#if TUTTI_CORE_DEFINITIONS
#include <tutti/engine/executor_definitions.hpp>
#endif
