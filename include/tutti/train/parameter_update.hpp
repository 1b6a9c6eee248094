// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/backend/device_step.hpp>
#include <tutti/core/function_ref.hpp>
#include <tutti/graph/update_ops.hpp>
#include <tutti/tensor/arena.hpp>
#include <tutti/tensor/memory.hpp>
#include <tutti/train/executor.hpp>
#include <tutti/train/trainer_options.hpp>

namespace tutti {

// The optimizer's state, and its pass over the arenas as the host starts it, run by run.
class ParameterUpdate {
 public:
  // A run of neighbouring slices of one bucket with the same rate and weight decay: one call of the update kernel.
  struct Run : DeviceUpdate::Run {
    std::size_t bucket = 0;
  };

  // buckets: where several ranks share the gradients; of the first `trainable` slices.
  ParameterUpdate(Backend& backend, const TrainerOptions& o, const Executor& e, std::size_t trainable,
                  const std::vector<Bucket>* buckets)
      : b_(backend), o_(o), e_(e) {
    const ArenaLayout& p = e.parameters();
    for (int i = 0; i < o.optimizer.slots(); ++i) slots_.emplace_back(backend.memory(), p.bytes());
    for (std::size_t i = 0, bucket = 0; i < trainable; ++i) {
      if (buckets != nullptr && i >= (*buckets)[bucket].last) ++bucket;
      const Slice& s = p.slices[i];
      const double wd = s.decay || o.decay_all ? o.weight_decay / s.rate : 0;
      const std::size_t end = i + 1 < p.slices.size() ? p.slices[i + 1].offset : p.count;
      if (!runs_.empty() && !o.optimizer.per_tensor() && runs_.back().rate == s.rate &&
          runs_.back().weight_decay == wd && runs_.back().bucket == bucket)
        runs_.back().end = end;
      else
        runs_.push_back({{s.offset, end, s.rate, wd}, bucket});
    }
  }

  [[nodiscard]] const std::vector<Run>& runs() const noexcept { return runs_; }
  [[nodiscard]] const std::vector<Buffer>& slots() const noexcept { return slots_; }
  // No state, as at the start of training.
  void restart() {
    for (auto& s : slots_) b_.memory().zero(s.data(), s.bytes());
  }

  // Squared norm of all gradients in the arena, which are those of a step, from 1, times `scale`.
  [[nodiscard]] double squared_norm(std::int64_t step, double scale) {
    return runs_.empty() ? 0 : b_.squared_norms(call(0, runs_.back().end, step, scale)).gradients;
  }
  // wait_for(buckets): returns when the gradients of so many are there.
  void apply(std::int64_t step, double scale, double lr, FunctionRef<void(std::size_t buckets)> wait_for) {
    double clip = 1;
    if (o_.clip_norm > 0 && !runs_.empty()) {
      wait_for(runs_.back().bucket + 1);
      // PyTorch's form, with its guard against a norm of zero.
      clip = std::min(1.0, o_.clip_norm / (std::sqrt(squared_norm(step, scale)) + 1e-6));
    }
    for (const Run& r : runs_) {
      wait_for(r.bucket + 1);
      UpdateCall u = call(r.begin, r.end, step, scale);
      u.lr = lr * r.rate;
      u.weight_decay = r.weight_decay;
      u.gradient_scale *= clip;
      if (o_.optimizer.per_tensor()) u.factor = o_.optimizer.factor(b_.squared_norms(u), u.lr);
      b_.update(o_.optimizer.update_op(), u);
    }
  }
  // What weight decay adds to the loss: half of its rate times the squared norm of the weights that decay.
  [[nodiscard]] double decay_term() {
    double term = 0;
    for (const Run& r : runs_)
      if (r.weight_decay > 0) term += r.weight_decay / 2 * b_.squared_norms(call(r.begin, r.end, 1, 1)).weights;
    return term;
  }

 private:
  [[nodiscard]] UpdateCall call(std::size_t begin, std::size_t end, std::int64_t step, double scale) const {
    const DType t = e_.parameters().dtype;
    const std::size_t at = begin * size_of(t);
    UpdateCall u;
    u.dtype = t;
    u.weights = static_cast<std::byte*>(e_.parameter_data()) + at;
    u.gradients = static_cast<const std::byte*>(e_.gradient_data()) + at;
    for (std::size_t i = 0; i < slots_.size(); ++i) u.slots[i] = slots_[i].at(at);
    u.count = end - begin;
    u.step = step;
    u.gradient_scale = 1 / scale;
    return u;
  }

  Backend& b_;
  const TrainerOptions& o_;
  const Executor& e_;
  std::vector<Buffer> slots_;
  std::vector<Run> runs_;
};

}  // namespace tutti
