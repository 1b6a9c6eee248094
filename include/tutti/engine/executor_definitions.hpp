// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
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
#include <tutti/engine/require_bf16.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/tensor/memory.hpp>

// Definitions for executor.hpp, which includes this file unless they are compiled separately (core/separate.hpp).
namespace tutti {

struct Executor::Sized {
  // train, eval: the graphs; they must outlive this object.
  Sized(Backend& b, const Arenas& arenas, const BatchSlot& slot, const Graph* train_graph, const Graph* eval_graph)
      : train(train_graph), eval(eval_graph), packs(b), walk(b, arenas, slot, packs) {
    const Shape& s = (*train)[train->images].shape;
    size = {s[2], s[3]};
  }

  std::array<std::unique_ptr<const Graph>, 2> own{};  // the graphs, for other sizes than the net's own
  const Graph *train, *eval;
  ImageSize size;
  WeightPacks packs;
  PlanWalk walk;
};

struct Executor::Parts {
  Parts(Backend& b, const Graph& train) : arenas(b.memory()), slot(b, train) {}

  Arenas arenas;
  BatchSlot slot;
  Graph fused;
  std::vector<std::unique_ptr<Sized>> sizes;  // the first one is the net's own
  std::vector<std::unique_ptr<PreparedPlan>> plans;
  PreparedPlan* last = nullptr;
  Sized* active = nullptr;  // of the last run or part, which may have had no rows
  PlanWalk::Profile* profile = nullptr;
  GradientSink* sink = nullptr;
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
  if (options.compute == DType::bf16) require_bf16(b_);
  if (!b_.computes_in(options.compute))
    fail<UsageError>("Executor", {"a compute type of f32 or bf16 on backend '", b_.name(), "'"},
                     name_of(options.compute),
                     options.compute == DType::f16 ? "only the cuda backend supports f16"
                                                   : "only the reference backend supports f64");
  parts_->fused = fuse(forward);
  train_ = differentiate(parts_->fused);
  b_.rewrite(train_, options.compute);
  eval_ = inference(parts_->fused);
  const DType master = options.compute == DType::f64 ? DType::f64 : DType::f32;
  parameters_ = parameter_layout(train_, master);
  states_ = state_layout(train_, master);
  parts_->arenas.allocate(parameters_, states_, place_gradients);
  parts_->sizes.push_back(std::make_unique<Sized>(b_, parts_->arenas, parts_->slot, &train_, &eval_));
  parts_->sizes.front()->walk.watch(options.watcher);
}

TUTTI_CORE_FUNCTION Executor::~Executor() = default;

TUTTI_CORE_FUNCTION Executor::Sized* Executor::find_sized(ImageSize size) const {
  if (size == ImageSize{}) return parts_->sizes.front().get();
  for (const auto& s : parts_->sizes)
    if (s->size == size) return s.get();
  return nullptr;
}

TUTTI_CORE_FUNCTION Executor::Sized& Executor::sized(ImageSize size) {
  if (Sized* const s = find_sized(size)) return *s;
  const Graph forward = with_image_size(parts_->fused, size.height, size.width);
  auto train = std::make_unique<Graph>(differentiate(forward)), eval = std::make_unique<Graph>(inference(forward));
  b_.rewrite(*train, options_.compute);
  auto made = std::make_unique<Sized>(b_, parts_->arenas, parts_->slot, train.get(), eval.get());
  made->own = {std::move(train), std::move(eval)};
  made->walk.watch(options_.watcher);
  made->walk.profile(parts_->profile);
  if (parts_->profile != nullptr) parts_->profile->resize(std::max(parts_->profile->size(), made->train->nodes.size()));
  made->walk.give_gradients_to(parts_->sink);
  return *parts_->sizes.emplace_back(std::move(made));
}

TUTTI_CORE_FUNCTION Executor::Sized& Executor::sized_of(const PreparedPlan& p) const {
  for (const auto& s : parts_->sizes)
    if (p.graph == s->train || p.graph == s->eval) return *s;
  return *parts_->sizes.front();
}

TUTTI_CORE_FUNCTION PreparedPlan* Executor::find(std::int64_t rows, bool training, const Sized& net) const {
  for (const auto& p : parts_->plans)
    if (p->plan.rows == rows && p->graph == (training ? net.train : net.eval)) return p.get();
  return nullptr;
}

TUTTI_CORE_FUNCTION bool Executor::has_plan(std::int64_t rows, bool training, ImageSize size) const {
  const Sized* const net = find_sized(size);
  return net != nullptr && find(rows, training, *net) != nullptr;
}

TUTTI_CORE_FUNCTION PreparedPlan& Executor::prepared(std::int64_t rows, bool training, Sized& net) {
  if (PreparedPlan* const p = find(rows, training, net)) return *p;
  return make_ready(lay_out(rows, training, net));
}

TUTTI_CORE_FUNCTION std::unique_ptr<PreparedPlan> Executor::lay_out(std::int64_t rows, bool training,
                                                                    const Sized& net) {
  auto p = std::make_unique<PreparedPlan>();
  p->graph = training ? net.train : net.eval;
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
  Sized& net = sized_of(*p);
  require_room(b_,
               {rows, run_bytes(*p),
                parts_->arenas.activations().bytes() + parts_->arenas.scratch().bytes() + net.packs.bytes() +
                    parts_->slot.bytes(),
                2 * parameters_.bytes() + states_.bytes()},
               [&](std::int64_t n) { return run_bytes(*lay_out(n, training, net)); });
  prepare_kernels(b_, *p);
  parts_->slot.reserve(rows, *p->graph);
  parts_->arenas.reserve(p->plan, b_.threads());
  if (!training) Arenas::grow(b_.memory(), parts_->kept, kept_metrics * metrics_bytes);
  if (training && net.packs.bytes() < p->plan.packed_bytes)
    net.packs.describe(*net.train, p->plan, parameters_, parts_->arenas.parameters(), p->kernels);
  // Evaluation reads the training plan's packed weights. Forward nodes have the same numbers in both graphs.
  if (!training && net.packs.bytes() < p->plan.packed_bytes) prepared(rows, true, net);
  return *parts_->plans.emplace_back(std::move(p));
}

TUTTI_CORE_FUNCTION std::size_t Executor::run_bytes(const PreparedPlan& made) const {
  const Plan& p = made.plan;
  return p.activation_bytes + p.scratch_bytes + p.packed_bytes + parts_->slot.bytes_for(p.rows, *made.graph);
}

TUTTI_CORE_FUNCTION void Executor::run(PreparedPlan& p, const BatchView& batch, const StepScalars& scalars,
                                       const OnReady& on_ready) {
  Sized& net = sized_of(p);
  parts_->active = &net;
  parts_->slot.bind(batch, *p.graph);
  parts_->scalars = scalars;
  net.walk.set_scalars(&parts_->scalars);
  parts_->last = &p;
  // A run with a callback or a watcher between its segments is not replayed.
  if (on_ready || options_.watcher != nullptr) return net.walk.run(p, on_ready);
  make_key(&p, net);
  b_.replay(span_of(parts_->key), &parts_->scalars, [&] { net.walk.run(p, on_ready); });
  net.packs.set_stale(false);
}

// Sets the key from everything that determines what a walk requests of the backend. p: null for a part without rows.
TUTTI_CORE_FUNCTION void Executor::make_key(const PreparedPlan* p, const Sized& net) {
  parts_->key.assign({p != nullptr ? p->id : 0, parts_->id, net.packs.id(), net.packs.stale() ? 1U : 0U});
  for (const void* at :
       {static_cast<const void*>(parts_->slot.images()), static_cast<const void*>(parts_->slot.labels()),
        static_cast<const void*>(parts_->arenas.activations().data()),
        static_cast<const void*>(parts_->arenas.scratch().data())})
    parts_->key.push_back(reinterpret_cast<std::uintptr_t>(at));
}

TUTTI_CORE_FUNCTION const Plan& Executor::prepare(std::int64_t rows, bool training, ImageSize size) {
  return prepared(rows, training, sized(size)).plan;
}

TUTTI_CORE_FUNCTION bool Executor::prepare_within_memory(std::int64_t rows, ImageSize size) {
  Sized& net = sized(size);
  if (find(rows, true, net) != nullptr) return false;
  auto made = lay_out(rows, true, net);
  const Plan& p = made->plan;
  const Arenas& there = parts_->arenas;
  if (p.activation_bytes > there.activations().bytes() || p.scratch_bytes > there.scratch_stride() ||
      p.packed_bytes > net.packs.bytes() || parts_->slot.bytes_for(rows, *made->graph) > parts_->slot.bytes())
    return false;
  make_ready(std::move(made));
  return true;
}

TUTTI_CORE_FUNCTION void Executor::prepare_again(bool changed) {
  for (const auto& p : parts_->plans) {
    if (changed) prepare_kernels(b_, *p);
    p->id = next_run_id();
  }
  parts_->id = next_run_id();  // of runs without a plan, which are captured too
}

TUTTI_CORE_FUNCTION std::size_t Executor::plans() const noexcept { return parts_->plans.size(); }

TUTTI_CORE_FUNCTION std::vector<std::string> Executor::fallbacks(std::int64_t rows) {
  return fallbacks_of(b_, prepared(rows, true, *parts_->sizes.front()));
}

TUTTI_CORE_FUNCTION Metrics Executor::train(const BatchView& batch, const StepScalars& scalars,
                                            const OnReady& on_ready) {
  run(prepared(batch.rows, true, sized(batch.size)), batch, scalars, on_ready);
  return metrics();
}

TUTTI_CORE_FUNCTION void Executor::start(const BatchView& batch, const StepScalars* scalars,
                                         std::span<const std::uint64_t> key, const OnReady& on_ready,
                                         FunctionRef<void()> begin, FunctionRef<void()> end) {
  Sized& net = sized(batch.size);
  parts_->active = &net;
  if (scalars != nullptr) {
    begin();
    if (batch.rows > 0) run(prepared(batch.rows, true, net), batch, *scalars, on_ready);
    return end();
  }
  PreparedPlan* const p = batch.rows > 0 ? &prepared(batch.rows, true, net) : nullptr;
  if (p != nullptr) {
    parts_->slot.bind(batch, *p->graph);
    parts_->last = p;
  }
  net.walk.set_scalars(nullptr);
  // Packs weights that were changed between the steps: this is not part of the capture.
  net.packs.run();
  make_key(p, net);
  parts_->key.insert(parts_->key.end(), key.begin(), key.end());
  const auto all = [&] {
    begin();
    if (p != nullptr) net.walk.run(*p, on_ready);
    end();
  };
  if (options_.watcher != nullptr)
    all();
  else
    b_.replay(span_of(parts_->key), nullptr, all);
  // The step may have changed the weights, and packed them for its own size.
  parameters_changed();
  net.packs.set_stale(false);
}

TUTTI_CORE_FUNCTION void Executor::give_gradients_to(GradientSink* sink) noexcept {
  parts_->sink = sink;
  for (const auto& s : parts_->sizes) s->walk.give_gradients_to(sink);
}

TUTTI_CORE_FUNCTION void Executor::repack() {
  parameters_changed();
  (parts_->active != nullptr ? *parts_->active : *parts_->sizes.front()).packs.run();
}

TUTTI_CORE_FUNCTION Metrics Executor::metrics() const {
  const TensorRef m = value(train_.metrics);
  std::array<double, 4> host{};
  b_.memory().copy_out(host.data(), m.data, sizeof host);
  return {host[0], host[1], host[2], host[3]};
}

TUTTI_CORE_FUNCTION void Executor::start_evaluation(const BatchView& batch) {
  run(prepared(batch.rows, false, sized(batch.size)), batch, StepScalars{}, {});
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
  return {sized_of(*parts_->last).walk.find(at), at.desc.dtype, at.desc.shape};
}

TUTTI_CORE_FUNCTION void* Executor::parameter_data() const noexcept { return parts_->arenas.parameters().data(); }

TUTTI_CORE_FUNCTION void* Executor::gradient_data() const noexcept { return parts_->arenas.gradients(); }

TUTTI_CORE_FUNCTION void* Executor::state_data() const noexcept { return parts_->arenas.states().data(); }

TUTTI_CORE_FUNCTION void Executor::parameters_changed() noexcept {
  for (const auto& s : parts_->sizes) s->packs.set_stale(true);
}

TUTTI_CORE_FUNCTION const void* Executor::kept_metrics_data() const noexcept { return parts_->kept.data(); }

TUTTI_CORE_FUNCTION Executor::MemoryUse Executor::memory() const {
  std::size_t packed = 0;
  for (const auto& s : parts_->sizes) packed += s->packs.bytes();
  return {parameters_.bytes(),
          parameters_.bytes(),
          states_.bytes(),
          parts_->arenas.activations().bytes(),
          parts_->arenas.scratch().bytes(),
          packed};
}

TUTTI_CORE_FUNCTION void Executor::profile(Profile* p) {
  parts_->profile = p != nullptr ? &p->nodes : nullptr;
  for (const auto& s : parts_->sizes) s->walk.profile(parts_->profile);
  if (p == nullptr) return;
  // The backend may rewrite the net differently for another size of images.
  std::size_t most = 0;
  for (const auto& s : parts_->sizes) most = std::max({most, s->train->nodes.size(), s->eval->nodes.size()});
  p->nodes.assign(most, {});
}

}  // namespace tutti
