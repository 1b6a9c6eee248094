// SPDX-License-Identifier: MIT
#pragma once

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
namespace tutti::onednn {

class LinearKernel : public HostKernel<> {
 public:
  [[nodiscard]] Partition cut() override {
    return {Division::whole, weights_ < 64 * 1024 ? 1 : cpu::linear_tasks(columns_)};
  }
  void prepare(const PrepareInfo& i) override {
    of_task_.clear();
    for (int t = 0; t < i.partition.tasks; ++t) {
      product_.columns = columns_ * (t + 1) / i.partition.tasks - columns_ * t / i.partition.tasks;
      auto& primitive = by_columns_[product_.columns];
      if (!primitive) primitive = make_product(b_.engine, product_, i.workers);
      b_.reserve(primitive->scratch_bytes());
      of_task_.push_back(primitive.get());
    }
  }

 protected:
  // p: the product for all rows of the batch.
  LinearKernel(const NodeDesc& d, Shared& b, std::int64_t columns, const Product& p)
      : HostKernel(d), b_(b), columns_(columns), weights_(d.in[1].shape.numel()), product_(p) {}
  [[nodiscard]] std::int64_t first_column(const Call& c) const { return columns_ * c.task / c.tasks; }
  static void* at(const TensorRef& t, std::int64_t element) {
    return static_cast<std::byte*>(t.data) + static_cast<std::size_t>(element) * size_of(t.dtype);
  }
  void multiply(const Call& c, const std::array<void*, 4>& data) {
    of_task_[static_cast<std::size_t>(c.task)]->run(c.worker, data, b_.scratch(c.worker));
  }

 private:
  Shared& b_;
  std::int64_t columns_, weights_;
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
