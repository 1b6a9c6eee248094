// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>

#include <tutti/core/error.hpp>
#include <tutti/engine/cpu/grouped/kernels.hpp>
#include <tutti/engine/cpu/native_kernel.hpp>

// Convolutions in groups, among them depthwise ones, on every backend of the processor.
namespace tutti::cpu::grouped {

// Returns the number of groups of a convolution or of one of its gradients; 1 for other ops.
[[nodiscard]] inline int groups_of(const Op& op) {
  if (const auto* o = std::get_if<op::Conv2d>(&op)) return o->groups;
  if (const auto* o = std::get_if<op::Conv2dBackwardData>(&op)) return o->groups;
  if (const auto* o = std::get_if<op::Conv2dBackwardWeights>(&op)) return o->groups;
  return 1;
}

// Returns the number of floats in a register.
[[nodiscard]] constexpr int lanes(Isa isa) {
  return isa == Isa::baseline || is_neon(isa) ? lanes_of<Isa::baseline>
         : isa == Isa::avx2                   ? lanes_of<Isa::avx2>
                                              : lanes_of<Isa::avx512>;
}

// What the passes share: the lines of the input in the worker's memory.
class GroupedKernel : public NativeKernel {
 protected:
  GroupedKernel(const Op& op, Shared& b, const NodeDesc& d, const Problem& g)
      : NativeKernel(op, b, d), b_(b), g_(g), bf16_(d.compute == DType::bf16) {
    if (g.kernel_h > most_lines)
      fail<UsageError>("convolution", {"a kernel of at most ", most_lines, " rows in a convolution of groups"},
                       g.kernel_h);
  }

  void reserve(int workers, std::int64_t floats) {
    b_.room.reserve(workers, static_cast<std::size_t>(g_.kernel_h * g_.line() + floats) * sizeof(float));
  }
  [[nodiscard]] float* room(const Call& c) const { return reinterpret_cast<float*>(b_.room.of(c.worker)); }
  // Calls f(lines, n, p) for every output line p of every image n of x; of a task's band if there are fewer rows than
  // threads.
  template <class T, class F>
  void each_line(const Call& c, const TensorRef& x, float* room, F&& f) const {
    Lines lines(g_, room);
    lines.clear_borders();
    std::int64_t first_image = 0, images = x.shape[0], first = 0, end = g_.out_h;
    if (parts_ > 1) {
      const Band b = band_of(c.task, c.tasks, x.shape[0], g_.out_h);
      first_image = b.image, images = b.image + 1, first = b.first, end = b.end;
    }
    const T* image = static_cast<const T*>(x.data) + first_image * x.shape.row_numel();
    for (std::int64_t n = first_image; n < images; ++n, image += x.shape.row_numel()) {
      lines.begin_image();
      for (std::int64_t p = first; p < end; ++p) {
        lines.move_to(p, [&](std::int64_t u, float* line) {
          fill_line<T>(isa_, static_cast<const Problem*>(&g_), image + u * g_.in_w * g_.channels, line);
        });
        f(lines, n, p);
      }
    }
  }

  Shared& b_;
  Problem g_;
  bool bf16_;
};

// Forward, and the gradient of the input.
class Correlation : public GroupedKernel, public ComputesBands {
 public:
  [[nodiscard]] Partition cut() override {
    return parts_ > 1 ? Partition{Division::whole, tasks_} : Partition{Division::rows};
  }
  [[nodiscard]] std::size_t packed_bytes() override { return static_cast<std::size_t>(g_.weights()) * sizeof(float); }
  // Rounds the weights to the compute type.
  void pack(const TensorRef& weights, void* to) override {
    const auto* const w = weights.as<float>();
    auto* at = static_cast<float*>(to);
    const std::int64_t taps = std::int64_t{g_.kernel_h} * g_.kernel_w;
    for (std::int64_t first = 0; first < g_.padded(); first += 16)
      for (std::int64_t i = 0; i < g_.planes; ++i)
        for (std::int64_t t = 0; t < taps; ++t)
          for (std::int64_t o = first; o < first + 16; ++o) {
            const std::int64_t group = o / g_.per_group, k = o % g_.per_group;
            // [outputs, inputs of a group, taps]
            const float v = o >= g_.outputs ? 0.0F
                            : backward_     ? w[((group * g_.planes + i) * g_.per_group + k) * taps + taps - 1 - t]
                                            : w[(o * g_.planes + i) * taps + t];
            *at++ = bf16_ ? static_cast<float>(bf16(v)) : v;
          }
  }
  void prepare(const PrepareInfo& i) override { reserve(i.workers, 0); }
  [[nodiscard]] Band band(int task, int tasks) const override { return band_of(task, tasks, rows_, g_.out_h); }
  void run(Call& c) override {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      T* const y = static_cast<T*>(c.out[0].data);
      each_line<T>(c, c.in[0], room(c), [&](const Lines& lines, std::int64_t n, std::int64_t p) {
        RowArgs row{&g_, lines.data(), lines.count(), static_cast<const float*>(c.in[1].data)};
        T* const to = y + (n * g_.out_h + p) * g_.out_w * g_.outputs;
        if constexpr (std::is_same_v<T, bf16>)
          row.y16 = to;
        else
          row.y = to;
        correlate(isa_, row);
      });
    });
  }

 protected:
  Correlation(const Op& op, Shared& b, const NodeDesc& d, const Problem& g, bool backward)
      : GroupedKernel(op, b, d, g), backward_(backward), rows_(d.rows), tasks_(band_tasks(d.parts, d.rows, g.out_h)) {}

 private:
  bool backward_;
  std::int64_t rows_;
  int tasks_;
};

class Conv2d final : public Correlation {
 public:
  using For = op::Conv2d;
  Conv2d(const Op& op, Shared& b, const NodeDesc& d)
      : Correlation(op, b, d,
                    forward(*std::get_if<For>(&op), groups_of(op), d.in[0].shape, d.out[0].shape, lanes(b.isa)),
                    false) {}
};
class Conv2dBackwardData final : public Correlation {
 public:
  using For = op::Conv2dBackwardData;
  Conv2dBackwardData(const Op& op, Shared& b, const NodeDesc& d)
      : Correlation(op, b, d,
                    backward_data(*std::get_if<For>(&op), groups_of(op), d.out[0].shape, d.in[0].shape, lanes(b.isa)),
                    true) {}
};

// Each shard sums the gradient of its rows.
class Conv2dBackwardWeights final : public GroupedKernel {
 public:
  using For = op::Conv2dBackwardWeights;
  Conv2dBackwardWeights(const Op& op, Shared& b, const NodeDesc& d)
      : GroupedKernel(op, b, d,
                      forward(*std::get_if<For>(&op), groups_of(op), d.in[0].shape, d.in[1].shape, lanes(b.isa))),
        shards_(d.shards) {}

  [[nodiscard]] Partition cut() override {
    return {Division::reduce, sum_tasks(g_.weights(), shards_, g_.padded() / 16),
            static_cast<std::size_t>(g_.weights()) * sizeof(float)};
  }
  void prepare(const PrepareInfo& i) override { reserve(i.workers, g_.out_w * g_.output_pixel()); }
  void run(Call& c) override {
    if (c.phase == Phase::finish) return add_shards(c);
    auto* const dw = reinterpret_cast<float*>(c.partial);
    if (c.first_chunk) std::fill_n(dw, g_.weights(), 0.0F);
    float_type(c.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      const T* const from = static_cast<const T*>(c.in[1].data);
      float* const dy = room(c) + g_.kernel_h * g_.line();
      std::fill_n(dy, g_.out_w * g_.output_pixel(), 0.0F);
      // A line of dy has the form of a depthwise convolution's line without a border.
      Problem plain;
      plain.in_w = plain.out_w = g_.out_w;
      plain.channels = plain.outputs = g_.outputs;
      each_line<T>(c, c.in[0], room(c), [&](const Lines& lines, std::int64_t n, std::int64_t p) {
        fill_line<T>(isa_, static_cast<const Problem*>(&plain), from + (n * g_.out_h + p) * g_.out_w * g_.outputs, dy);
        gradient<>(isa_, GradientArgs{&g_, lines.data(), lines.count(), dy, dw});
      });
    });
  }

 private:
  // The form of the kernels, of each shard -> the sum, [outputs, planes, taps], for a part of the outputs.
  void add_shards(const Call& c) const {
    const std::int64_t blocks = g_.padded() / 16, size = g_.block() / 16;
    for (std::int64_t b = blocks * c.task / c.tasks; b < blocks * (c.task + 1) / c.tasks; ++b)
      for (std::int64_t o = b * 16; o < std::min(b * 16 + 16, g_.outputs); ++o) {
        float* const to = static_cast<float*>(c.out[0].data) + o * size;
        for (std::int64_t k = 0; k < size; ++k) {
          float sum = 0;
          for (int l = 0; l < c.shards; ++l)
            sum += reinterpret_cast<const float*>(c.partial_of(l))[b * g_.block() + k * 16 + o % 16];
          to[k] = sum;
        }
      }
  }

  int shards_;
};

}  // namespace tutti::cpu::grouped
