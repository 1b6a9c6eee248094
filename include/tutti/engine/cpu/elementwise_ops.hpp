// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <tutti/engine/cpu/native_kernel.hpp>
#include <tutti/engine/cpu/norm/norm_kernels.hpp>
#include <tutti/engine/cpu/row_kernels.hpp>

// Element-wise ops, and the gradient of a bias.
namespace tutti::cpu {

class Normalize : public RowKernelOf<op::Normalize> {
 public:
  using RowKernelOf::RowKernelOf;
  void run(Call& c) override {
    const TensorRef& x = c.in[0];
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::normalize<T>(isa_, static_cast<const std::uint8_t*>(x.data), static_cast<T*>(c.out[0].data), x.shape.numel(),
                        x.shape[1], o_.mean.data(), o_.inv_std.data());
    });
  }
};
class Add : public RowKernelOf<op::Add> {
 public:
  using RowKernelOf::RowKernelOf;
  void run(Call& c) override {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::add<T>(isa_, static_cast<const T*>(c.in[0].data), static_cast<const T*>(c.in[1].data),
                  static_cast<T*>(c.out[0].data), c.out[0].shape.numel());
    });
  }
};

// y = x + b[c], computed as a batch norm with factors of 1. If the channels do not fill whole registers, several pixels
// together are treated as one pixel with more channels.
class Bias : public RowKernel {
 public:
  using For = op::Bias;
  Bias(const Op& op, Shared& b, const NodeDesc& d)
      : RowKernel(op, b, d), channels_(d.in[1].shape.numel()), together_(16 / std::gcd<std::int64_t>(channels_, 16)) {
    if (together_ * channels_ > most) together_ = 1;
    ones_.assign(static_cast<std::size_t>(together_ * channels_), 1.0F);
  }
  void run(Call& c) override {
    float_type(c.out[0].dtype, [&](auto t) { run_as<decltype(t)>(c); });
  }

 private:
  static constexpr std::int64_t most = 512;

  template <class T>
  void run_as(const Call& c) const {
    const float* const bias = c.in[1].as<float>();
    const float* const ones = ones_.data();
    const auto* x = static_cast<const T*>(c.in[0].data);
    const T* const no_residual = nullptr;  // has the type that norm_ops.hpp uses, so the kernel is compiled once
    auto* y = static_cast<T*>(c.out[0].data);
    std::int64_t rest = pixels(c.in[0]);
    if (together_ > 1) {
      float repeated[most];
      for (std::int64_t k = 0; k < together_; ++k)
        std::copy_n(bias, channels_, static_cast<float*>(repeated) + k * channels_);
      const std::int64_t groups = rest / together_, wide = together_ * channels_;
      norm_apply<T>(isa_, x, no_residual, y, groups, wide, ones, static_cast<const float*>(repeated), false);
      x += groups * wide;
      y += groups * wide;
      rest -= groups * together_;
    }
    norm_apply<T>(isa_, x, no_residual, y, rest, channels_, ones, bias, false);
  }

  std::int64_t channels_, together_;  // together_: number of pixels treated as one
  std::vector<float> ones_;
};

// db[c] = the sum over rows and pixels of dy[c].
class BiasBackward final : public NativeKernel {
 public:
  using For = op::BiasBackward;
  BiasBackward(const Op& op, Shared& b, const NodeDesc& d)
      : NativeKernel(op, b, d), channels_(d.out[0].shape.numel()) {}
  [[nodiscard]] Partition cut() override {
    return {Division::reduce, 1, static_cast<std::size_t>(channels_) * sizeof(double)};
  }
  void run(Call& c) override {
    auto* const sums = reinterpret_cast<double*>(c.partial);
    if (c.phase == Phase::finish) {
      auto* const db = c.out[0].as<float>();
      for (std::int64_t k = 0; k < channels_; ++k) {
        double sum = 0;
        for (int l = 0; l < c.shards; ++l) sum += reinterpret_cast<const double*>(c.partial_of(l))[k];
        db[k] = static_cast<float>(sum);
      }
      return;
    }
    if (c.first_chunk) std::fill_n(sums, channels_, 0.0);
    float_type(c.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      column_sums<T>(isa_, static_cast<const T*>(c.in[0].data), pixels(c.in[0]), channels_, sums);
    });
  }

 private:
  std::int64_t channels_;
};

}  // namespace tutti::cpu
