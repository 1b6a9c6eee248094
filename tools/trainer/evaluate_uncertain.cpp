// SPDX-License-Identifier: MIT
#include "tools/trainer/evaluate_uncertain.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <variant>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/engine/reference/loss.hpp>
#include <tutti/train/detail/evaluation/logical_pass.hpp>
#include <tutti/train/detail/evaluation/logits.hpp>
#include <tutti/train/detail/fit/resident_source.hpp>
#include <tutti/train/run_with_heartbeat.hpp>

namespace tutti::trainer {

namespace {

// The logits and labels of all images of this rank, in the order of the pass.
struct Seen {
  std::int64_t classes = 0;
  std::vector<double> logits;
  std::vector<std::int32_t> labels;

  [[nodiscard]] double* row(std::size_t i) { return logits.data() + i * static_cast<std::size_t>(classes); }
  // Returns the largest probability of an image.
  [[nodiscard]] double certainty(std::size_t i) const {
    const double* const z = logits.data() + i * static_cast<std::size_t>(classes);
    const double largest = *std::max_element(z, z + classes);
    double sum = 0;
    for (std::int64_t k = 0; k < classes; ++k) sum += std::exp(z[k] - largest);
    return 1 / sum;
  }
};

// Returns for each image whether it is among the `share` of them that are least certain.
std::vector<bool> least_certain(const Seen& seen, double share) {
  std::vector<double> certainty(seen.labels.size());
  for (std::size_t i = 0; i < certainty.size(); ++i) certainty[i] = seen.certainty(i);
  std::vector<std::size_t> order(certainty.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return certainty[a] < certainty[b]; });
  order.resize(static_cast<std::size_t>(share * static_cast<double>(order.size())));
  std::vector<bool> chosen(certainty.size(), false);
  for (const std::size_t i : order) chosen[i] = true;
  return chosen;
}

// Evaluates views of the chosen rows of a batch, and replaces their logits by the weighted mean.
class Views {
 public:
  Views(Trainer& trainer, const std::vector<TestView>& views)
      : executor_(trainer.executor()), views_(views), on_host_(executor_) {}

  // first: the number of the batch's first image in `seen`. rows: rows of the batch.
  void add(const Batch& batch, std::size_t first, const std::vector<std::int64_t>& rows, Seen& seen) {
    const Graph& g = executor_.graph();
    const Shape image = g[g.images].shape;
    const auto classes = static_cast<std::size_t>(seen.classes);
    for (const std::int64_t r : rows) std::fill_n(seen.row(first + static_cast<std::size_t>(r)), classes, 0.0);
    const auto add_logits = [&](std::size_t at, std::int64_t row, double weight, std::span<const float> logits) {
      double* const to = seen.row(first + static_cast<std::size_t>(row));
      for (std::size_t k = 0; k < classes; ++k) to[k] += weight * static_cast<double>(logits[at * classes + k]);
    };
    if (batch.resident != nullptr) {
      // The device has all images: views of all rows are as cheap as a choice of them.
      std::vector<ImageWindow> windows;
      for (const TestView& v : views_) {
        BatchView seen_by = view_of(batch, 0, batch.count);
        make_view(batch.windows.first(static_cast<std::size_t>(batch.count)), image, v, windows);
        seen_by.windows = windows.data();
        executor_.start_evaluation(seen_by);
        const auto logits = on_host_.of_last_run(batch.count);
        for (const std::int64_t r : rows) add_logits(static_cast<std::size_t>(r), r, v.weight, logits);
      }
      return;
    }
    const auto bytes = static_cast<std::size_t>(image.row_numel());
    std::vector<std::uint8_t> pixels(rows.size() * bytes);
    std::vector<std::int32_t> labels;
    for (const std::int64_t r : rows) labels.push_back(batch.labels[static_cast<std::size_t>(r)]);
    const BatchView all = view_of(batch, 0, batch.count);
    for (const TestView& v : views_) {
      for (std::size_t i = 0; i < rows.size(); ++i)
        make_view(all.images + static_cast<std::size_t>(rows[i]) * bytes, 1, image, v, pixels.data() + i * bytes);
      executor_.start_evaluation({pixels.data(), labels.data(), static_cast<std::int64_t>(rows.size())});
      const auto logits = on_host_.of_last_run(static_cast<std::int64_t>(rows.size()));
      for (std::size_t i = 0; i < rows.size(); ++i) add_logits(i, rows[i], v.weight, logits);
    }
  }

 private:
  Executor& executor_;
  const std::vector<TestView>& views_;
  tutti::detail::LogitsOnHost on_host_;
};

// Calls f(batch, number of its first image) for each batch of a pass.
template <class F>
void each_batch(Trainer& trainer, BatchSource& source, F&& f) {
  HeartbeatScope pass(trainer.strategy());
  const tutti::detail::LogicalPass start(trainer, source);
  std::size_t first = 0;
  for (bool last = false; !last;) {
    const Batch& batch = source.next();
    last = batch.last_of_epoch;
    if (batch.count > 0) f(batch, first);
    first += static_cast<std::size_t>(batch.count);
    pass.go_on();
  }
  source.release();
  pass.end();
}

}  // namespace

EvaluationReport evaluate_uncertain(Trainer& trainer, BatchSource& source, const std::vector<TestView>& views,
                                    double share) {
  const Stopwatch watch;
  Executor& executor = trainer.executor();
  const Graph& graph = executor.graph();
  Seen seen;
  seen.classes = graph[graph.logits].shape.row_numel();
  Metrics sum;
  tutti::detail::LogitsOnHost on_host(executor);
  each_batch(trainer, source, [&](const Batch& batch, std::size_t) {
    executor.start_evaluation(view_of(batch, 0, batch.count));
    const auto logits = on_host.of_last_run(batch.count);
    seen.logits.insert(seen.logits.end(), logits.begin(), logits.end());
    const auto labels = batch.labels.first(static_cast<std::size_t>(batch.count));
    seen.labels.insert(seen.labels.end(), labels.begin(), labels.end());
    sum.rows -= static_cast<double>(batch.skipped);
  });
  const std::vector<bool> chosen = least_certain(seen, share);
  Views of(trainer, views);
  each_batch(trainer, source, [&](const Batch& batch, std::size_t first) {
    std::vector<std::int64_t> rows;
    for (std::int64_t r = 0; r < batch.count; ++r)
      if (chosen[first + static_cast<std::size_t>(r)]) rows.push_back(r);
    if (!rows.empty()) of.add(batch, first, rows, seen);
  });
  op::SoftmaxCrossEntropy loss;
  for (const Node& n : graph.nodes)
    if (const auto* o = std::get_if<op::SoftmaxCrossEntropy>(&n.op)) loss = *o;
  const auto rows = static_cast<std::int64_t>(seen.labels.size());
  std::array<double, 4> m{};
  reference::softmax_cross_entropy<double>(loss, {seen.logits.data(), DType::f64, Shape{rows, seen.classes}},
                                           {seen.labels.data(), DType::i32, Shape{rows}}, m.data(), nullptr, {});
  sum += Metrics{m[0], m[1], m[2], m[3]};
  sum = trainer.reduce(sum);
  return {sum.mean_loss(), sum.top1_rate(), sum.topk_rate(), static_cast<std::int64_t>(sum.rows),
          sum.rows / std::max(watch.seconds(), 1e-9)};
}

}  // namespace tutti::trainer
