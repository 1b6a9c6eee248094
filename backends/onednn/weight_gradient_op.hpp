// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <variant>

#include <tutti/backends/onednn/convolution_op.hpp>
#include <tutti/backends/onednn/shared.hpp>
#include <tutti/engine/cpu/update_kernels.hpp>
#include <tutti/engine/cpu/weight_gradient.hpp>
#include <tutti/engine/kernel.hpp>

namespace tutti::onednn {

// Computes gradients of convolution weights.
//
// If tutti has a kernel of its own for this processor, the kernel computes the weight gradients of 1x1 convolutions and
// of convolutions with a stride: its matrix products reach 80 % of the peak, oneDNN's convolutions 50 to 70. It also
// computes large gradients in bf16, and all that cpu/amx leaves to it if the processor has AMX. A large gradient is cut
// into parts of its input channels, and with many threads also of its output channels. Each part is a task over all
// rows of the batch: with shards, each shard would need a partial sum of megabytes, which costs more than it saves. The
// cut does not change the order in which an element is summed.
class Conv2dBackwardWeights final : public Kernel {
 public:
  using For = op::Conv2dBackwardWeights;
  Conv2dBackwardWeights(const Op& op, Shared& b, const NodeDesc& d)
      : b_(b),
        problem_(problem(*std::get_if<For>(&op), d.in[0], d.out[0].shape, d.in[1])),
        shards_(d.shards),
        own_(is_own()) {}

  [[nodiscard]] Partition cut() override {
    const Shape& w = problem_.w;
    if (own_) {
      if (w.numel() < 256 * 1024)
        return {Division::reduce, cpu::sum_tasks(w.numel(), shards_, w[0]),
                static_cast<std::size_t>(w.numel()) * sizeof(float)};
      const int threads = b_.threads_of_division();
      const bool by_outputs = w[2] * w[3] == 1 && w[0] > w[1];
      const auto most = [](std::int64_t channels) { return std::max<std::int64_t>(1, channels / 32); };
      const std::int64_t first = std::min<std::int64_t>(most(w[by_outputs ? 0 : 1]), std::max(8, 4 * threads));
      const std::int64_t second =
          std::clamp<std::int64_t>((2 * threads + first - 1) / first, 1, most(w[by_outputs ? 1 : 0]));
      input_parts_ = by_outputs ? second : first;
      return {Division::whole, static_cast<int>(first * second), 0};
    }
    if (by_channels()) return {Division::whole, channel_tasks, 0};
    return {Division::reduce, 1, b_.convolutions.layout(problem_, Pass::backward_weights).desc.get_size()};
  }

  void prepare(const PrepareInfo& i) override {
    const bool whole = i.partition.division == Division::whole;
    if (own_) {
      const Shape& w = problem_.w;
      weight_offset_ = static_cast<std::size_t>(cpu::weight_gradient_floats(w[1], w[0])) * sizeof(float);
      const auto widest = [](std::int64_t channels, std::int64_t parts) { return (channels / 16 / parts + 1) * 16; };
      const std::int64_t floats = whole && w[2] * w[3] > 1 ? widest(w[0], i.partition.tasks / input_parts_) * w[2] *
                                                                 w[3] * widest(w[1], input_parts_)
                                                           : 0;
      return b_.reserve(weight_offset_ + static_cast<std::size_t>(floats) * sizeof(float));
    }
    if (whole) {
      problem_.w[0] /= channel_tasks;
      problem_.y[1] /= channel_tasks;
    }
    weight_offset_ = round_up(primitives_.make(b_.convolutions, problem_, Pass::backward_weights, i));
    weight_bytes_ = b_.convolutions.layout(problem_, Pass::backward_weights).desc.get_size();
    slice_offset_ = weight_offset_ + round_up(weight_bytes_);
    const TensorDesc& dy = i.desc.in[1];
    b_.reserve(slice_offset_ +
               (whole ? static_cast<std::size_t>(dy.shape.numel()) / channel_tasks * size_of(dy.dtype) : 0));
  }

  void run(Call& c) override {
    if (own_) return c.in[0].dtype == DType::bf16 ? run_own<bf16>(c) : run_own<float>(c);
    if (c.phase == Phase::whole) return run_channels(c);
    const std::size_t n = weight_bytes_ / sizeof(float);
    auto* const mine = reinterpret_cast<float*>(c.partial);
    if (c.phase == Phase::finish) {
      for (int l = 1; l < c.shards; ++l)
        cpu::accumulate(b_.isa, mine, reinterpret_cast<const float*>(c.partial_of(l)), n);
      b_.convolutions.reorder(problem_, Pass::backward_weights, mine, c.out[0].data);
      return;
    }
    // oneDNN overwrites its result. So it may write only a shard's first chunk directly into the shard's sum.
    std::byte* const room = b_.scratch(c.worker);
    auto* const target = c.first_chunk ? mine : reinterpret_cast<float*>(room + weight_offset_);
    primitives_.run(c.in[0].shape[0], c.worker, {c.in[0].data, c.in[1].data, target}, room);
    if (!c.first_chunk) cpu::accumulate(b_.isa, mine, static_cast<const float*>(target), n);
  }

 private:
  [[nodiscard]] bool is_own() const {
    const Problem& p = problem_;
    if (p.window.stride == 1 && p.w[2] * p.w[3] > 1 && !(p.bf16 && (b_.amx || by_channels()))) return false;
    return p.bf16 ? cpu::has_weight_gradient<bf16>(b_.isa, p.w[1], p.w[0])
                  : cpu::has_weight_gradient<float>(b_.isa, p.w[1], p.w[0]);
  }
  // Returns true if a shard's sum is [inputs][outputs]: with this order the kernel copies the operand with fewer
  // channels.
  [[nodiscard]] bool turned() const {
    const Shape& w = problem_.w;
    const op::Window& o = problem_.window;
    return w[2] * w[3] == 1 && o.stride == 1 && o.padding == 0 && w[1] > w[0];
  }
  template <class T>
  void run_own(const Call& c) {
    const Shape& w = problem_.w;
    const std::int64_t places = w[2] * w[3];
    auto* const out = static_cast<float*>(c.out[0].data);
    // Writes outputs [first, end): [outputs][places][inputs] -> a part of [outputs][all inputs][places]
    const auto turn = [&](const float* from, std::int64_t first, std::int64_t end, std::int64_t first_input,
                          std::int64_t inputs) {
      for (std::int64_t o = first; o < end; ++o, from += places * inputs) {
        float* to = out + (o * w[1] + first_input) * places;
        for (std::int64_t k = 0; k < inputs; ++k)
          for (std::int64_t place = 0; place < places; ++place) *to++ = from[place * inputs + k];
      }
    };
    if (c.phase == Phase::finish) {
      const std::int64_t rows = turned() ? w[1] : w[0], row = w.numel() / rows;
      const std::int64_t first = rows * c.task / c.tasks, end = rows * (c.task + 1) / c.tasks;
      const auto part = [&](int l) { return reinterpret_cast<float*>(c.partial_of(l)) + first * row; };
      for (int l = 1; l < c.shards; ++l)
        cpu::accumulate(b_.isa, part(0), static_cast<const float*>(part(l)),
                        static_cast<std::size_t>((end - first) * row));
      if (!turned()) return turn(part(0), first, end, 0, w[1]);
      for (std::int64_t o = 0; o < w[0]; ++o)
        for (std::int64_t k = first; k < end; ++k) out[o * w[1] + k] = part(0)[(k - first) * w[0] + o];
      return;
    }
    cpu::WeightGradientArgs<T> g;
    g.window = problem_.window;
    const TensorRef &x = c.in[0], &dy = c.in[1];
    g.rows = x.shape[0];
    g.h = x.shape[2];
    g.w = x.shape[3];
    g.channels = g.inputs = w[1];
    g.out_h = dy.shape[2];
    g.out_w = dy.shape[3];
    g.outputs = g.part_outputs = w[0];
    g.x = static_cast<const T*>(x.data);
    g.dy = static_cast<const T*>(dy.data);
    g.columns = reinterpret_cast<float*>(b_.scratch(c.worker));
    g.amx = b_.amx;
    if (c.phase == Phase::reduce) {
      g.add = !c.first_chunk;
      g.dw = reinterpret_cast<float*>(c.partial);
      if (turned()) {
        std::swap(g.x, g.dy);
        std::swap(g.inputs, g.part_outputs);
        g.channels = g.inputs;
        g.outputs = g.part_outputs;
      }
    } else {
      const auto cut = [](std::int64_t channels, std::int64_t part, std::int64_t parts, auto& first, auto& count) {
        first = channels / 16 * part / parts * 16;
        count = channels / 16 * (part + 1) / parts * 16 - first;
      };
      cut(w[1], c.task % input_parts_, input_parts_, g.first_input, g.inputs);
      cut(w[0], c.task / input_parts_, c.tasks / input_parts_, g.first_output, g.part_outputs);
      if (places > 1) {
        g.dw = reinterpret_cast<float*>(b_.scratch(c.worker) + weight_offset_);
      } else {
        g.dw = out + g.first_output * w[1] + g.first_input;
      }
    }
    const bool in_place = c.phase == Phase::whole && places == 1;
    g.dw_place = g.inputs;
    g.dw_output = in_place ? w[1] : places * g.inputs;
    cpu::weight_gradient<T>(g);
    if (c.phase == Phase::whole && !in_place)
      turn(g.dw, g.first_output, g.first_output + g.part_outputs, g.first_input, g.inputs);
  }

  // Large gradients that oneDNN computes are cut by output channels: each task copies its channels of dy.
  static constexpr int channel_tasks = 8;
  [[nodiscard]] bool by_channels() const {
    return problem_.w.numel() >= 1024 * 1024 && problem_.w[0] % (16 * channel_tasks) == 0;
  }
  void run_channels(const Call& c) {
    const TensorRef& dy = c.in[1];
    const std::size_t unit = size_of(dy.dtype), channels = static_cast<std::size_t>(dy.shape[1]) * unit,
                      mine = channels / channel_tasks;
    std::byte* const room = b_.scratch(c.worker);
    std::byte* const slice = room + slice_offset_;
    const std::byte* from = static_cast<const std::byte*>(dy.data) + static_cast<std::size_t>(c.task) * mine;
    const std::size_t pixels = static_cast<std::size_t>(dy.shape.numel() / dy.shape[1]);
    for (std::size_t i = 0; i < pixels; ++i) std::memcpy(slice + i * mine, from + i * channels, mine);
    std::byte* const dw = room + weight_offset_;
    primitives_.run(c.in[0].shape[0], c.worker, {c.in[0].data, slice, dw}, room);
    const auto part = static_cast<std::size_t>(c.out[0].shape.numel()) / channel_tasks;
    b_.convolutions.reorder(problem_, Pass::backward_weights, dw,
                            static_cast<float*>(c.out[0].data) + static_cast<std::size_t>(c.task) * part);
  }

  Shared& b_;
  Problem problem_;  // the problem of one task
  int shards_;
  bool own_;
  std::int64_t input_parts_ = 1;  // parts of the input channels of a large gradient that tutti's kernel computes
  Primitives primitives_;
  std::size_t weight_bytes_ = 0, weight_offset_ = 0, slice_offset_ = 0;
};

}  // namespace tutti::onednn
