// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/dist/fingerprint.hpp>
#include <tutti/dist/solo.hpp>
#include <tutti/dist/strategy.hpp>
#include <tutti/graph/initialize.hpp>
#include <tutti/optim/optimizer.hpp>
#include <tutti/train/executor.hpp>
#include <tutti/train/state.hpp>
#include <tutti/train/step_word.hpp>
#include <tutti/version.hpp>

namespace tutti {

struct TrainerOptions {
  DType compute = DType::f32;
  AnyOptimizer optimizer = Sgd{};
  double weight_decay = 1e-4;  // of the slices that decay: not batch norm, not biases
  bool decay_all = false;      // of those too
  double clip_norm = 0;        // largest global gradient norm; 0: none
  double loss_scale = 1;       // static
  // Begins at 2^16, halves where gradients overflow, whose step then changes nothing, and doubles after 2,000 steps
  // without (Micikevicius et al. 2018).
  bool dynamic_loss_scale = false;
  double ema_decay = 0;    // weight EMA; 0: none
  std::uint64_t seed = 1;  // of the initial weights
  std::size_t bucket_bytes = std::size_t{16} << 20;
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::chrono::milliseconds deadline{600'000};  // of one reduction
  Fingerprint must_agree{};                     // what else must be the same on all ranks: data, options
};

// When things happened in a step, in seconds from its beginning.
struct StepTrace {
  struct Reduction {
    std::size_t bytes;
    double ready;  // the gradients were final and the bucket was handed to the strategy
    double taken;  // the update had waited for it
  };
  std::vector<Reduction> buckets;
  double backward_end = 0, waited = 0, end = 0;  // waited: what the update spent on waiting for reductions
};

// What one step came to.
struct StepResult {
  Metrics metrics;  // of all ranks, if reduced
  std::uint32_t flags = 0;
};

// Trains a model on a backend with a strategy: forward, backward, reduction while backward goes on, update; and owns
// the optimizer state, the weight EMA and the committed copy of it all.
template <Backend B, DistributedStrategy S = Solo>
class Trainer {
 public:
  Trainer(B& backend, S& strategy, const Graph& model, TrainerOptions options)
      : b_(backend), s_(strategy), o_(std::move(options)), executor_(make_executor(model)) {
    const ArenaLayout& p = executor_->parameters();
    for (int i = 0; i < o_.optimizer.slots(); ++i) slots_.push_back(Buffer<B>(b_, p.bytes()));
    if (o_.ema_decay > 0) {
      ema_ = Buffer<B>(b_, p.bytes());
      ema_states_ = Buffer<B>(b_, executor_->states().bytes());
    }
    trainable_ = 0;
    while (trainable_ < p.slices.size() && p.slices[trainable_].trainable) ++trainable_;
    buckets_ = make_buckets(p, o_.bucket_bytes, o_.first_bucket_bytes);
    while (!buckets_.empty() && buckets_.back().first >= trainable_) buckets_.pop_back();
    if (!buckets_.empty() && buckets_.back().last > trainable_) {
      buckets_.back().last = trainable_;
      buckets_.back().end = p.slices[trainable_].offset;
    }
    if (s_.size() > 1 && buckets_.empty())
      fail<UsageError>("trainer", "a model with something to learn", "none", "there is nothing to share between ranks");
    works_.resize(buckets_.size());
    runs_ = make_runs();
    initialize();
    s_.attach(p, fingerprint());
  }

  [[nodiscard]] Executor<B>& executor() noexcept { return *executor_; }
  [[nodiscard]] const TrainerOptions& options() const noexcept { return o_; }
  [[nodiscard]] S& strategy() noexcept { return s_; }
  // What the loss is multiplied by in this step.
  [[nodiscard]] double loss_scale() const noexcept {
    return o_.dynamic_loss_scale ? std::ldexp(1.0, static_cast<int>(counters_.scale_exponent)) : o_.loss_scale;
  }
  [[nodiscard]] Counters& counters() noexcept { return counters_; }
  // Writes down each step from now on; null ends it.
  void trace(StepTrace* t) noexcept { trace_ = t; }
  [[nodiscard]] const CommittedState& committed() const noexcept { return committed_; }

  // Fresh weights from the seed, statistics at their start, optimizer state zero, step 0.
  void initialize() {
    fill(executor_->parameters(), executor_->parameter_data());
    fill(executor_->states(), executor_->state_data());
    for (auto& s : slots_) b_.zero(s.data(), s.bytes());
    if (o_.ema_decay > 0) copy_to_ema();
    executor_->parameters_changed();
    counters_ = {};
  }

  // One micro-batch: gradients of the sum of this rank's losses, divided by the rows of all ranks and all micro-batches
  // of the step together. `last`: the step's last one; only then do gradients travel, and with them the flags.
  Metrics accumulate(const BatchView& batch, std::int64_t global_rows, bool first, bool last, std::uint32_t flags = 0) {
    const StepScalars scalars{loss_scale(), 1.0 / static_cast<double>(global_rows)};
    const bool sole = first && last;
    next_bucket_ = 0;
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
                           sole && s_.size() > 1
                               ? [this](std::size_t ready) { reduce_until(ready, executor_->metrics()); }
                               : typename Executor<B>::OnReady{});
      look_at(m);
    } else {
      b_.zero(executor_->gradient_data(), executor_->parameters().bytes());
    }
    if (!sole) {
      if (sum_.bytes() == 0) sum_ = Buffer<B>(b_, executor_->parameters().bytes());
      const ArenaLayout& p = executor_->parameters();
      if (first)
        b_.copy(sum_.data(), executor_->gradient_data(), p.bytes());
      else
        b_.accumulate(p.dtype, sum_.data(), executor_->gradient_data(), p.count);
      if (last) b_.copy(executor_->gradient_data(), sum_.data(), p.bytes());
    }
    if (last && s_.size() > 1) reduce_until(trainable_, m);
    if (trace_ != nullptr && last) trace_->backward_end = since_.seconds();
    return m;
  }

  // Ends a step: updates the weights with this rate, each bucket's as soon as its reduction is done. Returns the union
  // of all ranks' flags. Throws NotFiniteError, with the weights as they were, if any rank saw a loss that is not
  // finite.
  std::uint32_t update(double lr, const Metrics& mine) {
    scale_ = loss_scale();
    waited_ = 1;  // the first bucket
    if (s_.size() > 1) {
      wait_for(0);
      flags_ = word_.read(b_);
    }
    if ((flags_ & step_flag::not_finite) != 0) {
      for (std::size_t i = 0; i < works_.size(); ++i) wait_for(i);
      fail<NotFiniteError>(
          "step " + std::to_string(counters_.step + 1), "a finite loss",
          std::isfinite(mine.loss) ? "one on another rank that is not" : std::to_string(mine.mean_loss()),
          "lower --lr, lengthen --warmup-epochs or set --clip-norm; the last checkpoint is kept");
    }
    if (!o_.dynamic_loss_scale || gradients_fit()) apply(lr);
    take_states();
    s_.finish();
    if (trace_ != nullptr) trace_->end = since_.seconds();
    executor_->parameters_changed();
    counters_.step += 1;
    if (o_.ema_decay > 0) update_ema();
    return flags_;
  }

  // accumulate() and update() for the common case of one batch a step.
  StepResult step(const BatchView& batch, std::int64_t global_rows, double lr, std::uint32_t flags = 0) {
    StepResult r;
    r.metrics = accumulate(batch, global_rows, true, true, flags);
    r.flags = update(lr, r.metrics);
    counters_.samples += global_rows;
    return r;
  }

  // What weight decay adds to the loss: half of its rate times the squared norm of the weights that decay.
  [[nodiscard]] double decay_term() {
    scale_ = 1;
    double term = 0;
    for (const Run& r : runs_)
      if (r.weight_decay > 0) term += r.weight_decay / 2 * b_.squared_norms(call(r.begin, r.end)).weights;
    return term;
  }

  Metrics evaluate(const BatchView& batch) { return executor_->evaluate(batch); }
  // Sums over all ranks.
  Metrics reduce(Metrics m) {
    double v[] = {m.loss, m.top1, m.topk, m.rows};
    s_.sum(v);
    return {v[0], v[1], v[2], v[3]};
  }

  // Runs f with the EMA weights (and the statistics averaged with them) in place of the weights.
  template <class F>
  void with_ema(F&& f) {
    if (o_.ema_decay <= 0) fail<UsageError>("trainer", "an EMA of the weights", "none", "set --ema-decay");
    swap_ema();
    try {
      f();
    } catch (...) {
      swap_ema();
      throw;
    }
    swap_ema();
  }
  [[nodiscard]] bool has_ema() const noexcept { return o_.ema_decay > 0; }

  // Takes the second copy of the state.
  void commit() { committed_.commit(b_, arenas(), counters_); }
  // Goes back to it.
  void restore() {
    counters_ = committed_.restore(b_, arenas());
    executor_->parameters_changed();
  }
  // The committed tensors by name: torchvision's for the model; momentum.<name> and so on for the optimizer.
  [[nodiscard]] std::vector<StateSpan> committed_tensors(bool optimizer) {
    return committed_.tensors(arenas(), optimizer);
  }
  // Prepares the committed copy to be filled by name; restore() then takes it.
  void prepare_restore(const Counters& c) { committed_.reserve(arenas(), c); }
  // Everyone takes the authority's committed state.
  void synchronise() {
    commit();
    auto spans = committed_.tensors(arenas(), false);
    auto more = committed_.tensors(arenas(), true);
    spans.insert(spans.end(), more.begin(), more.end());
    spans.push_back(committed_.counters_span());
    s_.synchronise(spans);
    restore();
  }

  // Of build, options, precision and plan; equal on all ranks or they must not train together.
  [[nodiscard]] Fingerprint fingerprint() const {
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
      f.add("parameter", s.name + " " + to_string(s.shape) + (s.trainable ? "" : " fixed"));
    return f;
  }

 private:
  // The gradients lie behind the step's word, so that one reduction takes it along, and before a place for the running
  // statistics.
  std::unique_ptr<Executor<B>> make_executor(const Graph& model) {
    const ExecutorOptions options{o_.compute, false};
    if (s_.size() == 1) return std::make_unique<Executor<B>>(b_, model, options);
    if constexpr (!std::is_base_of_v<HostMemory, B>) require_device_reader();
    const DType master = o_.compute == DType::f64 ? DType::f64 : DType::f32;
    const Graph graph = differentiate(fuse(model));
    const ArenaLayout layout = parameter_layout(graph, master), states = state_layout(graph, master);
    const std::size_t bytes = StepWord::bytes + layout.bytes() + states.bytes();
    const auto window = s_.allocate_gradients(bytes);
    if (window.empty()) gradients_ = Buffer<B>(b_, bytes);
    std::byte* all = window.empty() ? gradients_.at(0) : window.data();
    word_ = StepWord(layout.dtype, all);
    shared_states_ = all + StepWord::bytes + layout.bytes();
    host_states_.resize(states.bytes());
    return std::make_unique<Executor<B>>(b_, model, options, all + StepWord::bytes);
  }

  // Gradients in a device's memory are no place for a strategy that reads them with the processor.
  void require_device_reader() {
    bool reads = false;
    if constexpr (requires { s_.reads_device_memory(); }) reads = s_.reads_device_memory();
    if (!reads)
      fail<UsageError>("trainer", "a strategy that reads the memory of backend '" + b_.name() + "'", "one of the host",
                       "use --strategy nccl, or a backend on the processor");
  }

  // A run of neighbouring slices of one bucket with the same weight decay: one call of the update kernel.
  struct Run {
    std::size_t begin, end;
    double weight_decay;
    std::size_t bucket;
  };
  std::vector<Run> make_runs() const {
    const ArenaLayout& p = executor_->parameters();
    std::vector<Run> runs;
    for (std::size_t i = 0, bucket = 0; i < trainable_; ++i) {
      // Alone there is nothing to wait for, so the buckets do not matter.
      if (s_.size() > 1 && i >= buckets_[bucket].last) ++bucket;
      const Slice& s = p.slices[i];
      const double wd = s.decay || o_.decay_all ? o_.weight_decay : 0;
      const std::size_t end = i + 1 < p.slices.size() ? p.slices[i + 1].offset : p.count;
      if (!runs.empty() && !o_.optimizer.per_tensor() && runs.back().weight_decay == wd && runs.back().bucket == bucket)
        runs.back().end = end;
      else
        runs.push_back({s.offset, end, wd, bucket});
    }
    return runs;
  }

  void fill(const ArenaLayout& layout, void* to) {
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
    b_.copy_in(to, host.data(), host.size());
  }

  void look_at(const Metrics& m) {
    if (!std::isfinite(m.loss)) flags_ |= step_flag::not_finite;
  }

  void reduce_until(std::size_t ready, const Metrics& m) {
    while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].last <= ready) {
      const Bucket& k = buckets_[next_bucket_];
      const std::size_t unit = size_of(executor_->parameters().dtype);
      std::byte* begin = static_cast<std::byte*>(executor_->gradient_data()) + k.begin * unit;
      std::size_t bytes = (k.end - k.begin) * unit;
      if (next_bucket_ == 0) {
        look_at(m);
        word_.write(b_, flags_);
        begin -= StepWord::bytes;
        bytes += StepWord::bytes;
      }
      if (trace_ != nullptr) trace_->buckets.push_back({bytes, since_.seconds(), 0});
      works_[next_bucket_++] = s_.reduce(k, {begin, bytes}, nullptr);
      if (next_bucket_ == 1) reduce_states();
    }
  }

  // Batch norm uses the statistics of a rank's own rows, but all ranks keep the same running ones, the mean: so every
  // rank evaluates the same net, and what one rank saves is the state of all.
  void reduce_states() {
    const std::size_t n = host_states_.size();
    if (n == 0) return;
    b_.copy(shared_states_, executor_->state_data(), n);
    states_work_ = s_.reduce({0, 0, 0, 0, buckets_.size()}, {shared_states_, n}, nullptr);
  }
  void take_states() {
    if (s_.size() == 1 || host_states_.empty()) return;
    states_work_.wait_host(o_.deadline);
    b_.copy_out(host_states_.data(), shared_states_, host_states_.size());
    const auto divide = [&](auto n) {
      for (std::size_t i = 0; i < host_states_.size(); i += sizeof n) {
        auto v = n;
        std::memcpy(&v, host_states_.data() + i, sizeof v);
        v /= n;
        std::memcpy(host_states_.data() + i, &v, sizeof v);
      }
    };
    if (executor_->states().dtype == DType::f64)
      divide(static_cast<double>(s_.size()));
    else
      divide(static_cast<float>(s_.size()));
    b_.copy_in(executor_->state_data(), host_states_.data(), host_states_.size());
  }

  void wait_for(std::size_t bucket) {
    const double before = trace_ != nullptr ? since_.seconds() : 0;
    works_[bucket].wait_host(o_.deadline);
    if (trace_ == nullptr || bucket >= trace_->buckets.size()) return;
    trace_->buckets[bucket].taken = since_.seconds();
    trace_->waited += since_.seconds() - before;
  }

  [[nodiscard]] UpdateCall call(std::size_t begin, std::size_t end) const {
    const DType t = executor_->parameters().dtype;
    const std::size_t at = begin * size_of(t);
    UpdateCall u;
    u.dtype = t;
    u.weights = static_cast<std::byte*>(executor_->parameter_data()) + at;
    u.gradients = static_cast<const std::byte*>(executor_->gradient_data()) + at;
    for (std::size_t i = 0; i < slots_.size(); ++i) u.slots[i] = slots_[i].at(at);
    u.count = end - begin;
    u.step = counters_.step + 1;
    u.gradient_scale = 1 / scale_;
    return u;
  }

  // Whether this step's gradients are finite at its loss scale; moves the scale for the steps to come.
  bool gradients_fit() {
    if (trainable_ == 0) return true;
    for (; waited_ < works_.size(); ++waited_) wait_for(waited_);
    const bool fit = std::isfinite(b_.squared_norms(call(0, runs_.back().end)).gradients);
    if (fit && ++counters_.scale_steps >= 2000) {
      counters_.scale_exponent = std::min<std::int64_t>(counters_.scale_exponent + 1, 126);
      counters_.scale_steps = 0;
    } else if (!fit) {
      if (counters_.scale_exponent == 0)
        fail<NotFiniteError>("step " + std::to_string(counters_.step + 1), "finite gradients",
                             "others, at a loss scale of 1", "lower --lr or set --clip-norm");
      counters_.scale_exponent -= 1;
      counters_.scale_steps = 0;
    }
    return fit;
  }

  void apply(double lr) {
    double clip = 1;
    std::size_t& waited = waited_;
    const auto wait_until = [&](std::size_t buckets) {
      for (; waited < buckets; ++waited) wait_for(waited);
    };
    if (o_.clip_norm > 0 && trainable_ > 0) {
      wait_until(works_.size());
      const double norm = std::sqrt(b_.squared_norms(call(0, runs_.back().end)).gradients);
      // PyTorch's form, with its guard against a norm of zero.
      clip = std::min(1.0, o_.clip_norm / (norm + 1e-6));
    }
    for (const Run& r : runs_) {
      wait_until(r.bucket + 1);
      UpdateCall u = call(r.begin, r.end);
      u.lr = lr;
      u.weight_decay = r.weight_decay;
      u.gradient_scale *= clip;
      if (o_.optimizer.per_tensor()) u.factor = o_.optimizer.factor(b_.squared_norms(u), lr);
      std::visit([&](const auto& op) { b_.update(op, u); }, o_.optimizer.update_op());
    }
  }

  void update_ema() {
    // The decay grows to its value over the first steps: an average that starts at random weights would stay there
    // long.
    const auto t = static_cast<double>(counters_.step);
    const double d = std::min(o_.ema_decay, (1 + t) / (10 + t));
    const auto average = [&](const ArenaLayout& l, void* to, const void* from) {
      b_.average(l.dtype, to, from, l.count, d);
    };
    average(executor_->parameters(), ema_.data(), executor_->parameter_data());
    average(executor_->states(), ema_states_.data(), executor_->state_data());
  }
  void copy_to_ema() {
    b_.copy(ema_.data(), executor_->parameter_data(), ema_.bytes());
    b_.copy(ema_states_.data(), executor_->state_data(), ema_states_.bytes());
  }
  void swap_ema() {
    swap(ema_, executor_->parameter_data());
    swap(ema_states_, executor_->state_data());
    executor_->parameters_changed();
  }
  void swap(Buffer<B>& a, void* b) {
    Buffer<B> t(b_, a.bytes());
    b_.copy(t.data(), b, a.bytes());
    b_.copy(b, a.data(), a.bytes());
    b_.copy(a.data(), t.data(), a.bytes());
  }

  [[nodiscard]] std::vector<StateArena> arenas() {
    const ArenaLayout &p = executor_->parameters(), &s = executor_->states();
    std::vector<StateArena> list{{&p, static_cast<std::byte*>(executor_->parameter_data()), "", false},
                                 {&s, static_cast<std::byte*>(executor_->state_data()), "", false}};
    const bool adam = slots_.size() == 2;
    for (std::size_t i = 0; i < slots_.size(); ++i)
      list.push_back({&p, slots_[i].at(0), !adam ? "momentum." : i == 0 ? "exp_avg." : "exp_avg_sq.", true});
    if (o_.ema_decay > 0) {
      list.push_back({&p, ema_.at(0), "ema.", true});
      list.push_back({&s, ema_states_.at(0), "ema.", true});
    }
    return list;
  }

  B& b_;
  S& s_;
  TrainerOptions o_;
  Buffer<B> gradients_;  // where several ranks train and the strategy has no memory of its own
  StepWord word_;
  std::byte* shared_states_ = nullptr;
  std::vector<std::byte> host_states_;
  Work states_work_;
  std::uint32_t flags_ = 0;
  std::unique_ptr<Executor<B>> executor_;
  std::vector<Buffer<B>> slots_;
  Buffer<B> ema_, ema_states_, sum_;
  std::size_t trainable_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<Work> works_;
  std::size_t next_bucket_ = 0, waited_ = 0;
  double scale_ = 1;  // of the gradients in the arena
  std::vector<Run> runs_;
  StepTrace* trace_ = nullptr;
  Stopwatch since_;
  Counters counters_;
  CommittedState committed_;
};

}  // namespace tutti
