// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <tutti/core/clock.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/float/f16.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/reference/loss.hpp>
#include <tutti/train/detail/evaluation/logical_pass.hpp>
#include <tutti/train/detail/evaluation/logits.hpp>
#include <tutti/train/detail/fit/resident_source.hpp>
#include <tutti/train/report.hpp>
#include <tutti/train/run_with_heartbeat.hpp>
#include <tutti/train/trainer.hpp>

// Evaluates by the mean logits of several views of each image.
namespace tutti {

// An image that is shifted by (dy, dx) pixels and then optionally mirrored left to right. Missing pixels are those of
// the image mirrored at its edge (without the edge itself).
struct TestView {
  std::int64_t dy = 0, dx = 0;
  bool mirror = false;
  double weight = 1;  // weight of the view's logits
};

// Returns the views of a level. 0: the unchanged image. 1: in addition the mirrored image. 2: in addition the image
// shifted by a pixel in both directions of a diagonal, mirrored and not, with half of the weight (Jordan 2024).
[[nodiscard]] inline std::vector<TestView> test_views(int level) {
  if (level < 0 || level > 2) fail<UsageError>("test_views", "level 0, 1 or 2", level);
  if (level == 0) return {{}};
  std::vector<TestView> views;
  for (const bool mirror : {false, true}) {
    views.push_back({0, 0, mirror, level == 2 ? 0.25 : 0.5});
    if (level == 2)
      for (const std::int64_t d : {-1, 1}) views.push_back({d, d, mirror, 0.125});
  }
  return views;
}

// Throws ShapeError if a shift is as long as a side of the images [n, channels, h, w], or longer than `most`.
inline void check_view(const Shape& image, const TestView& view, std::int64_t most) {
  const std::int64_t h = std::min(image[2], most + 1), w = std::min(image[3], most + 1);
  if (std::abs(view.dy) >= h || std::abs(view.dx) >= w)
    fail<ShapeError>("make_view", {"a shift of less than ", h, "x", w, " pixels"}, {view.dy, "x", view.dx});
}
// Makes this view of each window. The windows must not be shifted before.
inline void make_view(std::span<const ImageWindow> windows, const Shape& image, const TestView& view,
                      std::vector<ImageWindow>& to) {
  check_view(image, view, 127);
  to.assign(windows.begin(), windows.end());
  for (ImageWindow& w : to) {
    // A mirrored window is shifted in the other direction.
    w.shift_y = static_cast<std::int8_t>(view.dy);
    w.shift_x = static_cast<std::int8_t>(w.mirror != 0 ? -view.dx : view.dx);
    w.mirror = static_cast<std::int8_t>((w.mirror != 0) != view.mirror ? 1 : 0);
  }
}
// Writes a view of `rows` images [h, w, channels] to `dst`. Throws ShapeError if a shift is as long as a side.
inline void make_view(const std::uint8_t* src, std::int64_t rows, const Shape& image, const TestView& view,
                      std::uint8_t* dst) {
  const std::int64_t channels = image[1], h = image[2], w = image[3];
  check_view(image, view, std::max(h, w));
  std::vector<std::int64_t> column(static_cast<std::size_t>(w));  // the source of each column, in bytes
  for (std::int64_t x = 0; x < w; ++x)
    column[static_cast<std::size_t>(x)] = reflected((view.mirror ? w - 1 - x : x) + view.dx, w) * channels;
  for (std::int64_t n = 0; n < rows; ++n, src += h * w * channels)
    for (std::int64_t y = 0; y < h; ++y) {
      const std::uint8_t* row = src + reflected(y + view.dy, h) * w * channels;
      for (const std::int64_t from : column) dst = std::copy_n(row + from, channels, dst);
    }
}

// Runs one pass over a data set with the current weights, over all ranks, with the weighted mean of the logits of
// `views`. Loss and hits are those of the model's own loss. Throws UsageError if there is no view, or if the weights do
// not add up to 1. kept_bytes: size of logits that a device keeps before the host waits for them.
TUTTI_CORE_FUNCTION EvaluationReport evaluate_views(Trainer& trainer, BatchSource& source,
                                                    const std::vector<TestView>& views,
                                                    std::size_t kept_bytes = std::size_t{1} << 20);

#if TUTTI_CORE_DEFINITIONS

namespace detail {

// Computes the loss of a batch from the weighted mean of the logits of its views.
class ViewLoss {
 public:
  // exact: as in EvaluationSum.
  ViewLoss(const Graph& g, const std::vector<TestView>& views, bool exact) : views_(views), exact_(exact) {
    for (const Node& n : g.nodes)
      if (const auto* o = std::get_if<op::SoftmaxCrossEntropy>(&n.op)) loss_ = *o;
  }
  void add(const LogitBuffer::Batch& b) {
    const auto rows = static_cast<std::int64_t>(b.labels.size());
    mean_.assign(b.labels.size() * static_cast<std::size_t>(b.classes), 0.0);
    labels_.assign(b.labels.begin(), b.labels.end());
    for (std::size_t v = 0; v < views_.size(); ++v) b.add_run(v, views_[v].weight, mean_.data());
    std::array<double, 4> m{};
    reference::softmax_cross_entropy<double>(loss_, {mean_.data(), DType::f64, Shape{rows, b.classes}},
                                             {labels_.data(), DType::i32, Shape{rows}}, m.data(), nullptr, {});
    sum_ += Metrics{exact_ ? round_to_2_24(m[0]) : m[0], m[1], m[2], m[3]};
  }
  [[nodiscard]] const Metrics& sum() const { return sum_; }

 private:
  const std::vector<TestView>& views_;
  bool exact_;
  op::SoftmaxCrossEntropy loss_;
  std::vector<double> mean_;
  std::vector<std::int32_t> labels_;
  Metrics sum_;
};

}  // namespace detail

TUTTI_CORE_FUNCTION EvaluationReport evaluate_views(Trainer& trainer, BatchSource& source,
                                                    const std::vector<TestView>& views, std::size_t kept_bytes) {
  double weights = 0;
  for (const TestView& v : views) weights += v.weight;
  if (!(std::abs(weights - 1) < 1e-9)) fail<UsageError>("evaluate_views", "weights of views that add up to 1", weights);
  const Stopwatch watch;
  Executor& executor = trainer.executor();
  const Graph& graph = executor.graph();
  const Shape image = graph[graph.images].shape;
  std::vector<std::uint8_t> pixels;
  std::vector<ImageWindow> windows;
  detail::ViewLoss loss(graph, views, trainer.options().logical_ranks > 0);
  detail::LogitBuffer logits(executor, views.size(), kept_bytes,
                             [&](const detail::LogitBuffer::Batch& b) { loss.add(b); });
  Metrics sum;
  HeartbeatScope pass(trainer.strategy());
  const detail::LogicalPass logical(trainer, source);
  for (bool last = false; !last;) {
    const Batch& batch = source.next();
    last = batch.last_of_epoch;
    logical.parts(batch, [&](std::int64_t begin, std::int64_t end, int) {
      const auto from = static_cast<std::size_t>(begin), count = static_cast<std::size_t>(end - begin);
      for (std::size_t v = 0; v < views.size(); ++v) {
        BatchView seen = view_of(batch, begin, end);
        if (batch.resident != nullptr) {
          make_view(batch.windows.subspan(from, count), image, views[v], windows);
          seen.windows = windows.data();
        } else {
          pixels.resize(count * static_cast<std::size_t>(image.row_numel()));
          make_view(seen.images, seen.rows, image, views[v], pixels.data());
          seen.images = pixels.data();
        }
        executor.start_evaluation(seen);
        logits.add(v, batch.labels.subspan(from, count), batch.indices.subspan(from, count));
      }
    });
    sum.rows -= static_cast<double>(batch.skipped);
    pass.go_on();
  }
  logits.take();
  sum += loss.sum();
  source.release();
  pass.end();
  sum = trainer.reduce(sum);
  return {sum.mean_loss(), sum.top1_rate(), sum.topk_rate(), static_cast<std::int64_t>(sum.rows),
          sum.rows / std::max(watch.seconds(), 1e-9)};
}

#endif

}  // namespace tutti
