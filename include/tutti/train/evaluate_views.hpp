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
#include <tutti/core/f16.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/data/batch_source.hpp>
#include <tutti/engine/executor.hpp>
#include <tutti/engine/reference/loss.hpp>
#include <tutti/train/logits.hpp>
#include <tutti/train/report.hpp>
#include <tutti/train/resident_source.hpp>
#include <tutti/train/trainer.hpp>
#include <tutti/train/while_ranks_work.hpp>

// Evaluation by the mean logits of several views of each image.
namespace tutti {

// An image shifted by (dy, dx) pixels, what is missing taken from its mirror image at the edge (without the edge
// itself), then mirrored left to right or not.
struct TestView {
  std::int64_t dy = 0, dx = 0;
  bool mirror = false;
  double weight = 1;  // of its logits
};

// 0: the image as it is. 1: mirrored too. 2: that too, with half of the weight, and shifted by a pixel to both ends of
// a diagonal, each mirrored and not (Jordan 2024).
[[nodiscard]] inline std::vector<TestView> test_views(int level) {
  if (level < 0 || level > 2) fail<UsageError>("test_views", "level 0, 1 or 2", std::to_string(level));
  if (level == 0) return {{}};
  std::vector<TestView> views;
  for (const bool mirror : {false, true}) {
    views.push_back({0, 0, mirror, level == 2 ? 0.25 : 0.5});
    if (level == 2)
      for (const std::int64_t d : {-1, 1}) views.push_back({d, d, mirror, 0.125});
  }
  return views;
}

// Throws ShapeError where a shift is as long as a side of the images [n, channels, h, w], or longer than `most`.
inline void check_view(const Shape& image, const TestView& view, std::int64_t most) {
  const std::int64_t h = std::min(image[2], most + 1), w = std::min(image[3], most + 1);
  if (std::abs(view.dy) >= h || std::abs(view.dx) >= w)
    fail<ShapeError>("make_view", "a shift of less than " + std::to_string(h) + "x" + std::to_string(w) + " pixels",
                     std::to_string(view.dy) + "x" + std::to_string(view.dx));
}
// The same windows with this view of each; they show no shift of their own.
inline void make_view(std::span<const ImageWindow> windows, const Shape& image, const TestView& view,
                      std::vector<ImageWindow>& to) {
  check_view(image, view, 127);
  to.assign(windows.begin(), windows.end());
  for (ImageWindow& w : to) {
    // Of a window that is mirrored itself a view is shifted the other way.
    w.shift_y = static_cast<std::int8_t>(view.dy);
    w.shift_x = static_cast<std::int8_t>(w.mirror != 0 ? -view.dx : view.dx);
    w.mirror = static_cast<std::int8_t>((w.mirror != 0) != view.mirror ? 1 : 0);
  }
}
// Writes a view of `rows` images [h, w, channels] to `dst`. Throws ShapeError where a shift is as long as a side.
inline void make_view(const std::uint8_t* src, std::int64_t rows, const Shape& image, const TestView& view,
                      std::uint8_t* dst) {
  const std::int64_t channels = image[1], h = image[2], w = image[3];
  check_view(image, view, std::max(h, w));
  std::vector<std::int64_t> column(static_cast<std::size_t>(w));  // of the source, in bytes
  for (std::int64_t x = 0; x < w; ++x)
    column[static_cast<std::size_t>(x)] = reflected((view.mirror ? w - 1 - x : x) + view.dx, w) * channels;
  for (std::int64_t n = 0; n < rows; ++n, src += h * w * channels)
    for (std::int64_t y = 0; y < h; ++y) {
      const std::uint8_t* row = src + reflected(y + view.dy, h) * w * channels;
      for (const std::int64_t from : column) dst = std::copy_n(row + from, channels, dst);
    }
}

// One pass over a data set with the present weights, over all ranks, by the weighted mean of the logits of `views`.
// Loss and hits are those of the model's own loss. Throws UsageError where there is no view or the weights do not add
// up to 1. kept_bytes: of logits that a device keeps before the host waits for them.
TUTTI_CORE_FUNCTION EvaluationReport evaluate_views(Trainer& trainer, BatchSource& source,
                                                    const std::vector<TestView>& views,
                                                    std::size_t kept_bytes = std::size_t{1} << 20);

#if TUTTI_CORE_DEFINITIONS

namespace detail {

// Logits of the views of some batches: in the backend's memory until it is full, so that where a device evaluates the
// host waits seldom.
class ViewLogits {
 public:
  // Of the model of e; both outlive this. kept_bytes: of memory, or as much as the views of one batch take.
  ViewLogits(Executor& e, const std::vector<TestView>& views, std::size_t kept_bytes)
      : e_(e), views_(views), kept_bytes_(kept_bytes), classes_(e.graph()[e.graph().logits].shape[1]) {
    for (const Node& n : e.graph().nodes)
      if (const auto* o = std::get_if<op::SoftmaxCrossEntropy>(&n.op)) loss_ = *o;
  }

  // Those of the run that was started last, a view of the batch with these labels; the views come in their order.
  void add(std::size_t view, std::span<const std::int32_t> labels) {
    const TensorRef z = e_.value(e_.graph().logits);
    const std::size_t bytes = labels.size() * static_cast<std::size_t>(classes_) * size_of(z.dtype);
    if (view == 0) {
      type_ = z.dtype;
      if (used_ + views_.size() * bytes > memory_.bytes()) {
        fetch();
        Arenas::grow(e_.backend().memory(), memory_, std::max(views_.size() * bytes, kept_bytes_));
      }
      batches_.emplace_back(labels.begin(), labels.end());
    }
    e_.backend().memory().copy(memory_.at(used_), z.data, bytes);
    used_ += bytes;
  }
  // Of all batches.
  [[nodiscard]] Metrics take() {
    fetch();
    return std::exchange(sum_, {});
  }

 private:
  void fetch() {
    std::vector<std::byte> host(std::exchange(used_, 0));
    auto batches = std::exchange(batches_, {});
    if (batches.empty()) return;
    e_.backend().memory().copy_out(host.data(), memory_.data(), host.size());
    const std::byte* at = host.data();
    std::vector<double> mean;
    for (auto& labels : batches) {
      mean.assign(labels.size() * static_cast<std::size_t>(classes_), 0.0);
      for (const TestView& v : views_) {
        add_values(type_, at, mean.size(), v.weight, mean.data());
        at += mean.size() * size_of(type_);
      }
      const auto rows = static_cast<std::int64_t>(labels.size());
      std::array<double, 4> m{};
      reference::softmax_cross_entropy<double>(loss_, {mean.data(), DType::f64, Shape{rows, classes_}},
                                               {labels.data(), DType::i32, Shape{rows}}, m.data(), nullptr, {});
      sum_ += Metrics{m[0], m[1], m[2], m[3]};
    }
  }

  Executor& e_;
  const std::vector<TestView>& views_;
  std::size_t kept_bytes_;
  std::int64_t classes_;
  op::SoftmaxCrossEntropy loss_;
  DType type_ = DType::f32;
  Buffer memory_;
  std::size_t used_ = 0;
  std::vector<std::vector<std::int32_t>> batches_;  // their labels
  Metrics sum_;                                     // of those before
};

}  // namespace detail

TUTTI_CORE_FUNCTION EvaluationReport evaluate_views(Trainer& trainer, BatchSource& source,
                                                    const std::vector<TestView>& views, std::size_t kept_bytes) {
  double weights = 0;
  for (const TestView& v : views) weights += v.weight;
  if (!(std::abs(weights - 1) < 1e-9))
    fail<UsageError>("evaluate_views", "views whose weights add up to 1", std::to_string(weights));
  const Stopwatch watch;
  Executor& executor = trainer.executor();
  const Graph& graph = executor.graph();
  const Shape image = graph[graph.images].shape;
  std::vector<std::uint8_t> pixels;
  std::vector<ImageWindow> windows;
  detail::ViewLogits logits(executor, views, kept_bytes);
  Metrics sum;
  PiecewiseWork pass(trainer.strategy());
  source.start({0, 0});
  for (bool last = false; !last;) {
    const Batch& batch = source.next();
    last = batch.last_of_epoch;
    if (batch.count > 0) {
      for (std::size_t v = 0; v < views.size(); ++v) {
        BatchView seen = view_of(batch, 0, batch.count);
        if (batch.resident != nullptr) {
          make_view(batch.windows, image, views[v], windows);
          seen.windows = windows.data();
        } else {
          pixels.resize(static_cast<std::size_t>(batch.count * image.row_numel()));
          make_view(batch.images.data(), batch.count, image, views[v], pixels.data());
          seen.images = pixels.data();
        }
        executor.start_evaluation(seen);
        logits.add(v, batch.labels);
      }
    }
    sum.rows -= static_cast<double>(batch.skipped);
    pass.go_on();
  }
  sum += logits.take();
  source.release();
  pass.end();
  sum = trainer.reduce(sum);
  return {sum.mean_loss(), sum.top1_rate(), sum.topk_rate(), static_cast<std::int64_t>(sum.rows),
          sum.rows / std::max(watch.seconds(), 1e-9)};
}

#endif

}  // namespace tutti
