// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/engine/batch_slot.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/plan/arenas.hpp>
#include <tutti/engine/plan/plan_walk.hpp>
#include <tutti/engine/plan/planner.hpp>
#include <tutti/engine/plan/prepared_plan.hpp>
#include <tutti/engine/plan/require_room.hpp>
#include <tutti/engine/plan/weight_packs.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/tensor/memory.hpp>

// Definitions for executor.hpp, which includes this file unless they are compiled separately (core/separate.hpp).
namespace tutti {

struct Executor::Parts {
  Parts(Backend& b, const Graph& train) : arenas(b.memory()), slot(b, train), packs(b), walk(b, arenas, slot, packs) {}

  Arenas arenas;
  BatchSlot slot;
  WeightPacks packs;
  PlanWalk walk;
  std::vector<std::unique_ptr<PreparedPlan>> plans;
  PreparedPlan* last = nullptr;
  Buffer kept;  // metrics of evaluations
  StepScalars scalars;
  std::uint64_t id = next_run_id();
  std::vector<std::uint64_t> key;  // key of the current run; a member, to reuse its memory
};

TUTTI_CORE_FUNCTION Executor::Executor(Backend& backend, const Graph& forward, Options options)
    : Executor(backend, forward, options,
               [](const ArenaLayout&, const ArenaLayout&) { return static_cast<void*>(nullptr); }) {}

TUTTI_CORE_FUNCTION Executor::Executor(Backend& backend, const Graph& forward, Options options,
                                       PlaceGradients place_gradients)
    : b_(backend), options_(options), parts_(std::make_unique<Parts>(b_, train_)) {
  if (options.compute != DType::f32 && options.compute != DType::bf16 && options.compute != DType::f64 &&
      options.compute != DType::f16)
    fail<UsageError>("Executor", "a compute type of f32, bf16, f16 or f64", name_of(options.compute));
  if (!b_.computes_in(options.compute))
    fail<UsageError>("Executor", {"a compute type of f32 or bf16 on backend '", b_.name(), "'"},
                     name_of(options.compute),
                     options.compute == DType::f16 ? "only the cuda backend supports f16"
                                                   : "only the reference backend supports f64");
  const Graph fused = fuse(forward);
  train_ = differentiate(fused);
  b_.rewrite(train_, options.compute);
  eval_ = inference(fused);
  const DType master = options.compute == DType::f64 ? DType::f64 : DType::f32;
  parameters_ = parameter_layout(train_, master);
  states_ = state_layout(train_, master);
  parts_->arenas.allocate(parameters_, states_, place_gradients);
  parts_->walk.watch(options.watcher);
}

TUTTI_CORE_FUNCTION Executor::~Executor() = default;

TUTTI_CORE_FUNCTION PreparedPlan* Executor::find(std::int64_t rows, bool training) const {
  for (const auto& p : parts_->plans)
    if (p->plan.rows == rows && p->plan.training == training) return p.get();
  return nullptr;
}

TUTTI_CORE_FUNCTION PreparedPlan& Executor::prepared(std::int64_t rows, bool training) {
  if (PreparedPlan* const p = find(rows, training)) return *p;
  return make_ready(lay_out(rows, training));
}

TUTTI_CORE_FUNCTION std::unique_ptr<PreparedPlan> Executor::lay_out(std::int64_t rows, bool training) {
  auto p = std::make_unique<PreparedPlan>();
  p->graph = training ? &train_ : &eval_;
  PlanOptions o;
  o.compute = options_.compute;
  o.master = parameters_.dtype;
  o.training = training;
  o.shards = b_.shards();
  o.chunk_bytes = b_.chunk_bytes();
  o.one_by_one = options_.watcher != nullptr;
  o.keep_all = options_.keep_all || o.one_by_one;
  o.rows = rows;
  p->plan = make_plan(*p->graph, o, plan_queries(b_, *p), parameters_, states_);
  return p;
}

TUTTI_CORE_FUNCTION PreparedPlan& Executor::make_ready(std::unique_ptr<PreparedPlan> p) {
  const std::int64_t rows = p->plan.rows;
  const bool training = p->plan.training;
  require_room(b_,
               {rows, run_bytes(p->plan),
                parts_->arenas.activations().bytes() + parts_->arenas.scratch().bytes() + parts_->packs.bytes() +
                    parts_->slot.bytes(),
                2 * parameters_.bytes() + states_.bytes()},
               [&](std::int64_t n) { return run_bytes(lay_out(n, training)->plan); });
  prepare_kernels(b_, *p);
  parts_->slot.reserve(rows);
  parts_->arenas.reserve(p->plan, b_.threads());
  if (!training) Arenas::grow(b_.memory(), parts_->kept, kept_metrics * metrics_bytes);
  if (training && parts_->packs.bytes() < p->plan.packed_bytes)
    parts_->packs.describe(train_, p->plan, parameters_, parts_->arenas.parameters(), p->kernels);
  // Evaluation reads the training plan's packed weights. Forward nodes have the same numbers in both graphs.
  if (!training && parts_->packs.bytes() < p->plan.packed_bytes) prepared(rows, true);
  return *parts_->plans.emplace_back(std::move(p));
}

TUTTI_CORE_FUNCTION std::size_t Executor::run_bytes(const Plan& p) const {
  return p.activation_bytes + p.scratch_bytes + p.packed_bytes + parts_->slot.bytes_for(p.rows);
}

TUTTI_CORE_FUNCTION void Executor::run(PreparedPlan& p, const BatchView& batch, const StepScalars& scalars,
                                       const OnReady& on_ready) {
  parts_->slot.bind(batch);
  parts_->scalars = scalars;
  parts_->walk.set_scalars(&parts_->scalars);
  parts_->last = &p;
  // A run with a callback or a watcher between its segments is not replayed.
  if (on_ready || options_.watcher != nullptr) return parts_->walk.run(p, on_ready);
  make_key(&p);
  b_.replay(span_of(parts_->key), &parts_->scalars, [&] { parts_->walk.run(p, on_ready); });
  parts_->packs.set_stale(false);
}

// Sets the key from everything that determines what a walk requests of the backend. p: null for a part without rows.
TUTTI_CORE_FUNCTION void Executor::make_key(const PreparedPlan* p) {
  parts_->key.assign({p != nullptr ? p->id : 0, parts_->id, parts_->packs.id(), parts_->packs.stale() ? 1U : 0U});
  for (const void* at :
       {static_cast<const void*>(parts_->slot.images()), static_cast<const void*>(parts_->slot.labels()),
        static_cast<const void*>(parts_->arenas.activations().data()),
        static_cast<const void*>(parts_->arenas.scratch().data())})
    parts_->key.push_back(reinterpret_cast<std::uintptr_t>(at));
}

TUTTI_CORE_FUNCTION const Plan& Executor::prepare(std::int64_t rows, bool training) {
  return prepared(rows, training).plan;
}

TUTTI_CORE_FUNCTION bool Executor::prepare_within_memory(std::int64_t rows) {
  if (find(rows, true) != nullptr) return false;
  auto made = lay_out(rows, true);
  const Plan& p = made->plan;
  const Arenas& there = parts_->arenas;
  if (p.activation_bytes > there.activations().bytes() || p.scratch_bytes > there.scratch_stride() ||
      p.packed_bytes > parts_->packs.bytes() || parts_->slot.bytes_for(rows) > parts_->slot.bytes())
    return false;
  make_ready(std::move(made));
  return true;
}

TUTTI_CORE_FUNCTION std::size_t Executor::plans() const noexcept { return parts_->plans.size(); }

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
    parts_->slot.bind(batch);
    parts_->last = p;
  }
  parts_->walk.set_scalars(nullptr);
  // Packs weights that were changed between the steps: this is not part of the capture.
  parts_->packs.run();
  make_key(p);
  parts_->key.insert(parts_->key.end(), key.begin(), key.end());
  const auto all = [&] {
    begin();
    if (p != nullptr) parts_->walk.run(*p, on_ready);
    end();
  };
  if (options_.watcher != nullptr)
    all();
  else
    b_.replay(span_of(parts_->key), nullptr, all);
  parts_->packs.set_stale(false);
}

TUTTI_CORE_FUNCTION void Executor::give_gradients_to(GradientSink* sink) noexcept {
  parts_->walk.give_gradients_to(sink);
}

TUTTI_CORE_FUNCTION void Executor::repack() {
  parts_->packs.set_stale(true);
  parts_->packs.run();
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
  b_.memory().copy(parts_->kept.at(place * metrics_bytes), metrics_data(), metrics_bytes);
}

TUTTI_CORE_FUNCTION Metrics Executor::evaluate(const BatchView& batch) {
  start_evaluation(batch);
  return metrics();
}

TUTTI_CORE_FUNCTION TensorRef Executor::value(ValueId v) const {
  if (parts_->last == nullptr || v < 0 || static_cast<std::size_t>(v) >= parts_->last->plan.values.size())
    fail<UsageError>("Executor", "a value of the last run's graph", {"value ", v},
                     "gradients exist only after train()");
  const ValuePlace& at = parts_->last->plan.values[static_cast<std::size_t>(v)];
  if (at.where == ValueStorage::scratch || at.where == ValueStorage::nowhere)
    fail<UsageError>("Executor", "a value that the plan keeps", graph()[v].name, "set ExecutorOptions::keep_all");
  return {parts_->walk.find(at), at.desc.dtype, at.desc.shape};
}

TUTTI_CORE_FUNCTION void* Executor::parameter_data() const noexcept { return parts_->arenas.parameters().data(); }

TUTTI_CORE_FUNCTION void* Executor::gradient_data() const noexcept { return parts_->arenas.gradients(); }

TUTTI_CORE_FUNCTION void* Executor::state_data() const noexcept { return parts_->arenas.states().data(); }

TUTTI_CORE_FUNCTION void Executor::parameters_changed() noexcept { parts_->packs.set_stale(true); }

TUTTI_CORE_FUNCTION const void* Executor::kept_metrics_data() const noexcept { return parts_->kept.data(); }

TUTTI_CORE_FUNCTION Executor::MemoryUse Executor::memory() const {
  return {parameters_.bytes(),
          parameters_.bytes(),
          states_.bytes(),
          parts_->arenas.activations().bytes(),
          parts_->arenas.scratch().bytes(),
          parts_->packs.bytes()};
}

TUTTI_CORE_FUNCTION void Executor::profile(Profile* p) {
  parts_->walk.profile(p != nullptr ? &p->nodes : nullptr);
  if (p != nullptr) p->nodes.assign(train_.nodes.size(), {});
}

}  // namespace tutti
