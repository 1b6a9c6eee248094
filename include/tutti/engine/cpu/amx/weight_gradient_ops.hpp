// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <variant>

#include <tutti/engine/cpu/amx/weight_gradient.hpp>
#include <tutti/engine/cpu/native_kernel.hpp>
#include <tutti/engine/cpu/shared.hpp>
#include <tutti/engine/cpu/update_kernels.hpp>
#include <tutti/engine/kernel.hpp>
#include <tutti/graph/ops.hpp>

namespace tutti::cpu::amx {

// Gradients of convolution weights in bf16 by the tiles of AMX. Each shard sums the gradient of its rows.
class Conv2dBackwardWeights final : public Kernel {
 public:
  using For = op::Conv2dBackwardWeights;
  Conv2dBackwardWeights(const Op& op, Shared& b, const NodeDesc& d)
      : shared_(b), shards_(d.shards), g_(*std::get_if<For>(&op), d.in[0].shape, d.in[1].shape) {}

  // Returns whether it is faster than a backend's kernel, as measured in bench/RESULTS.md: windows larger than 1x1,
  // unless a shard's sums are more than a megabyte.
  [[nodiscard]] static bool is_faster(const Op& op, const NodeDesc& d) {
    const auto& o = *std::get_if<For>(&op);
    const std::int64_t channels = d.in[0].shape[1], outputs = d.in[1].shape[1], window = o.kernel_h * o.kernel_w;
    return window > 1 && channels * outputs * window <= 256 * 1024;
  }

  [[nodiscard]] Partition cut() override {
    return {Division::reduce, sum_tasks(g_.floats(), shards_, GradientLayout::pairs(g_.rows)),
            static_cast<std::size_t>(g_.floats()) * sizeof(float)};
  }
  void prepare(const PrepareInfo& i) override {
    shared_.room.reserve(i.workers, static_cast<std::size_t>(g_.room_words()) * sizeof(std::uint32_t));
  }
  void run(Call& c) override {
    if (c.phase == Phase::finish) return add_shards(c);
    add_gradient(g_, {static_cast<const bf16*>(c.in[0].data), static_cast<const bf16*>(c.in[1].data), c.in[0].shape[0],
                      reinterpret_cast<float*>(c.partial), !c.first_chunk,
                      reinterpret_cast<std::uint32_t*>(shared_.room.of(c.worker))});
  }

 private:
  // Adds the shards' sums, in order, for some of the outputs.
  void add_shards(const Call& c) const {
    const std::int64_t rows = GradientLayout::pairs(g_.rows);
    for (std::int64_t r = rows * c.task / c.tasks; r < rows * (c.task + 1) / c.tasks; ++r) {
      const std::int64_t first = r * g_.row_floats();
      auto* const sum = reinterpret_cast<float*>(c.partial) + first;
      for (int l = 1; l < c.shards; ++l)
        accumulate(shared_.isa, sum, reinterpret_cast<const float*>(c.partial_of(l)) + first,
                   static_cast<std::size_t>(g_.row_floats()));
      write_gradient(g_, static_cast<const float*>(sum), 2 * r, static_cast<float*>(c.out[0].data));
    }
  }

  Shared& shared_;
  int shards_;
  GradientLayout g_;
};

}  // namespace tutti::cpu::amx
