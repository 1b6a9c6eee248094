// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include <tutti/cluster/step_assignments.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/data/sampler.hpp>

namespace tutti::detail {

// Returns the position of step n after `base`, for steps of `batch` samples and a data set of `size` samples.
[[nodiscard]] constexpr Position position_of(std::int64_t n, Position base, std::int64_t size, std::int64_t batch,
                                             EpochEnd end) noexcept {
  if (end == EpochEnd::run_on) {
    const std::int64_t at = base.consumed + n * batch;
    return {base.epoch + at / size, at % size};
  }
  const std::int64_t here = steps_per_epoch(size - base.consumed, batch), each = steps_per_epoch(size, batch);
  if (n < here) return {base.epoch, base.consumed + n * batch};
  return {base.epoch + 1 + (n - here) / each, (n - here) % each * batch};
}

// The steps that are assigned to this worker, and the source that reads their batches in advance.
class StepFeed {
 public:
  using Kind = StepAssignments::Reply::Kind;

  // base: position from which all steps count. most: number of steps of all workers together. batch: images of one
  // worker's step.
  StepFeed(StepAssignments& from, BatchSource& source, Position base, std::int64_t batch, std::int64_t epochs,
           std::int64_t most)
      : from_(from), source_(source), base_(base), batch_(batch), end_(source.placement().epoch_end) {
    limit_ = std::min(most, tutti::steps_left(base, source.size(), batch, end_, epochs));
    source.start_assigned({batch, 0, 1, end_});
  }
  [[nodiscard]] std::int64_t batch() const noexcept { return batch_; }

  // Receives assignments and requests more, so that the source reads in advance. Returns whether a step comes next, or
  // the reason why not. wait: blocks until an answer comes.
  [[nodiscard]] Kind poll(bool wait) {
    const std::size_t ahead = static_cast<std::size_t>(std::max(source_.reads_ahead(), 1)) + 1;
    if (asked_ == 0 && steps_.size() < ahead) ask(ahead - steps_.size());
    while (asked_ > 0) {
      const auto deal = from_.take(wait && steps_.empty());
      if (!deal) break;
      --asked_;
      kind_ = deal->kind;
      if (deal->kind != Kind::step) continue;
      steps_.push_back(deal->number);
      source_.add(position_of(deal->number, base_, source_.size(), batch_, end_));
    }
    if (!steps_.empty() && steps_.size() + asked_ < ahead) ask(1);
    return steps_.empty() ? kind_ : Kind::step;
  }
  // Returns the epoch of the next step, if poll() has found one.
  [[nodiscard]] std::int64_t epoch() const {
    return position_of(steps_.front(), base_, source_.size(), batch_, end_).epoch;
  }
  // Returns the epoch of the job's last step.
  [[nodiscard]] std::int64_t last_epoch() const {
    return position_of(std::max<std::int64_t>(limit_ - 1, 0), base_, source_.size(), batch_, end_).epoch;
  }
  // Returns the batch of the next step.
  [[nodiscard]] const Batch& next() { return source_.next(); }
  // Reports the current step to the servers as finished.
  void complete() {
    from_.complete(steps_.front());
    steps_.erase(steps_.begin());
  }

 private:
  void ask(std::size_t n) {
    for (; n > 0; --n, ++asked_) from_.ask(limit_);
  }

  StepAssignments& from_;
  BatchSource& source_;
  Position base_;
  std::int64_t batch_, limit_ = 0;
  EpochEnd end_;
  std::vector<std::int64_t> steps_;  // the steps of this worker, of which the current one is first
  std::size_t asked_ = 0;
  Kind kind_ = Kind::wait;
};

}  // namespace tutti::detail
