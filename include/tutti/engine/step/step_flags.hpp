// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <tutti/core/dtype.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// The flags of a step (core/step_flag.hpp) as numbers in front of the gradients: one per flag, 0 or 1. The reduction
// that sums the first bucket counts the ranks that raised each flag: all flags are known before the backward pass.
class StepFlags {
 public:
  static constexpr std::size_t bytes = 64, count = 8;

  StepFlags() = default;
  // dtype: of the gradients, f32 or f64; or i32, if they are sent as integers.
  StepFlags(DType dtype, void* at) : dtype_(dtype), at_(at) {}

  void write(Memory& memory, std::uint32_t raised) {
    with([&](auto one) {
      std::array<decltype(one), count> v{};
      for (std::size_t i = 0; i < count; ++i)
        if ((raised >> i & 1U) != 0) v[i] = one;
      memory.copy_in(at_, v.data(), sizeof v);
    });
  }
  [[nodiscard]] std::uint32_t read(Memory& memory) const {
    std::uint32_t raised = 0;
    with([&](auto one) {
      std::array<decltype(one), count> v{};
      memory.copy_out(v.data(), at_, sizeof v);
      for (std::size_t i = 0; i < count; ++i)
        if (!(v[i] == 0)) raised |= 1U << i;
    });
    return raised;
  }

 private:
  template <class F>
  void with(F&& f) const {
    if (dtype_ == DType::f64)
      f(1.0);
    else if (dtype_ == DType::i32)
      f(std::int32_t{1});
    else
      f(1.0F);
  }

  DType dtype_ = DType::f32;
  void* at_ = nullptr;
};

}  // namespace tutti
