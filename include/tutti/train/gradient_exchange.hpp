// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/function_ref.hpp>
#include <tutti/dist/any_strategy.hpp>
#include <tutti/graph/differentiate.hpp>
#include <tutti/graph/fuse.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/executor.hpp>
#include <tutti/train/step_word.hpp>
#include <tutti/train/trainer_options.hpp>

namespace tutti {

// What the ranks of a job add up in a step: the gradients, bucket by bucket as backward makes them final, in front of
// them the step's word, and the running statistics.
class GradientExchange {
 public:
  GradientExchange(Backend& backend, AnyStrategy& strategy, const TrainerOptions& o)
      : b_(backend), s_(strategy), o_(o) {}

  [[nodiscard]] bool alone() const { return s_.size() == 1; }
  [[nodiscard]] std::size_t trainable() const noexcept { return trainable_; }  // slices, which come first
  [[nodiscard]] const std::vector<Bucket>& buckets() const noexcept { return buckets_; }
  [[nodiscard]] StepWord& word() noexcept { return word_; }
  [[nodiscard]] std::byte* state_sums() const noexcept { return shared_states_; }

  // The gradients lie behind the step's word, so that one reduction takes it along, and before a place for the running
  // statistics.
  std::unique_ptr<Executor> make_executor(const Graph& model) {
    const ExecutorOptions options{o_.compute, false};
    if (alone()) return cut_buckets(std::make_unique<Executor>(b_, model, options));
    if (!b_.memory().on_host()) require_device_reader();
    const DType master = o_.compute == DType::f64 ? DType::f64 : DType::f32;
    const Graph graph = differentiate(fuse(model));
    const ArenaLayout layout = parameter_layout(graph, master), states = state_layout(graph, master);
    const std::size_t bytes = StepWord::bytes + layout.bytes() + states.bytes();
    const auto window = s_.allocate(bytes);
    if (window.empty()) gradients_ = Buffer(b_.memory(), bytes);
    std::byte* all = window.empty() ? gradients_.at(0) : window.data();
    word_ = StepWord(layout.dtype, all);
    shared_states_ = all + StepWord::bytes + layout.bytes();
    host_states_.resize(states.bytes());
    return cut_buckets(std::make_unique<Executor>(b_, model, options, all + StepWord::bytes));
  }
  // Writes down when things happen, from `since` on; null: nothing.
  void trace(StepTrace* t, const Stopwatch* since) noexcept {
    trace_ = t;
    since_ = since;
  }

  // Seconds that this rank has waited for reductions.
  [[nodiscard]] double seconds_waited() const noexcept { return seconds_waited_; }

  void begin() noexcept { next_ = 0; }
  // Hands over the buckets whose gradients are final, now that the first `ready` slices are. write_word() is called
  // ahead of the first.
  void reduce_until(std::size_t ready, FunctionRef<void()> write_word) {
    while (next_ < buckets_.size() && buckets_[next_].last <= ready) {
      const Bucket& k = buckets_[next_];
      const std::size_t unit = size_of(e_->parameters().dtype);
      std::byte* begin = static_cast<std::byte*>(e_->gradient_data()) + k.begin * unit;
      std::size_t bytes = (k.end - k.begin) * unit;
      if (next_ == 0) {
        write_word();
        begin -= StepWord::bytes;
        bytes += StepWord::bytes;
      }
      b_.finish_gradients();
      if (trace_ != nullptr) trace_->buckets.push_back({bytes, since_->seconds(), 0});
      works_[next_++] = s_.reduce({Piece::Kind::gradients, k.index, e_->parameters().dtype, {begin, bytes}});
      if (next_ == 1) reduce_states();
    }
  }
  void wait_for(std::size_t bucket) {
    const double before = trace_ != nullptr ? since_->seconds() : 0;
    wait_for(works_[bucket]);
    if (trace_ == nullptr || bucket >= trace_->buckets.size()) return;
    trace_->buckets[bucket].taken = since_->seconds();
    trace_->waited += since_->seconds() - before;
  }
  void wait_for_all() {
    for (std::size_t i = 0; i < works_.size(); ++i) wait_for(i);
  }
  // The device's stream waits for everything, the statistics too; the host goes on.
  void order_device() {
    for (Work& w : works_) w.wait_device();
    states_work_.wait_device();
  }

  // Batch norm uses the statistics of a rank's own rows, but all ranks keep the same running ones, the mean: so every
  // rank evaluates the same net, and what one rank saves is the state of all.
  void take_states() {
    if (alone() || host_states_.empty()) return;
    wait_for(states_work_);
    b_.memory().copy_out(host_states_.data(), shared_states_, host_states_.size());
    const auto divide = [&](auto n) {
      for (std::size_t i = 0; i < host_states_.size(); i += sizeof n) {
        auto v = n;
        std::memcpy(&v, host_states_.data() + i, sizeof v);
        v /= n;
        std::memcpy(host_states_.data() + i, &v, sizeof v);
      }
    };
    if (e_->states().dtype == DType::f64)
      divide(static_cast<double>(s_.size()));
    else
      divide(static_cast<float>(s_.size()));
    b_.memory().copy_in(e_->state_data(), host_states_.data(), host_states_.size());
  }

 private:
  std::unique_ptr<Executor> cut_buckets(std::unique_ptr<Executor> e) {
    e_ = e.get();
    const ArenaLayout& p = e->parameters();
    while (trainable_ < p.slices.size() && p.slices[trainable_].trainable) ++trainable_;
    buckets_ = make_buckets(p, o_.bucket_bytes, o_.first_bucket_bytes);
    while (!buckets_.empty() && buckets_.back().first >= trainable_) buckets_.pop_back();
    if (!buckets_.empty() && buckets_.back().last > trainable_) {
      buckets_.back().last = trainable_;
      buckets_.back().end = p.slices[trainable_].offset;
    }
    if (!alone() && buckets_.empty())
      fail<UsageError>("trainer", "a model with something to learn", "none", "there is nothing to share between ranks");
    works_.resize(buckets_.size());
    return e;
  }
  // Gradients in a device's memory are no place for a strategy that reads them with the processor.
  void require_device_reader() {
    if (!s_.reads_device_memory())
      fail<UsageError>("trainer", "a strategy that reads the memory of backend '" + b_.name() + "'", "one of the host",
                       "use --strategy nccl, or a backend on the processor");
  }
  void wait_for(Work& work) {
    const Stopwatch watch;
    work.wait();
    seconds_waited_ += watch.seconds();
  }
  void reduce_states() {
    const std::size_t n = host_states_.size();
    if (n == 0) return;
    b_.memory().copy(shared_states_, e_->state_data(), n);
    states_work_ = s_.reduce({Piece::Kind::statistics, 0, e_->states().dtype, {shared_states_, n}});
  }

  Backend& b_;
  AnyStrategy& s_;
  const TrainerOptions& o_;
  Executor* e_ = nullptr;
  Buffer gradients_;  // where the strategy has no memory of its own
  StepWord word_;
  std::byte* shared_states_ = nullptr;
  std::vector<std::byte> host_states_;
  std::size_t trainable_ = 0, next_ = 0;
  std::vector<Bucket> buckets_;
  std::vector<Work> works_;
  Work states_work_;
  double seconds_waited_ = 0;
  StepTrace* trace_ = nullptr;
  const Stopwatch* since_ = nullptr;
};

}  // namespace tutti
