// SPDX-License-Identifier: MIT
#pragma once

#include <tutti/engine/cpu/activation_kernels.hpp>
#include <tutti/engine/cpu/gelu_kernels.hpp>
#include <tutti/engine/cpu/native_kernel.hpp>

// Activations except relu.
namespace tutti::cpu {

class Activation final : public RowKernelOf<op::Activation> {
 public:
  using RowKernelOf::RowKernelOf;
  void run(Call& c) override {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      const auto n = c.out[0].shape.numel();
      const T* const x = static_cast<const T*>(c.in[0].data);
      T* const y = static_cast<T*>(c.out[0].data);
      switch (o_.kind) {
        case op::ActivationKind::gelu:
          return gelu<T>(isa_, x, y, n);
        case op::ActivationKind::sigmoid:
          return map<T, activation::Sigmoid>(isa_, x, y, n);
        case op::ActivationKind::silu:
          return map<T, activation::Silu>(isa_, x, y, n);
        case op::ActivationKind::hard_swish:
          return map<T, activation::HardSwish>(isa_, x, y, n);
      }
    });
  }
};
class ActivationBackward final : public RowKernelOf<op::ActivationBackward> {
 public:
  using RowKernelOf::RowKernelOf;
  void run(Call& c) override {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      const auto n = c.out[0].shape.numel();
      const T *const dy = static_cast<const T*>(c.in[0].data), *const x = static_cast<const T*>(c.in[1].data);
      T* const dx = static_cast<T*>(c.out[0].data);
      switch (o_.kind) {
        case op::ActivationKind::gelu:
          return gelu_backward<T>(isa_, dy, x, dx, n);
        case op::ActivationKind::sigmoid:
          return map_backward<T, activation::SigmoidBackward>(isa_, dy, x, dx, n);
        case op::ActivationKind::silu:
          return map_backward<T, activation::SiluBackward>(isa_, dy, x, dx, n);
        case op::ActivationKind::hard_swish:
          return map_backward<T, activation::HardSwishBackward>(isa_, dy, x, dx, n);
      }
    });
  }
};

}  // namespace tutti::cpu
