// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>

#include <tutti/engine/cpu/gelu_kernels.hpp>
#include <tutti/engine/cpu/own_kernel.hpp>
#include <tutti/engine/cpu/row_kernels.hpp>

// Ops that take element by element, and the gradient of a bias.
namespace tutti::cpu {

class Normalize final : public RowKernel {
 public:
  using For = op::Normalize;
  using RowKernel::RowKernel;
  void run(Call& c) override {
    const TensorRef& x = c.in[0];
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::normalize<T>(isa_, static_cast<const std::uint8_t*>(x.data), static_cast<T*>(c.out[0].data), x.shape.numel(),
                        x.shape[1], o_.mean.data(), o_.inv_std.data());
    });
  }

 private:
  const For& o_ = *std::get_if<For>(&op_);
};
class Add final : public RowKernel {
 public:
  using For = op::Add;
  using RowKernel::RowKernel;
  void run(Call& c) override {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::add<T>(isa_, static_cast<const T*>(c.in[0].data), static_cast<const T*>(c.in[1].data),
                  static_cast<T*>(c.out[0].data), c.out[0].shape.numel());
    });
  }
};
class Gelu final : public RowKernel {
 public:
  using For = op::Gelu;
  using RowKernel::RowKernel;
  void run(Call& c) override {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::gelu<T>(isa_, static_cast<const T*>(c.in[0].data), static_cast<T*>(c.out[0].data), c.out[0].shape.numel());
    });
  }
};
class GeluBackward final : public RowKernel {
 public:
  using For = op::GeluBackward;
  using RowKernel::RowKernel;
  void run(Call& c) override {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::gelu_backward<T>(isa_, static_cast<const T*>(c.in[0].data), static_cast<const T*>(c.in[1].data),
                            static_cast<T*>(c.out[0].data), c.out[0].shape.numel());
    });
  }
};

// db[c] = the sum over rows and pixels of dy[c].
class BiasBackward final : public OwnKernel {
 public:
  using For = op::BiasBackward;
  BiasBackward(const Op& op, Shared& b, const NodeDesc& d) : OwnKernel(op, b, d), channels_(d.out[0].shape.numel()) {}
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
