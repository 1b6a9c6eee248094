// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>

#include <tutti/engine/cpu/native_kernel.hpp>
#include <tutti/engine/cpu/winograd/forward.hpp>
#include <tutti/engine/cpu/winograd/layout.hpp>
#include <tutti/engine/cpu/winograd/pack.hpp>
#include <tutti/engine/cpu/winograd/shapes.hpp>
#include <tutti/engine/cpu/winograd/weight_gradient_ops.hpp>

// Convolutions forward and the gradient of their input by Winograd's algorithm. A convolution with few weights reads
// them transformed, which happens once for each update, and takes any rows. A deep one, or one whose shards have few
// tiles, first transforms all tiles of the batch into the shards' partial results; then each task multiplies all tiles
// by one panel of weights. A deep one transforms the panel itself, unless weights are read several times between
// updates. The bits of a tile depend on none of these choices.
namespace tutti::cpu::winograd {

class Convolution : public NativeKernel, public TakesEnd {
 public:
  void take_end(const ConvolutionEnd& end) override {
    end_ = end;
    ends_ = true;
  }
  [[nodiscard]] Partition cut() override {
    if (parts_ > 1) return {Division::whole, parts_};
    if (!whole_) return {Division::rows};
    const TileLayout l = whole_layout();
    const std::int64_t all = l.groups * l.group_floats() * static_cast<std::int64_t>(sizeof(float));
    return {Division::reduce, static_cast<int>(weights_.panels * parts()),
            static_cast<std::size_t>((all + desc_.shards - 1) / desc_.shards), true};
  }
  [[nodiscard]] std::size_t packed_bytes() override {
    return packs_ ? static_cast<std::size_t>(weights_.panels * weights_.panel) * sizeof(float) : 0;
  }
  void pack(const TensorRef& w, void* to) override {
    pack_weights(isa_, {w.as<float>(), w.shape[0], w.shape[1], backward_, bf16_, strided_, 0, weights_.panels,
                        static_cast<float*>(to), is_deep(w.shape[0], w.shape[1])});
  }
  void prepare(const PrepareInfo& i) override {
    std::int64_t floats = 0;
    if (parts_ > 1) {
      for (int t = 0; t < parts_; ++t) floats = std::max(floats, part_of(t).floats);
    } else if (whole_) {
      floats = (packs_ ? 0 : weights_.panel) + whole_layout().product_floats();
    } else {
      for (const std::int64_t rows : i.chunk_rows) {
        const TileLayout l = chunk_layout(rows);
        floats = std::max(floats, l.group_floats() + l.product_floats());
      }
    }
    shared_.room.reserve(i.workers, static_cast<std::size_t>(floats) * sizeof(float));
  }
  void run(Call& c) override {
    if (parts_ > 1) return run_part(c);
    if (!whole_) return run_rows(c);
    c.phase == Phase::reduce ? transform(c) : multiply(c);
  }

 protected:
  Convolution(const Op& op, Shared& b, const NodeDesc& d, const op::Window& window, bool backward)
      : NativeKernel(op, b, d),
        shared_(b),
        desc_(d),
        backward_(backward),
        bf16_(d.in[0].dtype == DType::bf16),
        strided_(window.stride == 2),
        weights_(isa_, d.in[0].shape[1], d.out[0].shape[1]),
        packs_(b.reuses_weights || !is_deep(d.in[0].shape[1], d.out[0].shape[1])),
        whole_(is_deep(d.in[0].shape[1], d.out[0].shape[1]) || has_few_tiles()) {}

 private:
  // Tiles of a group. With stride 2 a group of the whole batch has half as many, because they have twice the points.
  static constexpr std::int64_t chunk_tiles = 28, whole_tiles = 84;

  // For inputs with stride 2 a tile has 8x8 pixels.
  [[nodiscard]] static Images images_of(const Shape& s, bool wide) {
    return {s[0], s[2], s[3], s[1], wide ? 2 * tile : tile};
  }
  [[nodiscard]] Images input_images(const Shape& s) const { return images_of(s, strided_ && !backward_); }
  [[nodiscard]] Images output_images(const Shape& s) const { return images_of(s, strided_ && backward_); }
  [[nodiscard]] TileLayout layout(std::int64_t rows, std::int64_t at_once) const {
    return {isa_, weights_, order_of(strided_), rows * input_images(desc_.in[0].shape).tiles_per_row(), at_once};
  }
  [[nodiscard]] TileLayout chunk_layout(std::int64_t rows) const { return layout(rows, chunk_tiles); }
  // Returns whether each shard would multiply most of the weights by less than two blocks of tiles.
  [[nodiscard]] bool has_few_tiles() const {
    const std::int64_t rows = (desc_.in[0].shape[0] + desc_.shards - 1) / desc_.shards;
    return weights_.channels * weights_.width * weights_.panels >= 128 * 256 &&
           rows * input_images(desc_.in[0].shape).tiles_per_row() < 2 * block_range(isa_, weights_.registers).least;
  }
  // Returns into how many parts the groups of tiles of the whole batch are divided. There are as many tasks as shards
  // if there are enough groups.
  [[nodiscard]] std::int64_t parts() const {
    return std::clamp<std::int64_t>(desc_.shards / weights_.panels, 1, fewest_groups());
  }
  [[nodiscard]] std::int64_t tile_count() const {
    return desc_.in[0].shape[0] * input_images(desc_.in[0].shape).tiles_per_row();
  }
  [[nodiscard]] std::int64_t fewest_groups() const {
    const std::int64_t most = strided_ ? whole_tiles / 2 : whole_tiles;
    return (tile_count() + most - 1) / most;
  }
  // Each part has the same number of groups.
  [[nodiscard]] TileLayout whole_layout() const {
    const std::int64_t groups = (fewest_groups() + parts() - 1) / parts() * parts();
    return layout(desc_.in[0].shape[0], (tile_count() + groups - 1) / groups);
  }
  [[nodiscard]] float* room(const Call& c) const { return reinterpret_cast<float*>(shared_.room.of(c.worker)); }

  [[nodiscard]] ReadTiles inputs(const Call& c, std::int64_t first, std::int64_t count, std::int64_t at) const {
    const Reads what = !strided_ ? Reads::inputs : backward_ ? Reads::strided_data : Reads::strided_inputs;
    return {what, c.in[0].data, bf16_, input_images(c.in[0].shape), first, count, {}, at};
  }
  [[nodiscard]] WriteTiles outputs(const Call& c, std::int64_t first, std::int64_t count, std::int64_t panel) const {
    const Writes what = !strided_ ? Writes::outputs : backward_ ? Writes::strided_data : Writes::strided_outputs;
    WriteTiles w{what, c.out[0].data, bf16_, output_images(c.out[0].shape), first, count, panel * weights_.width};
    if (ends_) {
      w.bias = c.in[2].as<float>();
      w.residual = end_.residual ? c.in[3].data : nullptr;
      w.relu = end_.relu;
    }
    return w;
  }

  // A task where there are fewer rows than threads: some of the tiles by all panels of the weights; or, if there are
  // few tiles or it transforms the weights, all tiles by some of the panels. Then each task transforms all tiles
  // itself.
  struct TaskPart {
    std::int64_t first_tile, tiles, first_panel, end_panel;
    TileLayout layout;
    std::int64_t floats;  // of memory
  };
  [[nodiscard]] TaskPart part_of(int task) const {
    const auto share = [&](std::int64_t all, std::int64_t t) { return all * t / parts_; };
    const std::int64_t all = tile_count();
    const bool by_panels = !packs_ || (weights_.panels >= parts_ && all < chunk_tiles * parts_);
    const std::int64_t first = by_panels ? 0 : share(all, task), tiles = by_panels ? all : share(all, task + 1) - first;
    const TileLayout l(isa_, weights_, order_of(strided_), std::max<std::int64_t>(tiles, 1), chunk_tiles);
    return {first,
            tiles,
            by_panels ? share(weights_.panels, task) : 0,
            by_panels ? share(weights_.panels, task + 1) : weights_.panels,
            l,
            (packs_ ? 0 : weights_.panel) + l.group_floats() + l.product_floats()};
  }
  void run_part(const Call& c) const {
    const TaskPart part = part_of(c.task);
    const TileLayout& l = part.layout;
    float *const packed = room(c), *const tiles = packed + (packs_ ? 0 : weights_.panel);
    for (std::int64_t first = 0; first < part.tiles && part.first_panel < part.end_panel; first += l.group) {
      const std::int64_t count = std::min(l.group, part.tiles - first), at = part.first_tile + first;
      transform_tiles(isa_, inputs(c, at, count, 0), l, tiles);
      for (std::int64_t p = part.first_panel; p < part.end_panel; ++p)
        multiply_tiles(isa_,
                       {tiles, panel_of(c, p, packed), tiles + l.group_floats(), packs_, outputs(c, at, count, p)},
                       weights_, l);
    }
  }
  // Returns a panel of transformed weights, which it transforms to `packed` if they are not packed.
  [[nodiscard]] const float* panel_of(const Call& c, std::int64_t panel, float* packed) const {
    const TensorRef& w = c.in[1];
    if (packs_) return static_cast<const float*>(w.data) + panel * weights_.panel;
    pack_weights(isa_, {w.as<float>(), w.shape[0], w.shape[1], backward_, bf16_, strided_, panel, 1, packed});
    return packed;
  }

  void run_rows(const Call& c) const {
    const TileLayout l = chunk_layout(c.in[0].shape[0]);
    float* const tiles = room(c);
    for (std::int64_t first = 0; first < l.tiles; first += l.group) {
      const std::int64_t count = std::min(l.group, l.tiles - first);
      transform_tiles(isa_, inputs(c, first, count, 0), l, tiles);
      for (std::int64_t p = 0; p < weights_.panels; ++p)
        multiply_tiles(isa_,
                       {tiles, static_cast<const float*>(c.in[1].data) + p * weights_.panel, tiles + l.group_floats(),
                        false, outputs(c, first, count, p)},
                       weights_, l);
    }
  }
  // Transforms the tiles of this call's rows to their positions among the tiles of the batch.
  void transform(const Call& c) const {
    auto* const all = reinterpret_cast<float*>(c.partial - static_cast<std::size_t>(c.shard) * c.partial_stride);
    const Images rows = input_images(c.in[0].shape);
    transform_tiles(isa_, inputs(c, 0, rows.tiles(), c.first_row * rows.tiles_per_row()), whole_layout(), all);
  }
  // Computes all outputs of a panel, for a part of the groups of tiles.
  void multiply(const Call& c) const {
    const TileLayout l = whole_layout();
    const std::int64_t parts = c.tasks / weights_.panels, panel = c.task / parts, part = c.task % parts;
    float* products = room(c);
    const float* const weights = panel_of(c, panel, products);
    if (!packs_) products += weights_.panel;
    for (std::int64_t g = l.groups * part / parts; g < l.groups * (part + 1) / parts; ++g)
      multiply_tiles(isa_,
                     {reinterpret_cast<const float*>(c.partial) + g * l.group_floats(), weights, products, packs_,
                      outputs(c, g * l.group, std::min(l.group, l.tiles - g * l.group), panel)},
                     weights_, l);
  }

  Shared& shared_;
  NodeDesc desc_;
  bool backward_, bf16_, strided_;
  WeightLayout weights_;
  bool packs_, whole_;  // whether it reads transformed weights; multiplies the tiles of the whole batch
  ConvolutionEnd end_;
  bool ends_ = false;
};

class Conv2d final : public Convolution {
 public:
  using For = op::Conv2d;
  Conv2d(const Op& op, Shared& b, const NodeDesc& d) : Convolution(op, b, d, *std::get_if<For>(&op), false) {}
};
class Conv2dBackwardData final : public Convolution {
 public:
  using For = op::Conv2dBackwardData;
  Conv2dBackwardData(const Op& op, Shared& b, const NodeDesc& d)
      : Convolution(op, b, d, *std::get_if<For>(&op), true) {}
};

// Returns the problem of a convolution's node; no value for another op and for a convolution in groups.
[[nodiscard]] inline std::optional<Problem> problem_of(const Op& op, const NodeDesc& d) {
  const auto of = [&](const auto& o, const Shape& x, const Shape& y) -> std::optional<Problem> {
    if (o.groups > 1) return std::nullopt;
    const op::Window& window = o;
    return Problem{window, x[1], y[1], x[2], x[3], d.in[0].dtype == DType::bf16};
  };
  if (const auto* o = std::get_if<op::Conv2d>(&op)) return of(*o, d.in[0].shape, d.out[0].shape);
  if (const auto* o = std::get_if<op::Conv2dBackwardData>(&op)) return of(*o, d.out[0].shape, d.in[0].shape);
  if (const auto* o = std::get_if<op::Conv2dBackwardWeights>(&op)) return of(*o, d.in[0].shape, d.in[1].shape);
  return std::nullopt;
}

}  // namespace tutti::cpu::winograd
