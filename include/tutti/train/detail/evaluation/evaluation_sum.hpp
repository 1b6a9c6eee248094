// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include <tutti/engine/executor.hpp>
#include <tutti/engine/metrics.hpp>

namespace tutti {

// Sums the metrics of evaluations in the order of the batches. If `exact`, the loss of each batch is rounded
// (round_to_2_24), so that the sum does not depend on that order. If a device evaluates, the host starts one batch
// after the other, and waits in take() and once every `Executor::kept_metrics` batches. An executor may have only one
// EvaluationSum at a time.
class EvaluationSum {
 public:
  explicit EvaluationSum(Executor& e, bool exact = false) : e_(e), exact_(exact) {}

  // Evaluates a batch of one row or more.
  void add(const BatchView& batch) {
    if (count_ == kept) fetch();
    e_.start_evaluation(batch);
    e_.keep_metrics(count_);
    ++count_;
  }
  // Returns the sum of the batches since the last call. Throws DataError if a label is not a class.
  [[nodiscard]] Metrics take() {
    fetch();
    return std::exchange(sum_, {});
  }

 private:
  static constexpr std::size_t kept = Executor::kept_metrics;

  void fetch() {
    std::array<std::array<double, 4>, kept> host;
    const std::size_t n = std::exchange(count_, 0);
    if (n == 0) return;
    e_.backend().memory().copy_out(host.data(), e_.kept_metrics_data(), n * sizeof host[0]);
    for (std::size_t i = 0; i < n; ++i)
      sum_ += Metrics{exact_ ? round_to_2_24(host[i][0]) : host[i][0], host[i][1], host[i][2], host[i][3]};
  }

  Executor& e_;
  bool exact_;
  std::size_t count_ = 0;  // number of evaluations with metrics that the executor keeps
  Metrics sum_;            // sum of the evaluations before those
};

}  // namespace tutti
