// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <tutti/backends/onednn/linear.hpp>
#include <tutti/backends/onednn/shared.hpp>
#include <tutti/engine/host_backend.hpp>

// Fully connected layers by oneDNN's matrix products: the forward pass and the gradient of the input. Each task
// computes some columns of the result.
//
// Without AVX-512, oneDNN adds in an order that depends on the number of rows and on the row. An image would get
// another result with other images in its batch, so every product has block_rows rows there, and the last one gets rows
// of zeros.
namespace tutti::onednn {

class LinearKernel : public HostKernel<> {
 public:
  [[nodiscard]] Partition cut() override {
    return {Division::whole, weights_ < 64 * 1024 ? 1 : cpu::linear_tasks(columns_)};
  }
  void prepare(const PrepareInfo& i) override {
    const bool blocks = !has_blocks_of_16();
    if (blocks) product_.rows = block_rows;
    of_task_.clear();
    for (int t = 0; t < i.partition.tasks; ++t) {
      product_.columns = columns_of(t, i.partition.tasks);
      auto& primitive = by_columns_[product_.columns];
      if (!primitive) primitive = make_product(b_.engine, product_, i.workers);
      const std::size_t block =
          blocks ? sizeof(float) * static_cast<std::size_t>(block_rows * (product_.inner + product_.result_row)) : 0;
      b_.reserve(block_at(*primitive) + block);
      of_task_.push_back(primitive.get());
    }
  }

 protected:
  // p: the product for all rows of the batch.
  LinearKernel(const NodeDesc& d, Shared& b, std::int64_t columns, const Product& p)
      : HostKernel(d), b_(b), columns_(columns), weights_(d.in[1].shape.numel()), rows_(p.rows), product_(p) {}
  [[nodiscard]] std::int64_t first_column(const Call& c) const { return first_column(c.task, c.tasks); }
  static void* at(const TensorRef& t, std::int64_t element) {
    return static_cast<std::byte*>(t.data) + static_cast<std::size_t>(element) * size_of(t.dtype);
  }
  // data: the first elements that the task reads of the input, the weights and the bias (or null), and writes of the
  // result, in the order of the operands.
  void multiply(const Call& c, const std::array<void*, 4>& data) {
    Primitive& product = *of_task_[static_cast<std::size_t>(c.task)];
    std::byte* scratch = b_.scratch(c.worker);
    if (product_.rows == rows_) return product.run(c.worker, data, scratch);
    const auto* from = static_cast<const float*>(data[0]);
    auto* to = static_cast<float*>(data[2]);
    const std::int64_t columns = columns_of(c.task, c.tasks);
    auto* some = reinterpret_cast<float*>(scratch + block_at(product));
    float* result = some + block_rows * product_.inner;
    for (std::int64_t row = 0; row < rows_; row += block_rows) {
      const std::int64_t count = std::min(block_rows, rows_ - row);
      const float* in = from + row * product_.inner;
      float* out = to + row * product_.result_row;
      if (count == block_rows) {
        product.run(c.worker, std::array<void*, 4>{const_cast<float*>(in), data[1], out, data[3]}, scratch);
        continue;
      }
      std::fill(std::copy_n(in, count * product_.inner, some), result, 0.0F);
      product.run(c.worker, std::array<void*, 4>{some, data[1], result, data[3]}, scratch);
      for (std::int64_t r = 0; r < count; ++r)
        std::copy_n(result + r * product_.result_row, columns, out + r * product_.result_row);
    }
  }

 private:
  // A multiple of the rows that oneDNN's kernels compute at a time: 6 with AVX2, 4 with SSE4.1. They add the remaining
  // rows of a product in another order.
  static constexpr std::int64_t block_rows = 12;
  [[nodiscard]] std::int64_t first_column(std::int64_t task, std::int64_t tasks) const {
    return columns_ * task / tasks;
  }
  [[nodiscard]] std::int64_t columns_of(std::int64_t task, std::int64_t tasks) const {
    return first_column(task + 1, tasks) - first_column(task, tasks);
  }
  // Returns where the rows of an incomplete block are in a worker's memory: after oneDNN's scratchpad.
  static std::size_t block_at(const Primitive& p) { return (p.scratch_bytes() + 63) / 64 * 64; }

  Shared& b_;
  std::int64_t columns_, weights_, rows_;
  Product product_;
  std::map<std::int64_t, std::unique_ptr<Primitive>> by_columns_;
  std::vector<Primitive*> of_task_;
};

class Linear final : public LinearKernel {
 public:
  using For = op::Linear;
  Linear(const Op&, Shared& b, const NodeDesc& d) : Linear(b, d, d.in[1].shape) {}
  void run(Call& c) override {
    const std::int64_t first = first_column(c), in = c.in[1].shape[1];
    multiply(c, {c.in[0].data, at(c.in[1], first * in), at(c.out[0], first), at(c.in[2], first)});
  }

 private:
  Linear(Shared& b, const NodeDesc& d, const Shape& w)
      : LinearKernel(d, b, w[0], {d.rows, w[1], 0, 1, w[1], w[0], true, d.compute == DType::bf16}) {}
};

class LinearBackwardData final : public LinearKernel {
 public:
  using For = op::LinearBackwardData;
  LinearBackwardData(const Op&, Shared& b, const NodeDesc& d) : LinearBackwardData(b, d, d.in[1].shape) {}
  void run(Call& c) override {
    const std::int64_t first = first_column(c);
    multiply(c, {c.in[0].data, at(c.in[1], first), at(c.out[0], first), nullptr});
  }

 private:
  LinearBackwardData(Shared& b, const NodeDesc& d, const Shape& w)
      : LinearKernel(d, b, w[1], {d.rows, w[0], 0, w[1], 1, w[1], false, d.compute == DType::bf16}) {}
};

}  // namespace tutti::onednn
