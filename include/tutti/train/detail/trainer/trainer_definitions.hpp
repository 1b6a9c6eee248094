// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/graph/initialize.hpp>
#include <tutti/graph/parameter_groups.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/strategy/strategy.hpp>
#include <tutti/train/detail/trainer/batch_view.hpp>
#include <tutti/train/detail/trainer/frozen_states.hpp>
#include <tutti/train/detail/trainer/gradient_exchange.hpp>
#include <tutti/train/detail/trainer/host_spans.hpp>
#include <tutti/train/detail/trainer/logical_ranks.hpp>
#include <tutti/train/detail/trainer/optimizer_state.hpp>
#include <tutti/train/detail/trainer/shared_choices.hpp>
#include <tutti/train/detail/trainer/step_runner.hpp>
#include <tutti/train/detail/trainer/weight_average.hpp>
#include <tutti/train/trainer.hpp>

// Definitions of trainer.hpp, which includes this file unless they are compiled in another unit (core/separate.hpp).
namespace tutti {

// The parts of a step. They refer to each other.
struct Trainer::Parts {
  Parts(Backend& b, AnyStrategy& s, const TrainerOptions& o, const Graph& model)
      : as_built(model),
        exchange(b, s, o),
        executor(exchange.make_executor(model)),
        optimizer(b, o, *executor, exchange.trainable()) {}

  Graph as_built;
  GradientExchange exchange;
  std::unique_ptr<Executor> executor;
  OptimizerState optimizer;
  WeightAverage ema;
  ModelState state;
  std::unique_ptr<StepRunner> steps;
};

namespace detail {

// Requires options that a server can apply to one push, which holds a part of the model's gradients.
inline void require_pushes(const TrainerOptions& o) {
  const auto refuse = [](const char* what, const char* hint) {
    fail<UsageError>("trainer",
                     "updates that use only a part of one worker's gradients, because servers own the weights", what,
                     hint);
  };
  if (o.optimizer.per_tensor()) refuse("an optimizer that needs whole tensors", "use sgd, nag, adam or adamw");
  if (o.clip_norm > 0) refuse("a limit to the norm of all gradients", "leave out --clip-norm");
  if (o.dynamic_loss_scale) refuse("a dynamic loss scale", "give --loss-scale a number");
  if (o.sam.rho > 0) refuse("SAM: its steps must be the same on all workers", "leave out --sam, or use ps");
}

}  // namespace detail

TUTTI_CORE_FUNCTION Trainer::Trainer(Erased, Backend& backend, AnyStrategy strategy, const Graph& model,
                                     TrainerOptions options)
    : b_(backend),
      s_(std::move(strategy)),
      o_(detail::with_logical_ranks(std::move(options), backend, s_)),
      parts_(std::make_unique<Parts>(b_, s_, o_, model)),
      executor_(parts_->executor.get()) {
  if (s_.owns_weights()) detail::require_pushes(o_);
  o_.ema.require_valid();
  if (o_.ema.lookahead && !has_ema())
    fail<UsageError>("trainer", "an average of the weights for the lookahead", "ema_decay 0", "e.g. 0.95^5");
  o_.sam.require_valid();
  o_.early.require_valid();
  if (o_.early.steps > 0) (void)find_parameters(model, o_.early.parameters, "early training");
  if (o_.sam.rho > 0 && !b_.memory().on_host())
    fail<UsageError>("SAM", "a backend on the processor", {"'", b_.name(), "'"}, "leave out --sam");
  if (has_ema()) parts_->ema = WeightAverage(b_, *executor_);
  parts_->state = model_state();
  // A device supports neither a user's own optimizer nor servers, and no parts that change in the course of a run.
  const auto* const muon = std::get_if<MuonUpdate>(&parts_->optimizer.rules().op);
  const bool changes = o_.ema.lookahead || o_.early.steps > 0 || (muon != nullptr && muon->sparse_steps > 0);
  const bool on_host = changes || o_.logical_ranks > 0 || s_.owns_weights() || parts_->exchange.staged() ||
                       (o_.optimizer.has_factor() && !o_.optimizer.trust_ratio());
  const UpdateRules& rules = parts_->optimizer.rules();
  if (s_.owns_weights() && o_.ema.lookahead)
    fail<UsageError>("trainer", "no lookahead, because servers own the weights", "lookahead", "use --strategy mpi");
  parts_->steps = std::make_unique<StepRunner>(b_, s_, o_, *executor_, parts_->exchange, counters_, parts_->state,
                                               rules, on_host ? nullptr : b_.step_finisher(parts_->state, rules));
  initialize();
  ElasticMembership* const m = s_.members();
  const bool changes_in_place = m != nullptr && !m->restarts_processes() && m->step_assignments() == nullptr;
  // Memory for handing over the state is allocated before the members change.
  if (const std::size_t bytes = CommittedState::bytes_of(arenas()); changes_in_place && !s_.reads_device_memory())
    committed_.lie_in(m->state_memory(bytes), bytes);
  try {
    attach();
  } catch (const CommunicationError&) {
    // A member was lost. The next operation of this group fails too, and its caller has the next members.
    if (!changes_in_place) throw;
  }
}
TUTTI_CORE_FUNCTION Trainer::~Trainer() = default;

TUTTI_CORE_FUNCTION const Graph& Trainer::model() const noexcept { return parts_->as_built; }

TUTTI_CORE_FUNCTION void Trainer::initialize() {
  fill(executor_->parameters(), executor_->parameter_data());
  fill(executor_->states(), executor_->state_data());
  parts_->optimizer.restart();
  if (has_ema()) parts_->ema.restart();
  if (const IntegerSums* const sums = parts_->exchange.integers())
    b_.memory().zero(sums->levels(), sums->layout().bytes());
  executor_->parameters_changed();
  counters_ = {};
  parts_->steps->forget();
}

TUTTI_CORE_FUNCTION Trainer::Pending Trainer::step(const Batch& batch, double lr, std::uint32_t flags) {
  if (batch.schema != nullptr) training_images_ = batch.schema;
  const Graph& g = executor_->graph();
  if (batch.schema != nullptr && batch.resident == nullptr) size_ = {batch.schema->height, batch.schema->width};
  if (batch.count > 0 && batch.mixed.empty() == (g[g.labels].shape.rank() == 2))
    fail<UsageError>("trainer", batch.mixed.empty() ? "batches with mixed labels" : "batches with plain labels",
                     batch.mixed.empty() ? "plain labels" : "mixed labels",
                     "use Builder::mix_labels() for the net, and LoaderOptions::mix for its training images");
  micro_batches_.clear();
  if (o_.logical_ranks > 0) return step_by_rank(batch, lr, flags);
  const MicroBatches parts = micro_batches_of(batch.count);
  for (std::int64_t i = 0; i < parts.count(); ++i)
    micro_batches_.push_back(view_of(batch, parts.begin(i), parts.begin(i + 1)));
  return step(span_of(micro_batches_), batch.global_count, lr, flags);
}

TUTTI_CORE_FUNCTION Trainer::Pending Trainer::step(std::span<const BatchView> parts, std::int64_t global_rows,
                                                   double lr, std::uint32_t flags) {
  if (o_.logical_ranks > 0) {
    const std::int64_t ranks = placed().logical().count;
    if (static_cast<std::int64_t>(parts.size()) != ranks)
      fail<UsageError>("trainer", {ranks, " parts, one for each logical rank of this process"}, parts.size());
    rank_views_.assign(parts.begin(), parts.end());
    parts_->exchange.integers()->leave_out(0);
    return step_by_rank(global_rows, lr, flags);
  }
  if (parts.empty()) fail<UsageError>("trainer", "a step of one micro-batch or more", "no micro-batch");
  const StepParts all{parts, static_cast<std::int64_t>(parts.size()), {}, static_cast<std::uint64_t>(s_.rank())};
  return start(all, global_rows, lr, flags);
}

TUTTI_CORE_FUNCTION Trainer::Pending Trainer::start(const StepParts& parts, std::int64_t global_rows, double lr,
                                                    std::uint32_t flags) {
  double weight = 1;
  StepParts counted = parts;
  if (o_.logical_ranks == 0 && !placed_.bounds.empty()) {
    weight = static_cast<double>(parts.rows(0, parts.views.size()) * s_.size()) / static_cast<double>(global_rows);
    // Batch norm counts the batches of the first of equal shares, so that all processes save the same number.
    counted.batches = micro_batches_of(part_of(global_rows, 0, s_.size()).count).count();
  }
  parts_->exchange.weigh_states(weight);
  const std::uint32_t known = parts_->steps->start(counted, global_rows, lr, flags);
  return {*this, parts_->steps->next() - 1, known};
}

TUTTI_CORE_FUNCTION StepResult Trainer::Pending::wait() { return t_.parts_->steps->result(number_); }

TUTTI_CORE_FUNCTION void Trainer::set_momentum(double momentum) {
  if (!(momentum >= 0 && momentum < 1)) fail<UsageError>("trainer", "a momentum in [0, 1)", momentum);
  parts_->steps->set_momentum(momentum);
}

TUTTI_CORE_FUNCTION Metrics Trainer::take_metrics() { return parts_->steps->take_metrics(); }

TUTTI_CORE_FUNCTION void Trainer::attach() {
  const std::uint64_t generation = s_.membership().generation;
  if (attached_ == generation) return;
  s_.attach(executor_->parameters(), facts());
  attached_ = generation;
}

TUTTI_CORE_FUNCTION void Trainer::roll_back() { parts_->steps->roll_back(); }

TUTTI_CORE_FUNCTION void Trainer::reform(std::span<const StateSpan> extra) {
  roll_back();
  placed_.bounds.clear();
  parts_->exchange.begin_generation();
  parts_->steps->begin_generation();
  attached_.reset();
  attach();
  synchronise(extra);
  parts_->steps->take_over_step();
}

TUTTI_CORE_FUNCTION void Trainer::with_ema(FunctionRef<void()> f) {
  if (!has_ema()) fail<UsageError>("trainer", "an EMA of the weights", "no EMA", "set --ema-decay");
  const auto swap = [&] {
    parts_->ema.swap();
    executor_->parameters_changed();
  };
  swap();
  try {
    f();
  } catch (...) {
    swap();
    throw;
  }
  swap();
}

TUTTI_CORE_FUNCTION void Trainer::pull() {
  if (!s_.owns_weights()) return;
  settle();
  std::vector<StateSpan> state;
  for (StateSpan& s : arena_spans())
    if (s.name.ends_with("weights") && !is_average(s.name)) state.push_back(std::move(s));
  detail::HostSpans here(b_.memory(), state);
  s_.pull(here.spans());
  here.put_back();
  counters_.step = s_.progress();
  executor_->parameters_changed();
}

TUTTI_CORE_FUNCTION void Trainer::commit() {
  settle();
  pull();
  committed_.commit(b_.memory(), arenas(), counters_);
}

TUTTI_CORE_FUNCTION void Trainer::restore() {
  parts_->steps->forget();
  counters_ = committed_.restore(b_.memory(), arenas());
  executor_->parameters_changed();
}

TUTTI_CORE_FUNCTION std::vector<StateSpan> Trainer::committed_tensors(bool optimizer) {
  return committed_.tensors(arenas(), optimizer);
}

TUTTI_CORE_FUNCTION void Trainer::synchronise(std::span<const StateSpan> extra) {
  synchronised_ = true;
  if (s_.owns_weights()) {
    detail::HostSpans arenas_here(b_.memory(), arena_spans());
    std::vector<StateSpan> state(arenas_here.spans().begin(), arenas_here.spans().end());
    state.push_back(counters_span(counters_));
    state.insert(state.end(), extra.begin(), extra.end());
    s_.synchronise(span_of(state));
    arenas_here.put_back();
    behind_ = s_.progress() - counters_.step;
    counters_.step = s_.progress();
    executor_->parameters_changed();
    parts_->steps->forget();
    return;
  }
  settle();
  detail::SharedChoices choices(b_, s_);
  if (const auto spare = s_.reads_device_memory() ? parts_->steps->spare() : std::span<std::byte>(); !spare.empty())
    return synchronise_on_device(spare, extra, choices);
  ElasticMembership* const members = s_.members();
  if (members != nullptr && members->lacks_state())
    committed_.expect(arenas(), counters_);
  else
    commit();
  auto spans = committed_.tensors(arenas(), false);
  auto more = committed_.tensors(arenas(), true);
  spans.insert(spans.end(), more.begin(), more.end());
  spans.push_back(committed_.counters_span());
  choices.add_length(spans);
  spans.insert(spans.end(), extra.begin(), extra.end());
  s_.synchronise(span_of(spans));
  const bool took = members == nullptr || members->took_state();
  choices.receive();
  if (took)
    restore();
  else
    parts_->steps->forget();
  choices.take(*executor_);
}

// Copies from device to device, into a second copy that is used once it is complete.
TUTTI_CORE_FUNCTION void Trainer::synchronise_on_device(std::span<std::byte> second, std::span<const StateSpan> extra,
                                                        detail::SharedChoices& choices) {
  const std::vector<StateSpan> arenas = arena_spans();
  std::vector<StateSpan> state = arenas;
  std::size_t at = 0;
  for (StateSpan& s : state) {
    b_.memory().copy(second.data() + at, s.bytes.data(), s.bytes.size());
    s.bytes = second.subspan(at, s.bytes.size());
    at += s.bytes.size();
  }
  Counters theirs = counters_;
  state.push_back(counters_span(theirs));
  choices.add_length(state);
  state.insert(state.end(), extra.begin(), extra.end());
  s_.synchronise(span_of(state));
  choices.receive();
  for (std::size_t i = 0; i < arenas.size(); ++i)
    b_.memory().copy(arenas[i].bytes.data(), state[i].bytes.data(), state[i].bytes.size());
  counters_ = theirs;
  executor_->parameters_changed();
  parts_->steps->forget();
  choices.take(*executor_);
}

TUTTI_CORE_FUNCTION ModelState Trainer::model_state() const {
  ModelState m;
  m.dtype = executor_->parameters().dtype;
  m.weights = executor_->parameter_data();
  m.gradients = executor_->gradient_data();
  const std::vector<Buffer>& slots = parts_->optimizer.slots();
  for (std::size_t i = 0; i < slots.size(); ++i) m.slots[i] = slots[i].data();
  m.count = executor_->parameters().count;
  m.states = executor_->state_data();
  m.state_sums = parts_->exchange.state_sums();
  m.state_count = executor_->states().count;
  m.flags = parts_->exchange.flags();
  m.frozen_states = detail::frozen_states(model(), executor_->states());
  if (has_ema()) {
    m.average = parts_->ema.weights();
    m.state_average = parts_->ema.states();
  }
  return m;
}

TUTTI_CORE_FUNCTION void Trainer::fill(const ArenaLayout& layout, void* to) {
  std::vector<std::byte> host(layout.bytes());
  for (const Value& v : executor_->graph().values) {
    if (v.storage != Storage::parameter && v.storage != Storage::state) continue;
    const Slice* s = layout.find(v.name);
    if (s == nullptr) continue;
    if (layout.dtype == DType::f64)
      tutti::initialize(reinterpret_cast<double*>(host.data()) + s->offset, s->shape, v.init, o_.seed, s->name);
    else
      tutti::initialize(reinterpret_cast<float*>(host.data()) + s->offset, s->shape, v.init, o_.seed, s->name);
  }
  if (!host.empty()) b_.memory().copy_in(to, host.data(), host.size());
}

TUTTI_CORE_FUNCTION std::vector<StateArena> Trainer::arenas() {
  const ArenaLayout &p = executor_->parameters(), &s = executor_->states();
  std::vector<StateArena> list{{&p, static_cast<std::byte*>(executor_->parameter_data()), "", false},
                               {&s, static_cast<std::byte*>(executor_->state_data()), "", false}};
  const auto& slots = parts_->optimizer.slots();
  const bool adam = slots.size() == 2;
  for (std::size_t i = 0; i < slots.size(); ++i)
    list.push_back({&p, slots[i].at(0), !adam ? "momentum." : i == 0 ? "exp_avg." : "exp_avg_sq.", true});
  const std::string& average = o_.ema.lookahead ? lookahead_prefix : average_prefix;
  if (has_ema()) list.push_back({&p, parts_->ema.weights(), average, true});
  if (has_ema()) list.push_back({&s, parts_->ema.states(), average, true});
  if (const IntegerSums* const sums = parts_->exchange.integers())
    list.push_back({&sums->layout(), static_cast<std::byte*>(sums->levels()), "integer_sums.", true});
  return list;
}

// Returns the arenas in the form of the servers that own the weights.
TUTTI_CORE_FUNCTION std::vector<StateSpan> Trainer::arena_spans() {
  std::vector<StateSpan> list;
  for (const StateArena& a : arenas())
    list.push_back({a.prefix + (a.layout == &executor_->parameters() ? "weights" : "statistics"),
                    a.layout->dtype,
                    {static_cast<std::int64_t>(a.layout->count)},
                    {a.data, a.layout->bytes()}});
  return list;
}

TUTTI_CORE_FUNCTION void Trainer::trace(StepTrace* t) { parts_->steps->trace(t); }

TUTTI_CORE_FUNCTION bool Trainer::runs_ahead() const noexcept { return parts_->steps->runs_ahead(); }

TUTTI_CORE_FUNCTION std::optional<double> Trainer::seconds_waited() const {
  if (runs_ahead() && !parts_->exchange.alone()) return std::nullopt;
  return parts_->exchange.seconds_waited();
}

TUTTI_CORE_FUNCTION double Trainer::l2_penalty() { return parts_->optimizer.l2_penalty(); }

TUTTI_CORE_FUNCTION void Trainer::prepare_restore(const Counters& c) { committed_.reserve(arenas(), c); }

TUTTI_CORE_FUNCTION void Trainer::settle() { parts_->steps->settle(); }

}  // namespace tutti
#include <tutti/train/detail/trainer/trainer_facts.hpp>
#include <tutti/train/detail/trainer/trainer_logical_ranks.hpp>
#include <tutti/train/detail/trainer/trainer_memory.hpp>
#include <tutti/train/detail/trainer/trainer_tensors.hpp>
