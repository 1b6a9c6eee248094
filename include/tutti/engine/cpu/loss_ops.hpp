// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <variant>

#include <tutti/engine/cpu/native_kernel.hpp>
#include <tutti/engine/reference/loss.hpp>

// The loss: the reference loop with a partial sum of the metrics for each shard.
namespace tutti::cpu {

class SoftmaxCrossEntropy final : public NativeKernel {
 public:
  using For = op::SoftmaxCrossEntropy;
  using NativeKernel::NativeKernel;
  [[nodiscard]] Partition cut() override { return {Division::reduce, 1, 4 * sizeof(double)}; }
  void run(Call& c) override {
    if (c.phase == Phase::finish) {
      auto* metrics = c.out[0].as<double>();
      for (int k = 0; k < 4; ++k) {
        metrics[k] = 0;
        for (int l = 0; l < c.shards; ++l) metrics[k] += reinterpret_cast<double*>(c.partial_of(l))[k];
      }
      return;
    }
    auto* mine = reinterpret_cast<double*>(c.partial);
    if (c.first_chunk) std::fill_n(mine, 4, 0.0);
    float_type(c.in[0].dtype, [&](auto t) {
      reference::softmax_cross_entropy<decltype(t)>(o_, c.in[0], c.in[1], mine, o_.backward ? &c.out[1] : nullptr,
                                                    *c.scalars);
    });
  }

 private:
  const For& o_ = *std::get_if<For>(&op_);
};

}  // namespace tutti::cpu
