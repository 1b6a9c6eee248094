// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>

#include <tutti/engine/cpu/amx/layout.hpp>
#include <tutti/engine/cpu/amx/products.hpp>
#include <tutti/engine/cpu/amx/weight_gradient_ops.hpp>
#include <tutti/engine/cpu/convolution_end.hpp>
#include <tutti/engine/cpu/native_kernel.hpp>
#include <tutti/engine/cpu/shared.hpp>
#include <tutti/engine/kernel.hpp>
#include <tutti/graph/ops.hpp>

// Convolutions forward and the gradient of their input in bf16 by the tiles of AMX. A convolution with few weights,
// which stay in the level-2 cache, takes any rows. If it has many, every chunk would read them from the level-3 cache
// again: then the images are first copied into the shards' partial results (`reduce`), and each task multiplies them by
// some panels of the weights (`late_rows`).
namespace tutti::cpu::amx {

class Convolution : public Kernel, public TakesEnd {
 public:
  void take_end(const ConvolutionEnd& end) override {
    end_ = end;
    ends_ = true;
  }
  [[nodiscard]] Partition cut() override {
    if (parts_ > 1) return {Division::whole, by_panels() ? parts_ : band_tasks(parts_, rows_, l_.out_h)};
    if (!late_) return {Division::rows};
    const std::int64_t all = (rows_ * l_.image_elements() + slack()) * static_cast<std::int64_t>(sizeof(bf16));
    return {Division::reduce, static_cast<int>(groups() * row_parts()),
            static_cast<std::size_t>((all + shards_ - 1) / shards_), true};
  }
  [[nodiscard]] std::size_t packed_bytes() override {
    return static_cast<std::size_t>(l_.weight_words()) * sizeof(std::uint32_t);
  }
  void pack(const TensorRef& w, void* to) override { pack_weights(l_, w.as<float>(), static_cast<std::uint32_t*>(to)); }
  void prepare(const PrepareInfo& i) override {
    if (late_ && parts_ == 1) return;
    const std::int64_t most = parts_ > 1 ? rows_ : *std::max_element(i.chunk_rows.begin(), i.chunk_rows.end());
    shared_.room.reserve(i.workers,
                         static_cast<std::size_t>(images_at_once(most) * l_.image_elements() + slack()) * sizeof(bf16));
  }
  void run(Call& c) override {
    if (parts_ > 1) return run_part(c);
    if (!late_) return run_rows(c);
    auto* const all = reinterpret_cast<bf16*>(c.partial - static_cast<std::size_t>(c.shard) * c.partial_stride);
    if (c.phase == Phase::finish) return run_late(c, reinterpret_cast<const bf16*>(c.partial));
    for (std::int64_t n = 0; n < c.in[0].shape[0]; ++n)
      copy_image(l_, input(c, n), 0, l_.lines, all + (c.first_row + n) * l_.image_elements());
  }

 protected:
  Convolution(Shared& b, const NodeDesc& d, const op::Window& window, bool gradient)
      : shared_(b),
        l_(window, d.in[0].shape, d.out[0].shape, gradient),
        rows_(d.in[0].shape[0]),
        shards_(d.shards),
        parts_(d.parts),
        late_(l_.weight_words() * static_cast<std::int64_t>(sizeof(std::uint32_t)) > resident_bytes) {}

 private:
  static constexpr std::int64_t resident_bytes = 1024 * 1024;  // of weights that stay in the level-2 cache
  static constexpr std::int64_t copied_bytes = 512 * 1024;     // of copies of images that are multiplied at once

  [[nodiscard]] std::int64_t slack() const { return side * l_.pixel; }
  [[nodiscard]] std::int64_t images_at_once(std::int64_t rows) const {
    const std::int64_t fit = copied_bytes / (l_.image_elements() * static_cast<std::int64_t>(sizeof(bf16)));
    return std::clamp<std::int64_t>(fit, 1, rows);
  }
  // Tasks of the finish: groups of panels that stay in the cache, times parts of the images.
  [[nodiscard]] std::int64_t groups() const {
    const std::int64_t bytes = l_.panel_words() * static_cast<std::int64_t>(sizeof(std::uint32_t));
    const std::int64_t panels = std::clamp<std::int64_t>(resident_bytes * 3 / 4 / bytes, 1, l_.panels);
    return (l_.panels + panels - 1) / panels;
  }
  [[nodiscard]] std::int64_t row_parts() const { return std::clamp<std::int64_t>(shards_ / groups(), 1, rows_); }

  [[nodiscard]] const bf16* input(const Call& c, std::int64_t image) const {
    return static_cast<const bf16*>(c.in[0].data) + image * l_.h * l_.w * l_.channels;
  }
  [[nodiscard]] Products products(const Call& c) const {
    Products p;
    p.weights = static_cast<const std::uint32_t*>(c.in[1].data);
    p.to = static_cast<bf16*>(c.out[0].data);
    p.end_panel = l_.panels;
    p.end_line = l_.out_h;
    if (ends_) {
      p.bias = c.in[2].as<float>();
      p.residual = end_.residual ? static_cast<const bf16*>(c.in[3].data) : nullptr;
      p.relu = end_.relu;
    }
    return p;
  }
  // Lets p begin with this image.
  void start_at(Products& p, const Call& c, std::int64_t image) const {
    const std::int64_t before = image * l_.out_h * l_.out_w * l_.outputs;
    p.to = static_cast<bf16*>(c.out[0].data) + before;
    if (p.residual != nullptr) p.residual = static_cast<const bf16*>(c.in[3].data) + before;
  }

  void run_rows(const Call& c) const {
    const std::int64_t rows = c.in[0].shape[0];
    Products p = products(c);
    if (l_.reads_images(rows)) {
      p.from = input(c, 0);
      p.images = rows;
      return multiply(l_, p);
    }
    auto* const room = reinterpret_cast<bf16*>(shared_.room.of(c.worker));
    p.from = room;
    const std::int64_t most = images_at_once(rows);
    for (std::int64_t first = 0; first < rows; first += most) {
      p.images = std::min(most, rows - first);
      for (std::int64_t n = 0; n < p.images; ++n)
        copy_image(l_, input(c, first + n), 0, l_.lines, room + n * l_.image_elements());
      start_at(p, c, first);
      multiply(l_, p);
    }
  }
  void run_late(const Call& c, const bf16* copies) const {
    Products p = products(c);
    const std::int64_t parts = row_parts(), group = c.task / parts, part = c.task % parts, count = groups();
    p.first_panel = l_.panels * group / count;
    p.end_panel = l_.panels * (group + 1) / count;
    const std::int64_t first = rows_ * part / parts, end = rows_ * (part + 1) / parts;
    // Image by image, so that a copy is read from the cache for all panels but the first. Small images go together.
    const std::int64_t most = l_.way == Way::direct ? end - first : 1;
    for (std::int64_t n = first; n < end; n += most) {
      p.from = copies + n * l_.image_elements();
      p.images = std::min(most, end - n);
      start_at(p, c, n);
      multiply(l_, p);
    }
  }
  // If there are fewer images than threads, a task computes some panels of all images, if there are more weights
  // than inputs, so that each weight is read by one task; otherwise some lines of an image.
  [[nodiscard]] bool by_panels() const {
    return 2 * l_.weight_words() > rows_ * l_.h * l_.w * l_.channels && l_.panels >= parts_;
  }
  void run_part(const Call& c) const {
    Products p = products(c);
    auto* const room = reinterpret_cast<bf16*>(shared_.room.of(c.worker));
    if (!by_panels()) return run_lines(c, p, band_of(c.task, c.tasks, rows_, l_.out_h), room);
    p.first_panel = l_.panels * c.task / c.tasks;
    p.end_panel = l_.panels * (c.task + 1) / c.tasks;
    for (std::int64_t n = 0; n < rows_; ++n) run_lines(c, p, {n, 0, l_.out_h}, room);
  }
  void run_lines(const Call& c, Products& p, const Band& b, bf16* room) const {
    if (b.first == b.end) return;
    p.images = 1;
    p.first_line = b.first;
    p.end_line = b.end;
    start_at(p, c, b.image);
    p.from = input(c, b.image);
    if (!l_.reads_images(1) || (b.end - b.first) * l_.w < side) {
      const Layout::Lines lines = l_.lines_for(b.first, b.end);
      copy_image(l_, input(c, b.image), lines.first, lines.end, room);
      p.from = room;
    }
    multiply(l_, p);
  }

  Shared& shared_;
  Layout l_;
  std::int64_t rows_;
  int shards_, parts_;
  bool late_;
  ConvolutionEnd end_;
  bool ends_ = false;
};

class Conv2d final : public Convolution {
 public:
  using For = op::Conv2d;
  Conv2d(const Op& op, Shared& b, const NodeDesc& d) : Convolution(b, d, *std::get_if<For>(&op), false) {}
};
class Conv2dBackwardData final : public Convolution {
 public:
  using For = op::Conv2dBackwardData;
  Conv2dBackwardData(const Op& op, Shared& b, const NodeDesc& d) : Convolution(b, d, *std::get_if<For>(&op), true) {}
};

// Returns whether these kernels compute a node.
[[nodiscard]] inline bool computes(const Op& op, const NodeDesc& d) {
  const auto whole_bf16 = [&](const auto& o) { return o.groups == 1 && d.in[0].dtype == DType::bf16; };
  if (const auto* o = std::get_if<op::Conv2d>(&op)) return whole_bf16(*o);
  if (const auto* o = std::get_if<op::Conv2dBackwardData>(&op)) return whole_bf16(*o);
  if (const auto* o = std::get_if<op::Conv2dBackwardWeights>(&op))
    return whole_bf16(*o) && Conv2dBackwardWeights::is_faster(op, d);
  return false;
}

}  // namespace tutti::cpu::amx
