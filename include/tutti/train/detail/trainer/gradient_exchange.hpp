// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/span.hpp>
#include <tutti/core/threads/function_ref.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/step/integer_sums.hpp>
#include <tutti/engine/step/step_finisher.hpp>
#include <tutti/engine/step/step_flags.hpp>
#include <tutti/optim/update_rules.hpp>
#include <tutti/strategy/any_strategy.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/trainer_options.hpp>

namespace tutti {

// The data that the ranks of a job add up in a step: the gradients, bucket by bucket as the backward pass makes them
// final, the step's flags before them, and the running statistics. Keeps its memory if the number of ranks
// changes.
// With logical ranks all of these are integers, which this object makes of the gradients when it sends them, and the
// statistics follow the last bucket (IntegerSums).
class GradientExchange final : public Exchange {
 public:
  GradientExchange(Backend& backend, AnyStrategy& strategy, const TrainerOptions& o)
      : b_(backend), s_(strategy), o_(o) {}
  // Operations that still run after an error write into this memory.
  ~GradientExchange() override {
    if (!b_.memory().on_host() && pinned_ == nullptr && integers_ == nullptr) return;
    for (Work& w : works_) let_end(w);
    let_end(states_work_);
    let_end(matrices_work_);
  }
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  [[nodiscard]] bool alone() const { return s_.size() == 1 && !s_.owns_weights(); }
  // Returns true if a device's gradients pass through host memory, because the strategy reads no other memory.
  [[nodiscard]] bool staged() const { return !alone() && !b_.memory().on_host() && !s_.reads_device_memory(); }
  [[nodiscard]] std::size_t trainable() const noexcept { return trainable_; }  // slices, which come first
  [[nodiscard]] std::byte* flags() const noexcept { return all_; }
  [[nodiscard]] std::byte* state_sums() const noexcept { return state_sums_; }
  // Returns the sums of the logical ranks; null without them.
  [[nodiscard]] IntegerSums* integers() const noexcept { return integers_.get(); }

  // The gradients are placed after the step's flags, so that one reduction includes both, and before a place for the
  // running statistics.
  std::unique_ptr<Executor> make_executor(const Graph& model) {
    const auto place = [&](const ArenaLayout& parameters, const ArenaLayout& states) -> void* {
      const std::size_t bytes = StepFlags::bytes + parameters.bytes() + states.bytes();
      const bool reached = b_.memory().on_host() || s_.reads_device_memory();
      const auto window = reached ? s_.allocate(bytes) : std::span<std::byte>();
      if (window.empty()) memory_ = Buffer(b_.memory(), bytes);
      all_ = window.empty() ? memory_.at(0) : window.data();
      state_sums_ = all_ + StepFlags::bytes + parameters.bytes();
      return all_ + StepFlags::bytes;
    };
    auto e = std::make_unique<Executor>(b_, model, ExecutorOptions{o_.compute, false, o_.watcher}, place);
    e_ = e.get();
    cut_buckets();
    if (o_.logical_ranks > 0)
      integers_ = std::make_unique<IntegerSums>(b_, e->parameters(), trainable_, e->states().count, o_.logical_ranks);
    require_something_to_share();
    return e;
  }
  // The members of the job have changed: earlier sums do not count.
  void begin_generation() {
    require_something_to_share();
    for (Work& w : works_) w = {};
    states_work_ = matrices_work_ = {};
    // A broken sum may have written between the tensors, which gradients never fill.
    b_.memory().zero(all_, StepFlags::bytes + e_->parameters().bytes() + e_->states().bytes());
    begin();
  }

  // Returns whether this rank can share Muon's matrices out.
  [[nodiscard]] bool divides_muon() const { return b_.divides_muon() && b_.memory().on_host(); }
  // Shares Muon's matrices out to the current ranks. `rules` are always the same. The memory for other ranks is
  // allocated before they join.
  void share_matrices(const UpdateRules& rules) {
    shared_.shares = {};
    // The factor of a user's optimizer is of whole steps.
    const bool divides = divides_muon() && std::holds_alternative<MuonUpdate>(rules.op) && !rules.factor;
    if (!divides || s_.owns_weights() || (alone() && s_.members() == nullptr)) return;
    shared_.shares = MatrixShares(rules, s_.size());
    shared_.rank = s_.rank();
    const std::size_t bytes = shared_.shares.elements() * unit();
    if (results_.bytes() < bytes) results_ = Buffer(b_.memory(), bytes);
    shared_.results = {results_.at(0), bytes};
  }
  [[nodiscard]] const SharedMatrices* shared_matrices() const override {
    return shared_.shares.any() ? &shared_ : nullptr;
  }
  // Returns the bytes of memory for the matrices of all ranks.
  [[nodiscard]] std::size_t matrix_bytes() const noexcept { return results_.bytes(); }
  // Sums integers, so that no bit changes.
  void exchange_matrices() override {
    matrices_work_ = s_.reduce({Piece::Kind::statistics, 1, DType::i64, shared_.results, 0});
    wait_for(matrices_work_);
  }

  // Records the times of events, relative to `since`; null: no recording.
  void trace(StepTrace* t, const Stopwatch* since) noexcept {
    trace_ = t;
    since_ = since;
  }
  // Returns the seconds that this rank has waited for reductions.
  [[nodiscard]] double seconds_waited() const noexcept { return seconds_waited_; }

  // Returns the seconds in which this rank handed pieces to the strategy: some communicators sum in this call.
  [[nodiscard]] double seconds_sent() const noexcept { return seconds_sent_; }

  void begin() noexcept {
    next_ = converted_ = 0;
    flags_written_ = tail_sent_ = false;
    held_back_ = false;
  }
  // Sets the weight of this rank's running statistics in the sums of the following steps. Weights other than 1 are for
  // backends whose memory is that of the host.
  void weigh_states(double weight) noexcept { states_weight_ = weight; }
  // Sends no more of this step.
  void hold_back() noexcept { held_back_ = true; }
  void send(std::size_t slices, FunctionRef<void()> write_flags) override {
    if (integers_ != nullptr) return send_integers(slices, write_flags);
    while (next_ < buckets_.size() && buckets_[next_].last <= slices) {
      const bool first = next_ == 0;
      if (first) write_flags();
      if (held_back_) return;
      const Bucket& k = buckets_[next_];
      b_.finish_gradients();
      works_[next_++] = s_.owns_weights() ? push(k) : reduce(k, first);
      if (first && !s_.owns_weights()) send_states();
    }
  }
  // Adds the gradients of these slices of a part that is not the last one of this process to the sums of the logical
  // ranks.
  void add(std::size_t slices) {
    const std::size_t end = take_final(slices);
    if (end > converted_) integers_->add(converted_, end, e_->gradient_data());
    converted_ = end;
  }
  void wait_on_host() override {
    const Span span(Lane::step, s_.owns_weights() ? "wait for weights" : "wait for sums");
    for (std::size_t i = 0; i < works_.size(); ++i) {
      const double before = trace_ != nullptr ? since_->seconds() : 0;
      const bool summed = i < next_ && !s_.owns_weights();
      wait_for(works_[i]);
      if (summed) {
        const std::size_t flags = i == 0 ? StepFlags::bytes : 0;
        receive({gradients(buckets_[i].begin) - flags, flags + (buckets_[i].end - buckets_[i].begin) * unit()});
      }
      if (trace_ == nullptr || i >= trace_->buckets.size()) continue;
      trace_->buckets[i].taken = since_->seconds();
      trace_->waited += since_->seconds() - before;
    }
    wait_for(states_work_);
    if (!s_.owns_weights() && next_ > 0 && integers_ == nullptr) receive({state_sums_, e_->states().bytes()});
    if (s_.owns_weights()) take_weights();
  }
  void wait_on_device() override {
    for (Work& w : works_) w.wait_device();
    states_work_.wait_device();
  }

 private:
  void cut_buckets() {
    const ArenaLayout& p = e_->parameters();
    while (trainable_ < p.slices.size() && p.slices[trainable_].trainable) ++trainable_;
    buckets_ = make_buckets(p, o_.bucket_bytes, o_.first_bucket_bytes);
    while (!buckets_.empty() && buckets_.back().first >= trainable_) buckets_.pop_back();
    if (!buckets_.empty() && buckets_.back().last > trainable_) {
      buckets_.back().last = trainable_;
      buckets_.back().end = p.slices[trainable_].offset;
    }
    works_.resize(buckets_.size());
  }
  void require_something_to_share() const {
    if (!alone() && buckets_.empty())
      fail<UsageError>("trainer", "a model with trainable parameters", "no parameters",
                       "ranks exchange gradients of parameters");
  }
  Work reduce(const Bucket& k, bool first) {
    const std::size_t flags = first ? StepFlags::bytes : 0;
    const std::span<std::byte> bytes{gradients(k.begin) - flags, flags + (k.end - k.begin) * unit()};
    note_ready(bytes.size());
    const DType t = integers_ != nullptr ? DType::i32 : e_->parameters().dtype;
    return hand_over({Piece::Kind::gradients, k.index, t, sent(bytes), flags});
  }
  Work hand_over(const Piece& piece) {
    const Stopwatch watch;
    Work work = s_.reduce(piece);
    seconds_sent_ += watch.seconds();
    return work;
  }
  // Returns the end of the slices to convert now: those that are final, if they are enough for the backend's threads.
  [[nodiscard]] std::size_t take_final(std::size_t slices) {
    constexpr std::size_t few = std::size_t{1} << 15;
    const std::size_t end = std::min(slices, trainable_);
    if (end <= converted_) return converted_;
    const ArenaLayout& p = e_->parameters();
    const std::size_t elements = p.slices[end - 1].offset + p.slices[end - 1].count - p.slices[converted_].offset;
    const bool completes = next_ < buckets_.size() && buckets_[next_].last <= end;
    if (elements < few && !completes && end < trainable_) return converted_;
    b_.finish_gradients();
    return end;
  }
  // Gradients are converted while they are in a cache. One rank keeps its integers.
  void send_integers(std::size_t slices, FunctionRef<void()> write_flags) {
    if (!std::exchange(flags_written_, true)) write_flags();
    const std::size_t end = take_final(slices);
    if (end > converted_) integers_->convert(converted_, end, e_->gradient_data());
    converted_ = end;
    for (; next_ < buckets_.size() && buckets_[next_].last <= converted_; ++next_)
      if (!alone()) works_[next_] = reduce(buckets_[next_], next_ == 0);
    if (alone() || next_ < buckets_.size() || std::exchange(tail_sent_, true)) return;
    states_work_ = hand_over({Piece::Kind::statistics, 0, DType::i64, std::as_writable_bytes(integers_->tail()), 0});
  }
  // The backward pass still reads the weights, so the new ones are kept in another place.
  Work push(const Bucket& k) {
    const std::size_t bytes = (k.end - k.begin) * unit();
    note_ready(bytes);
    const std::span<const std::byte> pushed = sent({gradients(k.begin), bytes});
    if (pulled_ == nullptr) {
      const std::size_t all = e_->parameters().bytes();
      if (pinned_ == nullptr) pulled_memory_ = Buffer(b_.memory(), all);
      if (pinned_ != nullptr) pulled_pinned_ = b_.allocate_pinned(all);
      pulled_ = pinned_ == nullptr ? pulled_memory_.at(0) : static_cast<std::byte*>(pulled_pinned_.get());
    }
    return s_.exchange({k.index, k.begin, e_->parameters().dtype, pushed, {pulled_ + k.begin * unit(), bytes}});
  }
  void take_weights() {
    for (std::size_t i = 0; i < next_; ++i) {
      const std::size_t at = buckets_[i].begin * unit(), bytes = (buckets_[i].end - buckets_[i].begin) * unit();
      std::byte* const to = static_cast<std::byte*>(e_->parameter_data()) + at;
      if (pinned_ != nullptr)
        b_.memory().copy_in(to, pulled_ + at, bytes);
      else
        b_.memory().copy(to, pulled_ + at, bytes);
    }
  }
  // Returns the memory that the strategy gets for these bytes of the arena: the bytes themselves, or a copy in pinned
  // host memory.
  [[nodiscard]] std::span<std::byte> sent(std::span<std::byte> bytes) {
    if (!staged()) return bytes;
    if (pinned_ == nullptr) {
      pinned_ = b_.allocate_pinned(StepFlags::bytes + e_->parameters().bytes() + e_->states().bytes());
      if (pinned_ == nullptr)
        fail<UsageError>("trainer", {"a strategy that reads the memory of backend '", b_.name(), "'"},
                         "a strategy that reads host memory, and no pinned memory", "use a backend on the processor");
    }
    std::byte* const copy = static_cast<std::byte*>(pinned_.get()) + (bytes.data() - all_);
    b_.memory().copy_out(copy, bytes.data(), bytes.size());
    return {copy, bytes.size()};
  }
  // Copies the result back.
  void receive(std::span<std::byte> bytes) {
    if (pinned_ != nullptr && !bytes.empty())
      b_.memory().copy_in(bytes.data(), static_cast<std::byte*>(pinned_.get()) + (bytes.data() - all_), bytes.size());
  }
  void note_ready(std::size_t bytes) {
    if (trace_ != nullptr) trace_->buckets.push_back({bytes, since_->seconds(), 0});
  }
  [[nodiscard]] std::size_t unit() const { return size_of(e_->parameters().dtype); }
  [[nodiscard]] std::byte* gradients(std::size_t element) const {
    return static_cast<std::byte*>(e_->gradient_data()) + element * unit();
  }
  static void let_end(Work& work) noexcept {
    try {
      work.wait();
    } catch (const std::exception&) {
      // It was notified before, or the error that ended this rank names the lost rank.
    }
  }
  void wait_for(Work& work) {
    const Stopwatch watch;
    work.wait();
    seconds_waited_ += watch.seconds();
  }
  void send_states() {
    const std::size_t n = e_->states().bytes();
    if (n == 0) return;
    b_.memory().copy(state_sums_, e_->state_data(), n);
    if (states_weight_ != 1) scale_states();
    states_work_ = s_.reduce({Piece::Kind::statistics, 0, e_->states().dtype, sent({state_sums_, n}), 0});
  }

  void scale_states() {
    const auto scale = [&](auto* v, auto weight) {
      for (std::size_t i = 0; i < e_->states().count; ++i) v[i] *= weight;
    };
    if (e_->states().dtype == DType::f64)
      scale(reinterpret_cast<double*>(state_sums_), states_weight_);
    else
      scale(reinterpret_cast<float*>(state_sums_), static_cast<float>(states_weight_));
  }

  Backend& b_;
  AnyStrategy& s_;
  const TrainerOptions& o_;
  Executor* e_ = nullptr;
  Buffer memory_;                                 // if the strategy allocates no memory
  std::shared_ptr<void> pinned_, pulled_pinned_;  // of the host, if pieces of a device pass through it
  Buffer pulled_memory_;
  std::byte* pulled_ = nullptr;  // incoming weights that servers own: in one of these two
  std::byte *all_ = nullptr, *state_sums_ = nullptr;
  std::size_t trainable_ = 0, next_ = 0;
  std::size_t converted_ = 0;  // slices that are integers already
  bool held_back_ = false, flags_written_ = false, tail_sent_ = false;
  std::vector<Bucket> buckets_;
  std::vector<Work> works_;
  Work states_work_, matrices_work_;
  Buffer results_;         // of SharedMatrices
  SharedMatrices shared_;  // without shares: there are none
  std::unique_ptr<IntegerSums> integers_;
  double seconds_waited_ = 0, seconds_sent_ = 0;
  double states_weight_ = 1;
  StepTrace* trace_ = nullptr;
  const Stopwatch* since_ = nullptr;
};

}  // namespace tutti
