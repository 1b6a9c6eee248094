// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backend/backend.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/graph/planner.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/arenas.hpp>
#include <tutti/train/batch_slot.hpp>
#include <tutti/train/metrics.hpp>
#include <tutti/train/plan_walk.hpp>
#include <tutti/train/prepared_plan.hpp>
#include <tutti/train/require_room.hpp>
#include <tutti/train/weight_packs.hpp>

namespace tutti {

struct ExecutorOptions {
  DType compute = DType::f32;  // f32, bf16; f64 on Reference, f16 on CUDA
  bool keep_all = false;
};

// Runs a model on a backend: owns its arenas, makes a plan per batch size and mode, and walks the plan's segments.
template <Backend B>
class Executor {
 public:
  using Options = ExecutorOptions;
  // Called during a training run when the first `slices` slices of the gradient arena are final, but for what
  // finish_gradients() is called for (backend.hpp).
  using OnReady = typename PlanWalk<B>::OnReady;

  // `forward`: a model recorded on a Builder. `gradients`: memory of parameters().bytes() in the backend's space to use
  // as gradient arena, or null.
  Executor(B& backend, const Graph& forward, Options options = {}, void* gradients = nullptr);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  [[nodiscard]] B& backend() const noexcept { return b_; }
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

  // Forward and backward; fills the gradient arena with d(sum of losses * scalars).
  Metrics train(const BatchView& batch, const StepScalars& scalars, const OnReady& on_ready = {});
  // Of the run that is going on or the last one; final as soon as a slice of gradients is. Waits where a device runs
  // it.
  [[nodiscard]] Metrics metrics() const;
  // They lie there in the backend's memory, as four f64.
  [[nodiscard]] const void* metrics_data() const { return value(train_.metrics).data; }

  // A part of a step that nobody waits for: calls begin(), starts forward and backward, and calls end(), which starts
  // what belongs behind; a backend that captures such parts replays all of it, unless begin, on_ready or end would do
  // other things than before, which `key` tells. The backend has the numbers of the step from elsewhere (DeviceStep),
  // and end() repacks the weights it changes. Of a batch without rows, begin() and end() alone.
  template <class Begin, class End>
  void start(const BatchView& batch, const std::vector<std::uint64_t>& key, const OnReady& on_ready, Begin&& begin,
             End&& end);
  // After weights have changed, in the order of the backend's work.
  void repack() {
    packs_.set_stale(true);
    packs_.run();
  }
  // Forward with the running statistics.
  Metrics evaluate(const BatchView& batch);
  // The same that nobody waits for, where a device runs it; keep_metrics() then keeps what it came to, in the backend's
  // memory behind that of other evaluations, as four f64 each (evaluation_sum.hpp).
  static constexpr std::size_t kept_metrics = 256;
  void start_evaluation(const BatchView& batch);
  void keep_metrics(std::size_t place) { b_.copy(kept_.at(place * metrics_bytes), metrics_data(), metrics_bytes); }
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

  using Profile = typename PlanWalk<B>::Profile;
  // Fills it from now on; null ends it.
  void profile(Profile* p) {
    walk_.profile(p);
    if (p != nullptr) p->nodes.assign(train_.nodes.size(), {});
  }

 private:
  static constexpr std::size_t metrics_bytes = 4 * sizeof(double);
  static constexpr bool replays = requires(B & b, const std::vector<std::uint64_t>& key, const StepScalars* s) {
    b.replay(key, s, [] {});
  };

  PreparedPlan<B>& prepared(std::int64_t rows, bool training) {
    auto& slot = plans_[{rows, training}];
    if (!slot) slot = make(rows, training);
    return *slot;
  }

  std::unique_ptr<PreparedPlan<B>> make(std::int64_t rows, bool training) {
    auto p = std::make_unique<PreparedPlan<B>>();
    p->graph = training ? &train_ : &eval_;
    PlanOptions o;
    o.compute = options_.compute;
    o.master = parameters_.dtype;
    o.training = training;
    o.lanes = b_.lanes();
    o.chunk_bytes = b_.chunk_bytes();
    o.keep_all = options_.keep_all;
    const PlanQueries queries = plan_queries(b_);
    const auto plan_of = [&](std::int64_t n) {
      o.rows = n;
      return make_plan(*p->graph, o, queries, parameters_, states_);
    };
    p->plan = plan_of(rows);
    if constexpr (CountsFreeMemory<B>)
      require_room(b_,
                   {rows, run_bytes(p->plan),
                    arenas_.activations().bytes() + arenas_.scratch().bytes() + packs_.bytes() + slot_.bytes(),
                    2 * parameters_.bytes() + states_.bytes()},
                   [&](std::int64_t n) { return run_bytes(plan_of(n)); });
    prepare_ops(b_, *p);
    slot_.reserve(rows);
    arenas_.reserve(p->plan);
    if (!training) Arenas<B>::grow(b_, kept_, kept_metrics * metrics_bytes);
    if (training && packs_.bytes() < p->plan.packed_bytes)
      packs_.describe(train_, p->plan, parameters_, arenas_.parameters(), p->states);
    // Evaluation reads the training plan's packed weights; forward nodes have the same numbers in both graphs.
    if (!training && packs_.bytes() < p->plan.packed_bytes) prepared(rows, true);
    return p;
  }
  // Of memory that a run with this plan allocates, on a device.
  [[nodiscard]] std::size_t run_bytes(const Plan& p) const {
    return p.activation_bytes + p.scratch_bytes + p.packed_bytes + slot_.bytes_for(p.rows);
  }

  void run(PreparedPlan<B>& p, const BatchView& batch, const StepScalars& scalars, const OnReady& on_ready) {
    slot_.bind(batch);
    scalars_ = scalars;
    walk_.set_scalars(&scalars_);
    last_ = &p;
    // A backend that can replay what it was told before does so, where nobody listens in between.
    if constexpr (replays) {
      if (!on_ready) {
        make_key(&p);
        b_.replay(key_, &scalars_, [&] { walk_.run(p, on_ready); });
        packs_.set_stale(false);
        return;
      }
    }
    walk_.run(p, on_ready);
  }

  // Everything that decides what a walk asks of the backend; p: null for a part without rows.
  void make_key(const PreparedPlan<B>* p) {
    key_.assign({p != nullptr ? p->id : 0, id_, packs_.id(), packs_.stale() ? 1U : 0U});
    for (const void* at :
         {static_cast<const void*>(slot_.images()), static_cast<const void*>(slot_.labels()),
          static_cast<const void*>(arenas_.activations().data()), static_cast<const void*>(arenas_.scratch().data())})
      key_.push_back(reinterpret_cast<std::uintptr_t>(at));
  }

  B& b_;
  Options options_;
  Graph train_, eval_;
  ArenaLayout parameters_, states_;
  Arenas<B> arenas_{b_};
  BatchSlot<B> slot_{b_, train_};
  WeightPacks<B> packs_{b_};
  PlanWalk<B> walk_{b_, arenas_, slot_, packs_};
  std::map<std::pair<std::int64_t, bool>, std::unique_ptr<PreparedPlan<B>>> plans_;
  PreparedPlan<B>* last_ = nullptr;
  Buffer<B> kept_;  // metrics of evaluations
  StepScalars scalars_;
  std::uint64_t id_ = next_run_id();
  std::vector<std::uint64_t> key_;  // of the run, in the same memory each time
};

// What is called from outside is defined out here, so that it can be compiled elsewhere.

template <Backend B>
Executor<B>::Executor(B& backend, const Graph& forward, Options options, void* gradients)
    : b_(backend), options_(options) {
  if (options.compute != DType::f32 && options.compute != DType::bf16 && options.compute != DType::f64 &&
      options.compute != DType::f16)
    fail<UsageError>("Executor", "a compute type of f32, bf16, f16 or f64", std::string(name_of(options.compute)));
  if constexpr (!requires { requires B::has_f16; })
    if (options.compute == DType::f16)
      fail<UsageError>("Executor", "a compute type of f32 or bf16 on backend '" + b_.name() + "'", "f16",
                       "f16 runs on the cuda backend alone");
  if constexpr (requires { requires !B::has_f64; })
    if (options.compute == DType::f64)
      fail<UsageError>("Executor", "a compute type of f32 or bf16 on backend '" + b_.name() + "'", "f64",
                       "f64 runs on the reference backend alone");
  const Graph fused = fuse(forward);
  train_ = differentiate(fused);
  // A backend may run chains of ops as one.
  if constexpr (requires { b_.lower(train_, options.compute); }) b_.lower(train_, options.compute);
  eval_ = inference(fused);
  const DType master = options.compute == DType::f64 ? DType::f64 : DType::f32;
  parameters_ = parameter_layout(train_, master);
  states_ = state_layout(train_, master);
  arenas_.allocate(parameters_, states_, gradients);
}

template <Backend B>
Executor<B>::~Executor() = default;

template <Backend B>
const Plan& Executor<B>::prepare(std::int64_t rows, bool training) {
  return prepared(rows, training).plan;
}

template <Backend B>
Metrics Executor<B>::train(const BatchView& batch, const StepScalars& scalars, const OnReady& on_ready) {
  run(prepared(batch.rows, true), batch, scalars, on_ready);
  return metrics();
}

template <Backend B>
template <class Begin, class End>
void Executor<B>::start(const BatchView& batch, const std::vector<std::uint64_t>& key, const OnReady& on_ready,
                        Begin&& begin, End&& end) {
  PreparedPlan<B>* const p = batch.rows > 0 ? &prepared(batch.rows, true) : nullptr;
  if (p != nullptr) {
    slot_.bind(batch);
    last_ = p;
  }
  walk_.set_scalars(nullptr);
  // Weights that somebody changed between the steps are no part of what is captured.
  packs_.run();
  const auto all = [&] {
    begin();
    if (p != nullptr) walk_.run(*p, on_ready);
    end();
  };
  if constexpr (replays) {
    make_key(p);
    key_.insert(key_.end(), key.begin(), key.end());
    b_.replay(key_, nullptr, all);
  } else {
    all();
  }
  packs_.set_stale(false);
}

template <Backend B>
Metrics Executor<B>::metrics() const {
  const TensorRef m = value(train_.metrics);
  std::array<double, 4> host{};
  b_.copy_out(host.data(), m.data, sizeof host);
  return {host[0], host[1], host[2], host[3]};
}

template <Backend B>
void Executor<B>::start_evaluation(const BatchView& batch) {
  run(prepared(batch.rows, false), batch, StepScalars{}, {});
}

template <Backend B>
Metrics Executor<B>::evaluate(const BatchView& batch) {
  start_evaluation(batch);
  return metrics();
}

template <Backend B>
TensorRef Executor<B>::value(ValueId v) const {
  if (last_ == nullptr || v < 0 || static_cast<std::size_t>(v) >= last_->plan.values.size())
    fail<UsageError>("Executor", "a value of the last run's graph", "value " + std::to_string(v),
                     "gradients exist after train() only");
  const ValuePlace& at = last_->plan.values[static_cast<std::size_t>(v)];
  if (at.where == Where::scratch || at.where == Where::nowhere)
    fail<UsageError>("Executor", "a value that the plan keeps", graph()[v].name, "set ExecutorOptions::keep_all");
  return {walk_.find(at), at.desc.dtype, at.desc.shape};
}

}  // namespace tutti

#if defined(TUTTI_SEPARATE_COMPILATION)
#include <tutti/backend/reference.hpp>
namespace tutti {
TUTTI_CORE_INSTANCE(template class Executor<Reference>);
}
#endif
