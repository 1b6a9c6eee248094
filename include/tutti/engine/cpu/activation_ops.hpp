// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <variant>

#include <tutti/engine/cpu/activation_kernels.hpp>
#include <tutti/engine/cpu/convert_kernels.hpp>
#include <tutti/engine/cpu/native_kernel.hpp>

// Activations except relu.
namespace tutti::cpu {

template <class O>
class ActivationKernel : public RowKernel {
 public:
  using For = O;
  using RowKernel::RowKernel;
  void run(Call& c) override {
    float_type(c.out[0].dtype, [&](auto t) { run_as<decltype(t)>(c, std::get_if<O>(&op_)->kind); });
  }

 private:
  static constexpr bool backward = std::is_same_v<O, op::ActivationBackward>;

  template <class T>
  void run_as(const Call& c, op::ActivationKind kind) const {
    const std::int64_t n = c.out[0].shape.numel();
    const T *const dy = static_cast<const T*>(c.in[0].data), *const x = static_cast<const T*>(c.in[backward].data);
    T* const to = static_cast<T*>(c.out[0].data);
    if constexpr (std::is_same_v<T, float>) {
      activate(isa_, kind, backward, dy, x, to, n);
    } else {
      constexpr std::int64_t block = 1024;
      float in[block], gradient[block];
      float* const incoming = backward ? static_cast<float*>(gradient) : static_cast<float*>(in);
      for (std::int64_t i = 0; i < n; i += block) {
        const std::int64_t count = std::min(block, n - i);
        convert<float, T>(isa_, x + i, static_cast<float*>(in), count);
        if constexpr (backward) convert<float, T>(isa_, dy + i, incoming, count);
        activate(isa_, kind, backward, static_cast<const float*>(incoming), static_cast<const float*>(in),
                 static_cast<float*>(in), count);
        convert<T, float>(isa_, static_cast<const float*>(in), to + i, count);
      }
    }
  }
};
using Activation = ActivationKernel<op::Activation>;
using ActivationBackward = ActivationKernel<op::ActivationBackward>;

}  // namespace tutti::cpu
