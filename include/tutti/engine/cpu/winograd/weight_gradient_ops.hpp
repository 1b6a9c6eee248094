// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>

#include <tutti/engine/cpu/shared.hpp>
#include <tutti/engine/cpu/update_kernels.hpp>
#include <tutti/engine/cpu/winograd/weight_gradient.hpp>
#include <tutti/engine/kernel.hpp>
#include <tutti/graph/ops.hpp>

namespace tutti::cpu::winograd {

// Gradients of the weights of 3x3 convolutions with stride 1 or 2 and padding 1.
//
// With few weights, each shard sums the gradient of its rows. With many weights, adding a sum of megabytes for each
// shard would cost more than the products. So the shards transform the tiles of the whole batch, then each task
// computes a part of the gradient from all of them, once.
class Conv2dBackwardWeights final : public Kernel {
 public:
  using For = op::Conv2dBackwardWeights;
  Conv2dBackwardWeights(const Op& op, Shared& b, const NodeDesc& d)
      : b_(b),
        rows_(d.rows),
        strided_(std::get_if<For>(&op)->stride == 2),
        order_(order_of(strided_)),
        x_(images(d.in[0], strided_)),
        dy_(images(d.in[1], false)),
        inputs_(whole_registers(b.isa, x_.channels)),
        outputs_(whole_registers(b.isa, dy_.channels)),
        shards_(d.shards) {}

  [[nodiscard]] Partition cut() override {
    Partition p{Division::reduce};
    if (whole_batch()) {
      const std::int64_t tiles = rows_ * x_.tiles_per_row();
      p.tasks = static_cast<int>(panels() * parts());
      const std::int64_t floats = order_.count * (plane(inputs_, tiles) + plane(outputs_, tiles));
      p.partial_bytes = static_cast<std::size_t>((floats + shards_ - 1) / shards_) * sizeof(float);
    } else {
      p.tasks = sum_tasks(sums(), shards_, dy_.channels);
      p.partial_bytes = static_cast<std::size_t>(sums()) * sizeof(float);
    }
    return p;
  }

  void prepare(const PrepareInfo& i) override {
    std::int64_t floats = products_floats();
    if (whole_batch()) {
      floats += block_floats;
    } else {
      const std::int64_t rows = *std::max_element(i.chunk_rows.begin(), i.chunk_rows.end());
      const std::int64_t tiles = std::min(most_tiles(), rows * x_.tiles_per_row());
      floats += order_.count * (plane(inputs_, tiles) + plane(outputs_, tiles));
    }
    b_.room.reserve(i.workers, static_cast<std::size_t>(floats) * sizeof(float));
  }

  // Returns whether the tasks of the finish compute the products, from the tiles of the whole batch.
  [[nodiscard]] bool whole_batch() const {
    const bool many = x_.channels * dy_.channels >= (strided_ ? 128 * 256 : 256 * 256);
    return many && rows_ * x_.tiles_per_row() <= 1024;
  }

  void run(Call& c) override {
    if (c.phase == Phase::finish) return whole_batch() ? multiply_task(c) : add_shards(c);
    reduce(c);
  }

 private:
  [[nodiscard]] static Images images(const TensorDesc& t, bool wide) {
    return {t.shape[0], t.shape[2], t.shape[3], t.shape[1], wide ? 2 * tile : tile};
  }
  [[nodiscard]] static std::int64_t plane(std::int64_t channels, std::int64_t tiles) {
    return plane_stride(channels * tiles);
  }
  static constexpr std::int64_t block_floats = weight_block * weight_block * 9;  // of a gradient
  [[nodiscard]] static std::int64_t products_floats() { return (weight_product_floats() + 15) / 16 * 16; }

  [[nodiscard]] std::int64_t sums() const { return dy_.channels * 9 * inputs_; }
  // Returns the number of tiles that are transformed before they are multiplied: not many more than the second-level
  // cache holds, and enough to outweigh the transfer of the products to the sums.
  [[nodiscard]] std::int64_t most_tiles() const {
    return std::max<std::int64_t>(128, 8192 / (inputs_ + outputs_)) / (strided_ ? 2 : 1);
  }

  // Tasks over the whole batch: each computes a block of the gradient, which is one of parts() of its outputs times one
  // of panels() of its inputs.
  [[nodiscard]] std::int64_t panels() const { return (inputs_ + weight_block - 1) / weight_block; }
  [[nodiscard]] std::int64_t parts() const { return (outputs_ + weight_block - 1) / weight_block; }

  void transform(const Call& c, std::int64_t first, std::int64_t count, const TransformedTiles& x,
                 const TransformedTiles& dy, std::int64_t at) const {
    ReadTiles a{strided_ ? Reads::strided_inputs : Reads::inputs,
                c.in[0].data,
                c.in[0].dtype == DType::bf16,
                x_,
                first,
                count,
                x,
                at};
    a.images.rows = c.in[0].shape[0];
    read_and_transform(b_.isa, a);
    a.what = strided_ ? Reads::strided_gradients : Reads::gradients;
    a.images = dy_;
    a.images.rows = c.in[0].shape[0];
    a.from = c.in[1].data;
    a.to = dy;
    read_and_transform(b_.isa, a);
  }

  void reduce(const Call& c) {
    const std::int64_t tiles = c.in[0].shape[0] * x_.tiles_per_row();
    if (whole_batch()) {
      std::byte* const all = c.partial - static_cast<std::size_t>(c.shard) * c.partial_stride;
      const TransformedTiles x = transformed(all, inputs_, rows_ * x_.tiles_per_row());
      return transform(c, 0, tiles, x, behind(x, outputs_), c.first_row * x_.tiles_per_row());
    }
    std::byte* const room = b_.room.of(c.worker);
    WeightProductArgs a = product_args(room);
    a.sums = reinterpret_cast<float*>(c.partial);
    const std::int64_t parts = (tiles + most_tiles() - 1) / most_tiles(), most = (tiles + parts - 1) / parts;
    a.x = transformed(room + static_cast<std::size_t>(products_floats()) * sizeof(float), inputs_, most);
    a.dy = behind(a.x, outputs_);
    for (std::int64_t first = 0; first < tiles; first += most) {
      a.tiles = std::min(most, tiles - first);
      transform(c, first, a.tiles, a.x, a.dy, 0);
      a.add = !c.first_chunk || first > 0;
      weight_products(b_.isa, a);
    }
  }

  [[nodiscard]] static TransformedTiles transformed(std::byte* at, std::int64_t channels, std::int64_t tiles) {
    return {reinterpret_cast<float*>(at), tiles, plane(channels, tiles)};
  }
  [[nodiscard]] TransformedTiles behind(const TransformedTiles& x, std::int64_t channels) const {
    return {x.data + order_.count * x.plane, x.tiles, plane(channels, x.tiles)};
  }
  [[nodiscard]] WeightProductArgs product_args(std::byte* room) const {
    WeightProductArgs a;
    a.strided = strided_;
    a.inputs = x_.channels;
    a.outputs = dy_.channels;
    a.end_input = inputs_;
    a.end_output = outputs_;
    a.products = reinterpret_cast<float*>(room);
    return a;
  }

  void multiply_task(const Call& c) {
    WeightProductArgs a = product_args(b_.room.of(c.worker));
    a.x = transformed(c.partial, inputs_, rows_ * x_.tiles_per_row());
    a.dy = behind(a.x, outputs_);
    a.tiles = a.x.tiles;
    a.first_input = c.task % panels() * weight_block;
    a.end_input = std::min(inputs_, a.first_input + weight_block);
    a.first_output = c.task / panels() * weight_block;
    a.end_output = std::min(outputs_, a.first_output + weight_block);
    float* const out = static_cast<float*>(c.out[0].data) + (a.first_output * a.inputs + a.first_input) * 9;
    a.dw = c.sink == nullptr ? out : a.products + products_floats();
    a.dw_step = (c.sink == nullptr ? a.inputs : weight_block) * 9;
    weight_products(b_.isa, a);
    if (c.sink == nullptr) return;
    const auto count = static_cast<std::size_t>((std::min(a.end_input, a.inputs) - a.first_input) * 9);
    for (std::int64_t k = 0; k < std::min(a.end_output, a.outputs) - a.first_output; ++k)
      c.sink->take(out + k * a.inputs * 9, a.dw + k * a.dw_step, count);
  }

  // [outputs][9][inputs] of each shard -> their sum, [outputs][inputs][9]
  void add_shards(const Call& c) const {
    const std::int64_t row = 9 * inputs_;
    auto* const out = static_cast<float*>(c.out[0].data);
    for (std::int64_t k = dy_.channels * c.task / c.tasks; k < dy_.channels * (c.task + 1) / c.tasks; ++k) {
      float* const sum = reinterpret_cast<float*>(c.partial) + k * row;
      for (int l = 1; l < c.shards; ++l)
        accumulate(b_.isa, sum, reinterpret_cast<const float*>(c.partial_of(l)) + k * row,
                   static_cast<std::size_t>(row));
      float* to = out + k * x_.channels * 9;
      for (std::int64_t i = 0; i < x_.channels; ++i)
        for (int place = 0; place < 9; ++place) *to++ = sum[place * inputs_ + i];
    }
  }

  Shared& b_;
  std::int64_t rows_;
  bool strided_;
  const PointOrder& order_;
  Images x_, dy_;
  std::int64_t inputs_, outputs_;  // in whole registers
  int shards_;
};

}  // namespace tutti::cpu::winograd
