// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include <tutti/engine/cpu/native_kernel.hpp>
#include <tutti/engine/cpu/pairs/forward.hpp>
#include <tutti/engine/cpu/pairs/shapes.hpp>
#include <tutti/engine/cpu/pairs/weight_gradient.hpp>
#include <tutti/engine/cpu/shared.hpp>
#include <tutti/engine/cpu/update_kernels.hpp>
#include <tutti/engine/kernel.hpp>
#include <tutti/graph/ops.hpp>

namespace tutti::cpu::pairs {

// Computes the forward pass, or the gradient of the input.
class Convolution : public Kernel, public ComputesBands {
 public:
  [[nodiscard]] Partition cut() override {
    return parts_ > 1 ? Partition{Division::whole, band_tasks(parts_, x_[0], tiles())} : Partition{Division::rows};
  }
  [[nodiscard]] Band band(int task, int tasks) const override {
    const Band b = band_of(task, tasks, x_[0], tiles());
    return {b.image, b.first * tile_h, std::min(b.end * tile_h, y_[2])};
  }
  [[nodiscard]] std::size_t packed_bytes() override {
    return static_cast<std::size_t>(packed_words(x_[1], y_[1])) * sizeof(std::uint32_t);
  }
  void pack(const TensorRef& w, void* to) override {
    pack_pairs(w.as<float>(), w.shape[0], w.shape[1], backward_, static_cast<std::uint32_t*>(to));
  }
  void prepare(const PrepareInfo& i) override {
    shared_.room.reserve(i.workers, static_cast<std::size_t>(padded(x_, y_).numel()) * sizeof(bf16));
  }
  void run(Call& c) override {
    ForwardArgs a{c.in[0].shape,
                  c.out[0].shape,
                  static_cast<const bf16*>(c.in[0].data),
                  static_cast<const std::uint32_t*>(c.in[1].data),
                  static_cast<bf16*>(c.out[0].data),
                  reinterpret_cast<bf16*>(shared_.room.of(c.worker))};
    a.end_image = a.x[0];
    a.end_h = a.y[2];
    if (parts_ > 1) {
      const Band b = band(c.task, c.tasks);
      a.first_image = b.image, a.end_image = b.image + 1, a.first_h = b.first, a.end_h = b.end;
    }
    forward(a);
  }

 protected:
  Convolution(Shared& b, const NodeDesc& d, bool backward)
      : shared_(b), x_(d.in[0].shape), y_(d.out[0].shape), backward_(backward), parts_(d.parts) {}

 private:
  // Tiles of outputs from top to bottom.
  [[nodiscard]] std::int64_t tiles() const { return (y_[2] + tile_h - 1) / tile_h; }

  Shared& shared_;
  Shape x_, y_;
  bool backward_;
  int parts_;
};

class Conv2d final : public Convolution {
 public:
  using For = op::Conv2d;
  Conv2d(const Op&, Shared& b, const NodeDesc& d) : Convolution(b, d, false) {}
};
class Conv2dBackwardData final : public Convolution {
 public:
  using For = op::Conv2dBackwardData;
  Conv2dBackwardData(const Op&, Shared& b, const NodeDesc& d) : Convolution(b, d, true) {}
};

// Each shard sums the gradient of its rows.
class Conv2dBackwardWeights final : public Kernel {
 public:
  using For = op::Conv2dBackwardWeights;
  Conv2dBackwardWeights(const Op& op, Shared& b, const NodeDesc& d)
      : shared_(b), x_(d.in[0].shape), dy_(d.in[1].shape), stride_(std::get_if<For>(&op)->stride), shards_(d.shards) {}

  [[nodiscard]] Partition cut() override {
    const int tasks = sum_tasks(floats(), shards_, whole_lanes(dy_[1]) / lanes);
    return {Division::reduce, tasks, static_cast<std::size_t>(floats()) * sizeof(float)};
  }
  void prepare(const PrepareInfo& i) override {
    shared_.room.reserve(i.workers, static_cast<std::size_t>(gradient_room(x_, dy_, stride_)) * sizeof(std::uint32_t));
  }
  void run(Call& c) override {
    if (c.phase == Phase::finish) return add_shards(c);
    weight_gradient({c.in[0].shape, c.in[1].shape, stride_, static_cast<const bf16*>(c.in[0].data),
                     static_cast<const bf16*>(c.in[1].data), reinterpret_cast<float*>(c.partial), !c.first_chunk,
                     reinterpret_cast<std::uint32_t*>(shared_.room.of(c.worker))});
  }

 private:
  [[nodiscard]] std::int64_t floats() const { return gradient_floats(x_[1], dy_[1]); }

  // [outputs / 16][inputs][9][16] of each shard -> their sum, [outputs][inputs][9], for a part of the outputs.
  void add_shards(const Call& c) const {
    const std::int64_t block = whole_lanes(x_[1]) * 9 * lanes, blocks = whole_lanes(dy_[1]) / lanes;
    for (std::int64_t b = blocks * c.task / c.tasks; b < blocks * (c.task + 1) / c.tasks; ++b) {
      float* const sum = reinterpret_cast<float*>(c.partial) + b * block;
      for (int l = 1; l < c.shards; ++l)
        accumulate(shared_.isa, sum, reinterpret_cast<const float*>(c.partial_of(l)) + b * block,
                   static_cast<std::size_t>(block));
      float* to = static_cast<float*>(c.out[0].data) + b * lanes * x_[1] * 9;
      for (std::int64_t k = 0; k < std::min<std::int64_t>(lanes, dy_[1] - b * lanes); ++k)
        for (std::int64_t i = 0; i < x_[1] * 9; ++i) *to++ = sum[i * lanes + k];
    }
  }

  Shared& shared_;
  Shape x_, dy_;
  int stride_, shards_;
};

// Returns whether this rule chooses these kernels for a convolution's node; false for another op.
template <class Rule>
[[nodiscard]] bool follows(const Rule& rule, Isa isa, const Op& op, const NodeDesc& d) {
  const auto ask = [&](Pass pass, const auto& o, const Shape& x, const Shape& y) {
    const op::Window& window = o;
    return o.groups == 1 && d.in[0].dtype == DType::bf16 && rule(isa, pass, Problem{window, x[1], y[1]});
  };
  if (const auto* o = std::get_if<op::Conv2d>(&op)) return ask(Pass::forward, *o, d.in[0].shape, d.out[0].shape);
  if (const auto* o = std::get_if<op::Conv2dBackwardData>(&op))
    return ask(Pass::backward_data, *o, d.out[0].shape, d.in[0].shape);
  if (const auto* o = std::get_if<op::Conv2dBackwardWeights>(&op))
    return ask(Pass::backward_weights, *o, d.in[0].shape, d.in[1].shape);
  return false;
}

}  // namespace tutti::cpu::pairs
