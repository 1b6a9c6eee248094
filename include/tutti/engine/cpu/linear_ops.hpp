// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <tutti/engine/cpu/native_kernel.hpp>
#include <tutti/engine/cpu/row_kernels.hpp>

// Fully connected layers: the gradient of their weights. A library computes their products.
namespace tutti::cpu {

class LinearBackwardWeights final : public NativeKernel {
 public:
  using For = op::LinearBackwardWeights;
  LinearBackwardWeights(const Op& op, Shared& b, const NodeDesc& d)
      : NativeKernel(op, b, d), outputs_(d.out[0].shape[0]), bytes_(d.out[0].bytes() + d.out[1].bytes()) {
    // A partial sum of large weights for each shard would cost more memory and time than it saves.
    in_parts_ = d.out[0].shape.numel() >= 64 * 1024;
  }
  [[nodiscard]] Partition cut() override {
    if (in_parts_) return {Division::whole, linear_tasks(outputs_)};
    return {Division::reduce, 1, bytes_};
  }
  void run(Call& c) override {
    const std::int64_t in = c.in[0].shape.row_numel(), out = c.in[1].shape.row_numel();
    if (c.phase == Phase::whole) {
      const std::int64_t first = out * c.task / c.tasks, mine = out * (c.task + 1) / c.tasks - first;
      float *dw = static_cast<float*>(c.out[0].data) + first * in, *db = static_cast<float*>(c.out[1].data) + first;
      std::fill_n(dw, mine * in, 0.0F);
      std::fill_n(db, mine, 0.0F);
      return add(c, first, mine, dw, db);
    }
    if (c.phase == Phase::finish) {
      sum_shards<2>(c, {static_cast<float*>(c.out[0].data), static_cast<float*>(c.out[1].data)},
                    {static_cast<std::size_t>(in * out), static_cast<std::size_t>(out)});
      return;
    }
    auto* dw = reinterpret_cast<float*>(c.partial);
    auto* db = dw + in * out;
    if (c.first_chunk) std::fill_n(dw, in * out + out, 0.0F);
    add(c, 0, out, dw, db);
  }

 private:
  // Adds the gradient of outputs [first, first + count) to dw [count, in] and db [count].
  void add(const Call& c, std::int64_t first, std::int64_t count, float* dw, float* db) const {
    float_type(c.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      linear_backward_weights<T>(isa_, static_cast<const T*>(c.in[0].data), static_cast<const T*>(c.in[1].data) + first,
                                 dw, db, c.in[0].shape[0], c.in[0].shape.row_numel(), count, c.in[1].shape.row_numel());
    });
  }

  std::int64_t outputs_;
  std::size_t bytes_;
  bool in_parts_;
};

}  // namespace tutti::cpu
