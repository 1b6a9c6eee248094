// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
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
#include <tutti/dist/strategy.hpp>
#include <tutti/graph/initialize.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/train/device_steps.hpp>
#include <tutti/train/gradient_exchange.hpp>
#include <tutti/train/gradient_sum.hpp>
#include <tutti/train/parameter_update.hpp>
#include <tutti/train/trainer.hpp>
#include <tutti/train/weight_average.hpp>
#include <tutti/version.hpp>

// What trainer.hpp declares. Included by it, except where it is compiled elsewhere (core/separate.hpp).
namespace tutti {

// What the pieces of a step need. They refer to each other.
struct Trainer::Parts {
  Parts(Backend& b, AnyStrategy& s, const TrainerOptions& o, const Graph& model)
      : exchange(b, s, o),
        executor(exchange.make_executor(model)),
        update(b, o, *executor, exchange.trainable(), exchange.alone() ? nullptr : &exchange.buckets()),
        sum(b) {}

  GradientExchange exchange;
  std::unique_ptr<Executor> executor;
  ParameterUpdate update;
  WeightAverage ema;
  GradientSum sum;
  std::unique_ptr<DeviceSteps> device;
};

TUTTI_CORE_FUNCTION Trainer::Trainer(Erased, Backend& backend, AnyStrategy strategy, const Graph& model,
                                     TrainerOptions options)
    : b_(backend),
      s_(std::move(strategy)),
      o_(std::move(options)),
      parts_(std::make_unique<Parts>(b_, s_, o_, model)),
      executor_(parts_->executor.get()) {
  if (has_ema()) parts_->ema = WeightAverage(b_, *executor_);
  initialize();
  make_device_steps();
  s_.attach(executor_->parameters(), fingerprint());
}
TUTTI_CORE_FUNCTION Trainer::~Trainer() = default;

TUTTI_CORE_FUNCTION void Trainer::initialize() {
  fill(executor_->parameters(), executor_->parameter_data());
  fill(executor_->states(), executor_->state_data());
  parts_->update.restart();
  if (has_ema()) parts_->ema.restart();
  executor_->parameters_changed();
  counters_ = {};
  forget();
}

TUTTI_CORE_FUNCTION std::uint32_t Trainer::step_async(std::span<const BatchView> parts, std::int64_t global_rows,
                                                      double lr, std::uint32_t flags) {
  if (runs_ahead()) return start(parts, global_rows, lr, flags, true);
  const StepResult r = step_on_host(parts, global_rows, lr, flags);
  waiting_ += r.metrics;
  return r.flags;
}

TUTTI_CORE_FUNCTION StepResult Trainer::step(std::span<const BatchView> parts, std::int64_t global_rows, double lr,
                                             std::uint32_t flags) {
  if (!runs_ahead()) return step_on_host(parts, global_rows, lr, flags);
  start(parts, global_rows, lr, flags, false);
  return parts_->device->last();
}

TUTTI_CORE_FUNCTION Metrics Trainer::take_metrics() {
  Metrics m = std::exchange(waiting_, {});
  if (parts_->device) m += parts_->device->take_metrics();
  return m;
}

TUTTI_CORE_FUNCTION Metrics Trainer::accumulate(const BatchView& batch, std::int64_t global_rows, bool first, bool last,
                                                std::uint32_t flags) {
  const StepScalars scalars{loss_scale(), 1.0 / static_cast<double>(global_rows)};
  const bool sole = first && last, alone = parts_->exchange.alone();
  if (first) settle();
  if (first) s_.begin_step(counters_.step + 1, false);
  parts_->exchange.begin();
  if (trace_ != nullptr && first) {
    *trace_ = {};
    since_.restart();
  }
  counters_.batches += 1;
  flags_ = first ? flags : flags_ | flags;
  Metrics m;
  if (batch.rows > 0) {
    // Where nobody listens, nothing is asked between the segments.
    m = executor_->train(batch, scalars,
                         sole && !alone ? [this](std::size_t ready) { reduce_until(ready, executor_->metrics()); }
                                        : Executor::OnReady{});
    look_at(m);
  } else {
    b_.memory().zero(executor_->gradient_data(), executor_->parameters().bytes());
  }
  if (!sole) parts_->sum.add(executor_->parameters(), executor_->gradient_data(), first, last);
  if (last && !alone) reduce_until(parts_->exchange.trainable(), m);
  if (trace_ != nullptr && last) trace_->backward_end = since_.seconds();
  return m;
}

TUTTI_CORE_FUNCTION std::uint32_t Trainer::update(double lr, const Metrics& mine) {
  const std::int64_t step = counters_.step + 1;
  const double scale = loss_scale();
  std::size_t waited = 1;  // buckets
  if (!parts_->exchange.alone()) {
    parts_->exchange.wait_for(0);
    flags_ = parts_->exchange.word().read(b_.memory());
  }
  if ((flags_ & step_flag::not_finite) != 0) {
    parts_->exchange.wait_for_all();
    fail_not_finite(step,
                    std::isfinite(mine.loss) ? "one on another rank that is not" : std::to_string(mine.mean_loss()));
  }
  const auto wait_for = [&](std::size_t buckets) {
    for (; !parts_->exchange.alone() && waited < buckets; ++waited) parts_->exchange.wait_for(waited);
  };
  bool fit = true;
  if (o_.dynamic_loss_scale && !parts_->update.runs().empty()) {
    wait_for(parts_->exchange.buckets().size());
    fit = std::isfinite(parts_->update.squared_norm(step, scale));
    if (!loss_scale::move(counters_, fit)) fail_not_finite_gradients(step);
  }
  if (fit) parts_->update.apply(step, scale, lr, wait_for);
  parts_->exchange.take_states();
  s_.finish();
  if (trace_ != nullptr) trace_->end = since_.seconds();
  executor_->parameters_changed();
  counters_.step = step;
  if (has_ema()) parts_->ema.update(WeightAverage::decay(o_.ema_decay, counters_.step));
  return flags_;
}

TUTTI_CORE_FUNCTION void Trainer::with_ema(FunctionRef<void()> f) {
  if (!has_ema()) fail<UsageError>("trainer", "an EMA of the weights", "none", "set --ema-decay");
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

TUTTI_CORE_FUNCTION void Trainer::commit() {
  settle();
  committed_.commit(b_.memory(), arenas(), counters_);
}

TUTTI_CORE_FUNCTION void Trainer::restore() {
  forget();
  counters_ = committed_.restore(b_.memory(), arenas());
  executor_->parameters_changed();
}

TUTTI_CORE_FUNCTION std::vector<StateSpan> Trainer::committed_tensors(bool optimizer) {
  return committed_.tensors(arenas(), optimizer);
}

TUTTI_CORE_FUNCTION void Trainer::synchronise() {
  commit();
  auto spans = committed_.tensors(arenas(), false);
  auto more = committed_.tensors(arenas(), true);
  spans.insert(spans.end(), more.begin(), more.end());
  spans.push_back(committed_.counters_span());
  s_.synchronise(spans);
  restore();
}

TUTTI_CORE_FUNCTION JobFacts Trainer::fingerprint() const {
  JobFacts f;
  if (s_.size() == 1) return f;
  f.add("tutti", std::string(version));
  for (const auto& [name, value] : o_.must_agree.facts()) f.add(name, value);
  f.add("precision", std::string(name_of(o_.compute)));
  f.add("optimizer", std::visit(
                         [](const auto& op) {
                           using Update = std::decay_t<decltype(op)>;
                           if constexpr (std::is_same_v<Update, op::SgdUpdate>)
                             return std::string(op.nesterov ? "nag " : "sgd ") + std::to_string(op.momentum);
                           else
                             return "adamw " + std::to_string(op.beta1) + " " + std::to_string(op.beta2);
                         },
                         o_.optimizer.update_op()) +
                         (o_.optimizer.per_tensor() ? " per tensor" : ""));
  for (const auto& [name, value] : {std::pair{"weight decay", o_.weight_decay},
                                    {"decay of all parameters", o_.decay_all ? 1.0 : 0.0},
                                    {"loss scale", o_.dynamic_loss_scale ? 0 : o_.loss_scale},
                                    {"clip norm", o_.clip_norm},
                                    {"EMA decay", o_.ema_decay}})
    f.add(name, std::to_string(value));
  f.add("seed", std::to_string(o_.seed));
  f.add("buckets", std::to_string(o_.first_bucket_bytes) + " and " + std::to_string(o_.bucket_bytes) + " bytes");
  for (const Slice& s : executor_->parameters().slices)
    f.add("parameter", s.name + " " + to_string(s.shape) + (s.trainable ? "" : " fixed") +
                           (s.rate == 1 ? "" : " rate " + std::to_string(s.rate)));
  return f;
}

TUTTI_CORE_FUNCTION void Trainer::make_device_steps() {
  const bool on_host = o_.optimizer.per_tensor() && !o_.optimizer.trust_ratio();
  if (on_host || (!parts_->exchange.alone() && !s_.reads_device_memory())) return;
  DeviceUpdate u;
  u.runs.assign(parts_->update.runs().begin(), parts_->update.runs().end());
  u.op = o_.optimizer.update_op();
  u.trust = o_.optimizer.trust_ratio();
  u.clip_norm = o_.clip_norm;
  u.dynamic_loss_scale = o_.dynamic_loss_scale;
  u.weights = executor_->parameter_data();
  u.gradients = executor_->gradient_data();
  for (std::size_t i = 0; i < parts_->update.slots().size(); ++i) u.slots[i] = parts_->update.slots()[i].data();
  u.count = executor_->parameters().count;
  u.states = executor_->state_data();
  u.state_count = executor_->states().count;
  if (!parts_->exchange.alone()) {
    u.state_sums = parts_->exchange.state_sums();
    u.ranks = s_.size();
    u.word = parts_->exchange.word().data();
  }
  if (has_ema()) {
    u.average = parts_->ema.weights();
    u.state_average = parts_->ema.states();
  }
  if (auto device = b_.device_step(u))
    parts_->device = std::make_unique<DeviceSteps>(b_, s_, o_, *executor_, parts_->exchange, parts_->sum, counters_,
                                                   std::move(device));
}

TUTTI_CORE_FUNCTION std::uint32_t Trainer::start(std::span<const BatchView> parts, std::int64_t global_rows, double lr,
                                                 std::uint32_t flags, bool counts) {
  require_parts(parts);
  counters_.samples += global_rows;
  return parts_->device->start(parts, global_rows, lr, flags, counts);
}

TUTTI_CORE_FUNCTION StepResult Trainer::step_on_host(std::span<const BatchView> parts, std::int64_t global_rows,
                                                     double lr, std::uint32_t flags) {
  require_parts(parts);
  StepResult r;
  for (std::size_t i = 0; i < parts.size(); ++i)
    r.metrics += accumulate(parts[i], global_rows, i == 0, i + 1 == parts.size(), flags);
  r.flags = update(lr, r.metrics);
  counters_.samples += global_rows;
  return r;
}

TUTTI_CORE_FUNCTION void Trainer::require_parts(std::span<const BatchView> parts) {
  if (parts.empty()) fail<UsageError>("trainer", "a step of one micro-batch or more", "none");
}

TUTTI_CORE_FUNCTION void Trainer::forget() {
  waiting_ = {};
  if (parts_->device) parts_->device->forget();
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

TUTTI_CORE_FUNCTION void Trainer::reduce_until(std::size_t ready, const Metrics& m) {
  parts_->exchange.reduce_until(ready, [&] {
    look_at(m);
    parts_->exchange.word().write(b_.memory(), flags_);
  });
}

TUTTI_CORE_FUNCTION std::vector<StateArena> Trainer::arenas() {
  const ArenaLayout &p = executor_->parameters(), &s = executor_->states();
  std::vector<StateArena> list{{&p, static_cast<std::byte*>(executor_->parameter_data()), "", false},
                               {&s, static_cast<std::byte*>(executor_->state_data()), "", false}};
  const auto& slots = parts_->update.slots();
  const bool adam = slots.size() == 2;
  for (std::size_t i = 0; i < slots.size(); ++i)
    list.push_back({&p, slots[i].at(0), !adam ? "momentum." : i == 0 ? "exp_avg." : "exp_avg_sq.", true});
  if (has_ema()) {
    list.push_back({&p, parts_->ema.weights(), "ema.", true});
    list.push_back({&s, parts_->ema.states(), "ema.", true});
  }
  return list;
}

TUTTI_CORE_FUNCTION void Trainer::trace(StepTrace* t) noexcept {
  trace_ = t;
  parts_->exchange.trace(t, &since_);
}

TUTTI_CORE_FUNCTION bool Trainer::runs_ahead() const noexcept { return parts_->device != nullptr && trace_ == nullptr; }

TUTTI_CORE_FUNCTION std::optional<double> Trainer::seconds_waited() const {
  if (parts_->device && !parts_->exchange.alone()) return std::nullopt;
  return parts_->exchange.seconds_waited();
}

TUTTI_CORE_FUNCTION double Trainer::decay_term() { return parts_->update.decay_term(); }

TUTTI_CORE_FUNCTION void Trainer::prepare_restore(const Counters& c) { committed_.reserve(arenas(), c); }

TUTTI_CORE_FUNCTION void Trainer::settle() {
  if (parts_->device) parts_->device->settle();
}

TUTTI_CORE_FUNCTION void Trainer::look_at(const Metrics& m) {
  if (!std::isfinite(m.loss)) flags_ |= step_flag::not_finite;
}

}  // namespace tutti
