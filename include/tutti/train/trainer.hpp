// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/function_ref.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/dist/any_strategy.hpp>
#include <tutti/dist/fingerprint.hpp>
#include <tutti/dist/solo.hpp>
#include <tutti/dist/strategy.hpp>
#include <tutti/graph/initialize.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/train/device_steps.hpp>
#include <tutti/train/executor.hpp>
#include <tutti/train/gradient_exchange.hpp>
#include <tutti/train/gradient_sum.hpp>
#include <tutti/train/loss_scale.hpp>
#include <tutti/train/parameter_update.hpp>
#include <tutti/train/state.hpp>
#include <tutti/train/trainer_options.hpp>
#include <tutti/train/weight_average.hpp>
#include <tutti/version.hpp>

namespace tutti {

// Trains a model on a backend with a strategy: forward, backward, reduction while backward goes on, update; and owns
// the optimizer state, the weight EMA and the committed copy of it all.
class Trainer {
 public:
  // A strategy of one's own is taken as it is; backend and strategy outlive this.
  template <DistributedStrategy S>
  Trainer(Backend& backend, S& strategy, const Graph& model, TrainerOptions options)
      : Trainer(Erased{}, backend, AnyStrategy::refer(strategy), model, std::move(options)) {}
  ~Trainer();

  // Its parts refer to each other.
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  [[nodiscard]] Executor& executor() noexcept { return *executor_; }
  [[nodiscard]] const TrainerOptions& options() const noexcept { return o_; }
  [[nodiscard]] AnyStrategy& strategy() noexcept { return s_; }
  // What the loss is multiplied by in this step.
  [[nodiscard]] double loss_scale() { return o_.dynamic_loss_scale ? loss_scale::value(counters()) : o_.loss_scale; }
  // Of all steps that were started. Waits for them where a device moves the loss scale.
  [[nodiscard]] Counters& counters() {
    if (o_.dynamic_loss_scale) settle();
    return counters_;
  }
  // Writes down each step from now on, and waits for it; null ends it.
  void trace(StepTrace* t) noexcept {
    trace_ = t;
    exchange_.trace(t, &since_);
  }
  [[nodiscard]] const CommittedState& committed() const noexcept { return committed_; }

  // Fresh weights from the seed, statistics at their start, optimizer state zero, step 0.
  void initialize();

  // One step of these micro-batches that nobody waits for, where the device ends steps itself
  // (backend/device_step.hpp); elsewhere, the same as step(). Gradients are those of the sum of all ranks' losses,
  // divided by global_rows. What the steps came to is in take_metrics(). Returns the flags of all ranks: of this step,
  // but on a device with several ranks of the step before, on all ranks alike. A loss that is not finite ends the run
  // some steps later: no step since has changed the weights, and NotFiniteError names the step.
  std::uint32_t step_async(std::span<const BatchView> parts, std::int64_t global_rows, double lr,
                           std::uint32_t flags = 0);
  // The same, waited for, with its own flags and metrics; these are not in take_metrics().
  StepResult step(std::span<const BatchView> parts, std::int64_t global_rows, double lr, std::uint32_t flags = 0);
  StepResult step(const BatchView& batch, std::int64_t global_rows, double lr, std::uint32_t flags = 0) {
    return step(std::span(&batch, 1), global_rows, lr, flags);
  }
  // Of this rank's rows, summed over the step_async() calls since it was called last. Waits for them.
  Metrics take_metrics();
  // Whether step_async() returns before the step is over.
  [[nodiscard]] bool runs_ahead() const noexcept { return device_ != nullptr && trace_ == nullptr; }

  // A step in two calls, for who looks at the gradients in between. The host waits for both, on every backend.
  //
  // One micro-batch: gradients of the sum of this rank's losses, divided by the rows of all ranks and all micro-batches
  // of the step together. `last`: the step's last one; only then do gradients travel, and with them the flags.
  Metrics accumulate(const BatchView& batch, std::int64_t global_rows, bool first, bool last, std::uint32_t flags = 0);

  // Ends a step: updates the weights with this rate, each bucket's as soon as its reduction is done. Returns the union
  // of all ranks' flags. Throws NotFiniteError, with the weights as they were, if any rank saw a loss that is not
  // finite.
  std::uint32_t update(double lr, const Metrics& mine);

  // Seconds that this rank has waited for the others' gradients; nothing where a device does so by itself.
  [[nodiscard]] std::optional<double> seconds_waited() const {
    if (device_ && !exchange_.alone()) return std::nullopt;
    return exchange_.seconds_waited();
  }

  // The share of its last second or less in which this rank's device computed, 0..1, where it tells.
  [[nodiscard]] std::optional<double> utilisation() const { return b_.utilisation(); }

  // What weight decay adds to the loss: half of its rate times the squared norm of the weights that decay.
  [[nodiscard]] double decay_term() { return update_.decay_term(); }

  Metrics evaluate(const BatchView& batch) { return executor_->evaluate(batch); }
  // Sums over all ranks.
  Metrics reduce(Metrics m) {
    double v[] = {m.loss, m.top1, m.topk, m.rows};
    s_.sum(v);
    return {v[0], v[1], v[2], v[3]};
  }

  // Runs f with the EMA weights (and the statistics averaged with them) in place of the weights.
  void with_ema(FunctionRef<void()> f);
  [[nodiscard]] bool has_ema() const noexcept { return o_.ema_decay > 0; }

  // Takes the second copy of the state.
  void commit();
  // Goes back to it.
  void restore();
  // The committed tensors by name: torchvision's for the model; momentum.<name> and so on for the optimizer.
  [[nodiscard]] std::vector<StateSpan> committed_tensors(bool optimizer);
  // Prepares the committed copy to be filled by name; restore() then takes it.
  void prepare_restore(const Counters& c) { committed_.reserve(arenas(), c); }
  // Everyone takes the authority's committed state.
  void synchronise();

  // Of build, options, precision and plan; equal on all ranks or they must not train together.
  [[nodiscard]] Fingerprint fingerprint() const;

 private:
  struct Erased {};
  Trainer(Erased, Backend& backend, AnyStrategy strategy, const Graph& model, TrainerOptions options);

  // What the device decides by itself needs neither the optimizer's code on the host nor a strategy there.
  void make_device_steps();
  std::uint32_t start(std::span<const BatchView> parts, std::int64_t global_rows, double lr, std::uint32_t flags,
                      bool counts);
  StepResult step_on_host(std::span<const BatchView> parts, std::int64_t global_rows, double lr, std::uint32_t flags);
  static void require_parts(std::span<const BatchView> parts);
  // Waits for the steps that run; what they came to is then in the counters.
  void settle() {
    if (device_) device_->settle();
  }
  void forget();

  void fill(const ArenaLayout& layout, void* to);

  void look_at(const Metrics& m) {
    if (!std::isfinite(m.loss)) flags_ |= step_flag::not_finite;
  }

  void reduce_until(std::size_t ready, const Metrics& m);
  [[nodiscard]] std::vector<StateArena> arenas();

  Backend& b_;
  AnyStrategy s_;
  TrainerOptions o_;
  GradientExchange exchange_;
  std::uint32_t flags_ = 0;
  std::unique_ptr<Executor> executor_;
  ParameterUpdate update_;
  WeightAverage ema_;
  GradientSum sum_{b_};
  StepTrace* trace_ = nullptr;
  Stopwatch since_;
  Metrics waiting_;  // of steps on the host that nobody asked for yet
  Counters counters_;
  CommittedState committed_;
  std::unique_ptr<DeviceSteps> device_;
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION Trainer::Trainer(Erased, Backend& backend, AnyStrategy strategy, const Graph& model,
                                     TrainerOptions options)
    : b_(backend),
      s_(std::move(strategy)),
      o_(std::move(options)),
      exchange_(b_, s_, o_),
      executor_(exchange_.make_executor(model)),
      update_(b_, o_, *executor_, exchange_.trainable(), exchange_.alone() ? nullptr : &exchange_.buckets()) {
  if (has_ema()) ema_ = WeightAverage(b_, *executor_);
  initialize();
  make_device_steps();
  s_.attach(executor_->parameters(), fingerprint());
}
TUTTI_CORE_FUNCTION Trainer::~Trainer() = default;

TUTTI_CORE_FUNCTION void Trainer::initialize() {
  fill(executor_->parameters(), executor_->parameter_data());
  fill(executor_->states(), executor_->state_data());
  update_.restart();
  if (has_ema()) ema_.restart();
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
  return device_->last();
}

TUTTI_CORE_FUNCTION Metrics Trainer::take_metrics() {
  Metrics m = std::exchange(waiting_, {});
  if (device_) m += device_->take_metrics();
  return m;
}

TUTTI_CORE_FUNCTION Metrics Trainer::accumulate(const BatchView& batch, std::int64_t global_rows, bool first, bool last,
                                                std::uint32_t flags) {
  const StepScalars scalars{loss_scale(), 1.0 / static_cast<double>(global_rows)};
  const bool sole = first && last, alone = exchange_.alone();
  if (first) settle();
  if (first) s_.begin_step(counters_.step + 1, false);
  exchange_.begin();
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
  if (!sole) sum_.add(executor_->parameters(), executor_->gradient_data(), first, last);
  if (last && !alone) reduce_until(exchange_.trainable(), m);
  if (trace_ != nullptr && last) trace_->backward_end = since_.seconds();
  return m;
}

TUTTI_CORE_FUNCTION std::uint32_t Trainer::update(double lr, const Metrics& mine) {
  const std::int64_t step = counters_.step + 1;
  const double scale = loss_scale();
  std::size_t waited = 1;  // buckets
  if (!exchange_.alone()) {
    exchange_.wait_for(0);
    flags_ = exchange_.word().read(b_.memory());
  }
  if ((flags_ & step_flag::not_finite) != 0) {
    exchange_.wait_for_all();
    fail_not_finite(step,
                    std::isfinite(mine.loss) ? "one on another rank that is not" : std::to_string(mine.mean_loss()));
  }
  const auto wait_for = [&](std::size_t buckets) {
    for (; !exchange_.alone() && waited < buckets; ++waited) exchange_.wait_for(waited);
  };
  bool fit = true;
  if (o_.dynamic_loss_scale && !update_.runs().empty()) {
    wait_for(exchange_.buckets().size());
    fit = std::isfinite(update_.squared_norm(step, scale));
    if (!loss_scale::move(counters_, fit)) fail_not_finite_gradients(step);
  }
  if (fit) update_.apply(step, scale, lr, wait_for);
  exchange_.take_states();
  s_.finish();
  if (trace_ != nullptr) trace_->end = since_.seconds();
  executor_->parameters_changed();
  counters_.step = step;
  if (has_ema()) ema_.update(WeightAverage::decay(o_.ema_decay, counters_.step));
  return flags_;
}

TUTTI_CORE_FUNCTION void Trainer::with_ema(FunctionRef<void()> f) {
  if (!has_ema()) fail<UsageError>("trainer", "an EMA of the weights", "none", "set --ema-decay");
  const auto swap = [&] {
    ema_.swap();
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

TUTTI_CORE_FUNCTION Fingerprint Trainer::fingerprint() const {
  Fingerprint f;
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
  if (on_host || (!exchange_.alone() && !s_.reads_device_memory())) return;
  DeviceUpdate u;
  u.runs.assign(update_.runs().begin(), update_.runs().end());
  u.op = o_.optimizer.update_op();
  u.trust = o_.optimizer.trust_ratio();
  u.clip_norm = o_.clip_norm;
  u.dynamic_loss_scale = o_.dynamic_loss_scale;
  u.weights = executor_->parameter_data();
  u.gradients = executor_->gradient_data();
  for (std::size_t i = 0; i < update_.slots().size(); ++i) u.slots[i] = update_.slots()[i].data();
  u.count = executor_->parameters().count;
  u.states = executor_->state_data();
  u.state_count = executor_->states().count;
  if (!exchange_.alone()) {
    u.state_sums = exchange_.state_sums();
    u.ranks = s_.size();
    u.word = exchange_.word().data();
  }
  if (has_ema()) {
    u.average = ema_.weights();
    u.state_average = ema_.states();
  }
  if (auto device = b_.device_step(u))
    device_ = std::make_unique<DeviceSteps>(b_, s_, o_, *executor_, exchange_, sum_, counters_, std::move(device));
}

TUTTI_CORE_FUNCTION std::uint32_t Trainer::start(std::span<const BatchView> parts, std::int64_t global_rows, double lr,
                                                 std::uint32_t flags, bool counts) {
  require_parts(parts);
  counters_.samples += global_rows;
  return device_->start(parts, global_rows, lr, flags, counts);
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
  if (device_) device_->forget();
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
  exchange_.reduce_until(ready, [&] {
    look_at(m);
    exchange_.word().write(b_.memory(), flags_);
  });
}

TUTTI_CORE_FUNCTION std::vector<StateArena> Trainer::arenas() {
  const ArenaLayout &p = executor_->parameters(), &s = executor_->states();
  std::vector<StateArena> list{{&p, static_cast<std::byte*>(executor_->parameter_data()), "", false},
                               {&s, static_cast<std::byte*>(executor_->state_data()), "", false}};
  const auto& slots = update_.slots();
  const bool adam = slots.size() == 2;
  for (std::size_t i = 0; i < slots.size(); ++i)
    list.push_back({&p, slots[i].at(0), !adam ? "momentum." : i == 0 ? "exp_avg." : "exp_avg_sq.", true});
  if (has_ema()) {
    list.push_back({&p, ema_.weights(), "ema.", true});
    list.push_back({&s, ema_.states(), "ema.", true});
  }
  return list;
}
#endif

}  // namespace tutti
