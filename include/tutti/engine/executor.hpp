// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/function_ref.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/arenas.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/batch_slot.hpp>
#include <tutti/engine/metrics.hpp>
#include <tutti/engine/plan_walk.hpp>
#include <tutti/engine/planner.hpp>
#include <tutti/engine/prepared_plan.hpp>
#include <tutti/engine/require_room.hpp>
#include <tutti/engine/weight_packs.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

struct ExecutorOptions {
  DType compute = DType::f32;  // f32, bf16; f64 on Reference, f16 on CUDA
  bool keep_all = false;
};

// Runs a model on a backend: owns its arenas, makes a plan per batch size and mode, and walks the plan's segments.
class Executor {
 public:
  using Options = ExecutorOptions;
  // Called during a training run when the first `slices` slices of the gradient arena are final, but for what
  // Backend::finish_gradients() is called for.
  using OnReady = PlanWalk::OnReady;

  // Given the layouts of parameters and running statistics, says where in the backend's memory the gradient arena lies;
  // null: in memory of its own.
  using PlaceGradients = Arenas::PlaceGradients;

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
  [[nodiscard]] void* parameter_data() const noexcept { return arenas_.parameters().data(); }
  [[nodiscard]] void* gradient_data() const noexcept { return arenas_.gradients(); }
  [[nodiscard]] void* state_data() const noexcept { return arenas_.states().data(); }
  void parameters_changed() noexcept { packs_.set_stale(true); }

  // Makes the plan for a batch size ahead of its first use and allocates what it needs.
  const Plan& prepare(std::int64_t rows, bool training);
  // What of such a training step runs whole and on one thread by Reference's loops, because the backend has no kernel
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
  [[nodiscard]] const void* kept_metrics_data() const noexcept { return kept_.data(); }

  // Where a value of the last run lies: logits always, others with keep_all.
  [[nodiscard]] TensorRef value(ValueId v) const;

  struct MemoryUse {
    std::size_t parameters, gradients, states, activations, scratch, packed;
  };
  [[nodiscard]] MemoryUse memory() const {
    return {parameters_.bytes(),           parameters_.bytes(),       states_.bytes(),
            arenas_.activations().bytes(), arenas_.scratch().bytes(), packs_.bytes()};
  }

  using Profile = PlanWalk::Profile;
  // Fills it from now on; null ends it.
  void profile(Profile* p) {
    walk_.profile(p);
    if (p != nullptr) p->nodes.assign(train_.nodes.size(), {});
  }

 private:
  static constexpr std::size_t metrics_bytes = 4 * sizeof(double);

  PreparedPlan& prepared(std::int64_t rows, bool training);
  std::unique_ptr<PreparedPlan> make(std::int64_t rows, bool training);
  // Of memory that a run with this plan allocates, on a device.
  [[nodiscard]] std::size_t run_bytes(const Plan& p) const;
  void run(PreparedPlan& p, const BatchView& batch, const StepScalars& scalars, const OnReady& on_ready);
  void make_key(const PreparedPlan* p);

  Backend& b_;
  Options options_;
  Graph train_, eval_;
  ArenaLayout parameters_, states_;
  Arenas arenas_{b_.memory()};
  BatchSlot slot_{b_, train_};
  WeightPacks packs_{b_};
  PlanWalk walk_{b_, arenas_, slot_, packs_};
  std::map<std::pair<std::int64_t, bool>, std::unique_ptr<PreparedPlan>> plans_;
  PreparedPlan* last_ = nullptr;
  Buffer kept_;  // metrics of evaluations
  StepScalars scalars_;
  std::uint64_t id_ = next_run_id();
  std::vector<std::uint64_t> key_;  // of the run, in the same memory each time
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION Executor::Executor(Backend& backend, const Graph& forward, Options options)
    : Executor(backend, forward, options,
               [](const ArenaLayout&, const ArenaLayout&) { return static_cast<void*>(nullptr); }) {}

TUTTI_CORE_FUNCTION Executor::Executor(Backend& backend, const Graph& forward, Options options,
                                       PlaceGradients place_gradients)
    : b_(backend), options_(options) {
  if (options.compute != DType::f32 && options.compute != DType::bf16 && options.compute != DType::f64 &&
      options.compute != DType::f16)
    fail<UsageError>("Executor", "a compute type of f32, bf16, f16 or f64", std::string(name_of(options.compute)));
  if (!b_.computes_in(options.compute))
    fail<UsageError>("Executor", "a compute type of f32 or bf16 on backend '" + b_.name() + "'",
                     std::string(name_of(options.compute)),
                     options.compute == DType::f16 ? "f16 runs on the cuda backend alone"
                                                   : "f64 runs on the reference backend alone");
  const Graph fused = fuse(forward);
  train_ = differentiate(fused);
  b_.rewrite(train_, options.compute);
  eval_ = inference(fused);
  const DType master = options.compute == DType::f64 ? DType::f64 : DType::f32;
  parameters_ = parameter_layout(train_, master);
  states_ = state_layout(train_, master);
  arenas_.allocate(parameters_, states_, place_gradients);
}

TUTTI_CORE_FUNCTION Executor::~Executor() = default;

TUTTI_CORE_FUNCTION PreparedPlan& Executor::prepared(std::int64_t rows, bool training) {
  auto& slot = plans_[{rows, training}];
  if (!slot) slot = make(rows, training);
  return *slot;
}

TUTTI_CORE_FUNCTION std::unique_ptr<PreparedPlan> Executor::make(std::int64_t rows, bool training) {
  auto p = std::make_unique<PreparedPlan>();
  p->graph = training ? &train_ : &eval_;
  PlanOptions o;
  o.compute = options_.compute;
  o.master = parameters_.dtype;
  o.training = training;
  o.lanes = b_.lanes();
  o.chunk_bytes = b_.chunk_bytes();
  o.keep_all = options_.keep_all;
  const auto plan_of = [&](PreparedPlan& of, std::int64_t n) {
    o.rows = n;
    return make_plan(*of.graph, o, plan_queries(b_, of), parameters_, states_);
  };
  p->plan = plan_of(*p, rows);
  require_room(b_,
               {rows, run_bytes(p->plan),
                arenas_.activations().bytes() + arenas_.scratch().bytes() + packs_.bytes() + slot_.bytes(),
                2 * parameters_.bytes() + states_.bytes()},
               [&](std::int64_t n) {
                 PreparedPlan smaller;
                 smaller.graph = p->graph;
                 return run_bytes(plan_of(smaller, n));
               });
  prepare_kernels(b_, *p);
  slot_.reserve(rows);
  arenas_.reserve(p->plan, b_.threads());
  if (!training) Arenas::grow(b_.memory(), kept_, kept_metrics * metrics_bytes);
  if (training && packs_.bytes() < p->plan.packed_bytes)
    packs_.describe(train_, p->plan, parameters_, arenas_.parameters(), p->kernels);
  // Evaluation reads the training plan's packed weights; forward nodes have the same numbers in both graphs.
  if (!training && packs_.bytes() < p->plan.packed_bytes) prepared(rows, true);
  return p;
}

TUTTI_CORE_FUNCTION std::size_t Executor::run_bytes(const Plan& p) const {
  return p.activation_bytes + p.scratch_bytes + p.packed_bytes + slot_.bytes_for(p.rows);
}

TUTTI_CORE_FUNCTION void Executor::run(PreparedPlan& p, const BatchView& batch, const StepScalars& scalars,
                                       const OnReady& on_ready) {
  slot_.bind(batch);
  scalars_ = scalars;
  walk_.set_scalars(&scalars_);
  last_ = &p;
  // Where somebody listens in between, nothing is replayed.
  if (on_ready) return walk_.run(p, on_ready);
  make_key(&p);
  b_.replay(key_, &scalars_, [&] { walk_.run(p, on_ready); });
  packs_.set_stale(false);
}

// Everything that decides what a walk asks of the backend; p: null for a part without rows.
TUTTI_CORE_FUNCTION void Executor::make_key(const PreparedPlan* p) {
  key_.assign({p != nullptr ? p->id : 0, id_, packs_.id(), packs_.stale() ? 1U : 0U});
  for (const void* at :
       {static_cast<const void*>(slot_.images()), static_cast<const void*>(slot_.labels()),
        static_cast<const void*>(arenas_.activations().data()), static_cast<const void*>(arenas_.scratch().data())})
    key_.push_back(reinterpret_cast<std::uintptr_t>(at));
}

TUTTI_CORE_FUNCTION const Plan& Executor::prepare(std::int64_t rows, bool training) {
  return prepared(rows, training).plan;
}

TUTTI_CORE_FUNCTION std::vector<std::string> Executor::fallbacks(std::int64_t rows) {
  return fallbacks_of(b_, prepared(rows, true));
}

TUTTI_CORE_FUNCTION Metrics Executor::train(const BatchView& batch, const StepScalars& scalars,
                                            const OnReady& on_ready) {
  run(prepared(batch.rows, true), batch, scalars, on_ready);
  return metrics();
}

TUTTI_CORE_FUNCTION void Executor::start(const BatchView& batch, const StepScalars* scalars,
                                         std::span<const std::uint64_t> key, const OnReady& on_ready,
                                         FunctionRef<void()> begin, FunctionRef<void()> end) {
  if (scalars != nullptr) {
    begin();
    if (batch.rows > 0) run(prepared(batch.rows, true), batch, *scalars, on_ready);
    return end();
  }
  PreparedPlan* const p = batch.rows > 0 ? &prepared(batch.rows, true) : nullptr;
  if (p != nullptr) {
    slot_.bind(batch);
    last_ = p;
  }
  walk_.set_scalars(nullptr);
  // Weights that somebody changed between the steps are no part of what is captured.
  packs_.run();
  make_key(p);
  key_.insert(key_.end(), key.begin(), key.end());
  b_.replay(key_, nullptr, [&] {
    begin();
    if (p != nullptr) walk_.run(*p, on_ready);
    end();
  });
  packs_.set_stale(false);
}

TUTTI_CORE_FUNCTION void Executor::repack() {
  packs_.set_stale(true);
  packs_.run();
}

TUTTI_CORE_FUNCTION Metrics Executor::metrics() const {
  const TensorRef m = value(train_.metrics);
  std::array<double, 4> host{};
  b_.memory().copy_out(host.data(), m.data, sizeof host);
  return {host[0], host[1], host[2], host[3]};
}

TUTTI_CORE_FUNCTION void Executor::start_evaluation(const BatchView& batch) {
  run(prepared(batch.rows, false), batch, StepScalars{}, {});
}

TUTTI_CORE_FUNCTION void Executor::keep_metrics(std::size_t place) {
  b_.memory().copy(kept_.at(place * metrics_bytes), metrics_data(), metrics_bytes);
}

TUTTI_CORE_FUNCTION Metrics Executor::evaluate(const BatchView& batch) {
  start_evaluation(batch);
  return metrics();
}

TUTTI_CORE_FUNCTION TensorRef Executor::value(ValueId v) const {
  if (last_ == nullptr || v < 0 || static_cast<std::size_t>(v) >= last_->plan.values.size())
    fail<UsageError>("Executor", "a value of the last run's graph", "value " + std::to_string(v),
                     "gradients exist after train() only");
  const ValuePlace& at = last_->plan.values[static_cast<std::size_t>(v)];
  if (at.where == Where::scratch || at.where == Where::nowhere)
    fail<UsageError>("Executor", "a value that the plan keeps", graph()[v].name, "set ExecutorOptions::keep_all");
  return {walk_.find(at), at.desc.dtype, at.desc.shape};
}
#endif

}  // namespace tutti
