// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <type_traits>
#include <variant>
#include <vector>

#include <tutti/engine/cpu/channels/layer_norm_kernels.hpp>
#include <tutti/engine/cpu/convert_kernels.hpp>
#include <tutti/engine/cpu/native_kernel.hpp>
#include <tutti/engine/cpu/norm/norm_kernels.hpp>

// Factors of channels (squeeze-and-excitation, layer scale), concatenation, layer norm and dropout. One class runs them
// all, with the vector kernels of batch norm if possible: each class and each vector kernel costs every program that
// compiles them.
namespace tutti::cpu {

class ChannelKernel final : public NativeKernel {
 public:
  // Returns the kernel of one of these ops, or null for another op.
  [[nodiscard]] static std::unique_ptr<Kernel> make(const Op& op, Shared& b, const NodeDesc& d) {
    const bool one = std::holds_alternative<op::Multiply>(op) || std::holds_alternative<op::MultiplyBackward>(op) ||
                     std::holds_alternative<op::Concat>(op) || std::holds_alternative<op::ConcatBackward>(op) ||
                     std::holds_alternative<op::LayerNorm>(op) || std::holds_alternative<op::LayerNormBackward>(op) ||
                     std::holds_alternative<op::Dropout>(op);
    return one ? std::make_unique<ChannelKernel>(op, b, d) : nullptr;
  }
  ChannelKernel(const Op& op, Shared& b, const NodeDesc& d)
      : NativeKernel(op, b, d), room_(b.room), channels_(d.in[0].shape[1]) {
    // The sums over all rows: of the gradient of a parameter with a factor for each channel, or of two.
    if (std::holds_alternative<op::MultiplyBackward>(op) && d.out[0].shape.rank() != 4) sums_ = 1;
    if (std::holds_alternative<op::LayerNormBackward>(op)) sums_ = 2;
  }
  [[nodiscard]] Partition cut() override {
    if (sums_ == 0) return {Division::rows};
    return {Division::reduce, 1, static_cast<std::size_t>(sums_ * channels_) * sizeof(double)};
  }
  void prepare(const PrepareInfo& i) override {
    // What doubles() and floats() return.
    room_.reserve(i.workers, static_cast<std::size_t>(2 * channels_) * sizeof(double) +
                                 static_cast<std::size_t>(2 * channels_ + 3 * block()) * sizeof(float));
  }
  void run(Call& c) override {
    if (c.phase == Phase::finish) return finish(c);
    if (std::holds_alternative<op::Concat>(op_)) return concat(c);
    if (const auto* back = std::get_if<op::ConcatBackward>(&op_))
      return copy_channels(c.in[0], back->first, c.out[0], 0, c.out[0].shape[1]);
    float_type(c.in[0].dtype, [&](auto t) { run_as<decltype(t)>(c); });
  }

 private:
  // Pixels of one block in f32, and elements of it.
  [[nodiscard]] std::int64_t block_pixels() const { return std::clamp<std::int64_t>(4096 / channels_, 1, 64); }
  [[nodiscard]] std::int64_t block() const { return std::max<std::int64_t>(block_pixels() * channels_, 512); }

  template <class T>
  void run_as(const Call& c) const {
    if (std::holds_alternative<op::Multiply>(op_)) return multiply<T>(c);
    if (std::holds_alternative<op::MultiplyBackward>(op_)) return multiply_backward<T>(c);
    if (const auto* drop = std::get_if<op::Dropout>(&op_)) return dropout<T>(*drop, c);
    layer_norm_blocks<T>(c);
  }

  // y = x * factor[k] for some pixels of so many values: a batch norm without a shift.
  template <class T>
  void scale(const T* x, T* y, std::int64_t count, std::int64_t values, const float* factor, const float* zeros) const {
    const T* const no_residual = nullptr;
    norm_apply<T>(isa_, x, no_residual, y, count, values, factor, zeros, false);
  }
  // Return memory of this worker: two doubles for each channel; two floats for each channel and three blocks of floats.
  [[nodiscard]] double* doubles(const Call& c) const { return reinterpret_cast<double*>(room_.of(c.worker)); }
  [[nodiscard]] float* floats(const Call& c) const { return reinterpret_cast<float*>(doubles(c) + 2 * channels_); }

  template <class T>
  void multiply(const Call& c) const {
    const T* const x = static_cast<const T*>(c.in[0].data);
    T* const y = static_cast<T*>(c.out[0].data);
    float *const factor = floats(c), *const zeros = factor + channels_;
    std::fill_n(zeros, channels_, 0.0F);
    const std::int64_t row = c.in[0].shape.row_numel();
    // A parameter is f32; factors of images have the type of x.
    if (c.in[1].shape.rank() != 4)
      return scale<T>(x, y, pixels(c.in[0]), channels_, static_cast<const float*>(c.in[1].data), zeros);
    for (std::int64_t n = 0; n < c.in[0].shape[0]; ++n) {
      const T* const of_image = static_cast<const T*>(c.in[1].data) + n * channels_;
      for (std::int64_t k = 0; k < channels_; ++k) factor[k] = static_cast<float>(of_image[k]);
      scale<T>(x + n * row, y + n * row, row / channels_, channels_, factor, zeros);
    }
  }

  // dot[k] += the sum of dy * x over some pixels, by the kernel of batch norm's gradient with a mean of 0.
  template <class T>
  void dot_products(const T* dy, const T* x, std::int64_t count, const float* zeros, double* unused,
                    double* dot) const {
    NormBackwardArgs<T> a;
    a.dy = dy;
    a.x = x;
    a.pixels = count;
    a.channels = channels_;
    a.scale = a.shift = a.mean = zeros;
    norm_backward_reduce<T>(isa_, a, unused, dot);
  }
  template <class T>
  void multiply_backward(const Call& c) const {
    const T *const dy = static_cast<const T*>(c.in[0].data), *const x = static_cast<const T*>(c.in[1].data);
    double *const unused = doubles(c), *const dot = unused + channels_;
    float* const zeros = floats(c);
    std::fill_n(zeros, channels_, 0.0F);
    if (sums_ > 0) return dot_products<T>(dy, x, pixels(c.in[0]), zeros, unused, sums(c));
    const std::int64_t row = c.in[0].shape.row_numel();
    T* to = static_cast<T*>(c.out[0].data);
    for (std::int64_t n = 0; n < c.in[0].shape[0]; ++n) {
      std::fill_n(dot, channels_, 0.0);
      dot_products<T>(dy + n * row, x + n * row, row / channels_, zeros, unused, dot);
      for (std::int64_t k = 0; k < channels_; ++k) *to++ = T(static_cast<float>(dot[k]));
    }
  }

  template <class T>
  void dropout(const op::Dropout& o, const Call& c) const {
    const std::int64_t row = c.in[0].shape.row_numel(), most = block();
    float *const factor = floats(c), *const zeros = factor + most;
    std::fill_n(zeros, most, 0.0F);
    const T* x = static_cast<const T*>(c.in[0].data);
    T* y = static_cast<T*>(c.out[0].data);
    for (std::int64_t n = 0; n < c.in[0].shape[0]; ++n) {
      if (o.rate == 0) {
        std::memcpy(y, x, static_cast<std::size_t>(row) * sizeof(T));
        x += row;
        y += row;
        continue;
      }
      Rng numbers = o.numbers_of(c.scalars->key, c.first_row + n);
      if (o.rows) std::fill_n(factor, most, o.next_factor(numbers));
      for (std::int64_t rest = row; rest > 0;) {
        const std::int64_t count = std::min(most, rest);
        if (!o.rows)
          for (std::int64_t k = 0; k < count; ++k) factor[k] = o.next_factor(numbers);
        scale<T>(x, y, 1, count, factor, zeros);
        x += count;
        y += count;
        rest -= count;
      }
    }
  }

  // Layer norm or its gradient, block by block; blocks of bf16 are converted to f32 and back.
  template <class T>
  void layer_norm_blocks(const Call& c) const {
    constexpr bool converts = !std::is_same_v<T, float>;
    const bool backward = sums_ > 0;
    const auto* const forward = std::get_if<op::LayerNorm>(&op_);
    LayerNormArgs a;
    a.channels = channels_;
    a.eps = forward != nullptr ? forward->eps : std::get_if<op::LayerNormBackward>(&op_)->eps;
    a.gamma = c.in[backward ? 2 : 1].as<float>();
    if (!backward) a.beta = c.in[2].as<float>();
    a.dgamma = floats(c);
    a.dbeta = a.dgamma + channels_;
    float *const here = a.dbeta + channels_, *const gradients = here + block(), *const results = gradients + block();
    const T* const from = static_cast<const T*>(c.in[backward ? 1 : 0].data);
    const T* const incoming = backward ? static_cast<const T*>(c.in[0].data) : nullptr;
    T* const to = static_cast<T*>(c.out[0].data);
    double* const total = backward ? sums(c) : nullptr;
    const std::int64_t all = pixels(c.in[0]);
    for (std::int64_t first = 0; first < all; first += block_pixels()) {
      a.pixels = std::min(block_pixels(), all - first);
      const std::int64_t at = first * channels_, count = a.pixels * channels_;
      if (backward) std::fill_n(a.dgamma, 2 * channels_, 0.0F);
      if constexpr (converts) {
        convert<float, T>(isa_, from + at, here, count);
        if (backward) convert<float, T>(isa_, incoming + at, gradients, count);
        a.x = here;
        a.dy = backward ? gradients : nullptr;
        a.out = results;
      } else {
        a.x = from + at;
        a.dy = backward ? incoming + at : nullptr;
        a.out = to + at;
      }
      layer_norm(isa_, a);
      if constexpr (converts) convert<T, float>(isa_, static_cast<const float*>(results), to + at, count);
      if (backward)
        for (std::int64_t k = 0; k < 2 * channels_; ++k) total[k] += static_cast<double>(a.dgamma[k]);
    }
  }

  // Returns this shard's sums, which the first chunk clears.
  [[nodiscard]] double* sums(const Call& c) const {
    auto* const mine = reinterpret_cast<double*>(c.partial);
    if (c.first_chunk) std::fill_n(mine, sums_ * channels_, 0.0);
    return mine;
  }
  // Writes the totals to the last outputs.
  void finish(const Call& c) const {
    for (std::int64_t k = 0; k < sums_ * channels_; ++k) {
      double sum = 0;
      for (int l = 0; l < c.shards; ++l) sum += reinterpret_cast<const double*>(c.partial_of(l))[k];
      c.out[static_cast<std::size_t>(c.outputs - sums_ + k / channels_)].as<float>()[k % channels_] =
          static_cast<float>(sum);
    }
  }

  // Copies channels [from, from + count) of x to channels [to, to + count) of y.
  static void copy_channels(const TensorRef& x, std::int64_t from, const TensorRef& y, std::int64_t to,
                            std::int64_t count) {
    const auto unit = static_cast<std::int64_t>(size_of(x.dtype));
    const std::int64_t in = x.shape[1] * unit, out = y.shape[1] * unit;
    const auto* source = static_cast<const std::byte*>(x.data) + from * unit;
    auto* target = static_cast<std::byte*>(y.data) + to * unit;
    for (std::int64_t i = 0; i < pixels(x); ++i, source += in, target += out)
      std::memcpy(target, source, static_cast<std::size_t>(count * unit));
  }
  static void concat(const Call& c) {
    std::int64_t first = 0;
    for (std::size_t k = 0; k < static_cast<std::size_t>(c.inputs); first += c.in[k++].shape[1])
      copy_channels(c.in[k], 0, c.out[0], first, c.in[k].shape[1]);
  }

  WorkerRoom& room_;
  std::int64_t channels_;
  int sums_ = 0;  // sums of each channel over all rows
};

}  // namespace tutti::cpu
