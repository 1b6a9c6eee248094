// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <tutti/core/dtype.hpp>
#include <tutti/tensor/memory.hpp>

namespace tutti {

// The flags of a step (step_flag in dist/strategy.hpp) as numbers in front of the gradients: one per flag, 0 or 1. The
// reduction that sums the gradients counts the ranks that raised each.
class StepWord {
 public:
  static constexpr std::size_t bytes = 64, flags = 8;

  StepWord() = default;
  // dtype: of the gradients, f32 or f64.
  StepWord(DType dtype, std::byte* at) : dtype_(dtype), at_(at) {}

  [[nodiscard]] std::byte* data() const noexcept { return at_; }

  void write(Memory& memory, std::uint32_t word) {
    with([&](auto one) {
      std::array<decltype(one), flags> v{};
      for (std::size_t i = 0; i < flags; ++i)
        if ((word >> i & 1U) != 0) v[i] = one;
      memory.copy_in(at_, v.data(), sizeof v);
    });
  }
  [[nodiscard]] std::uint32_t read(Memory& memory) const {
    std::uint32_t word = 0;
    with([&](auto one) {
      std::array<decltype(one), flags> v{};
      memory.copy_out(v.data(), at_, sizeof v);
      for (std::size_t i = 0; i < flags; ++i)
        if (!(v[i] == 0)) word |= 1U << i;
    });
    return word;
  }

 private:
  template <class F>
  void with(F&& f) const {
    if (dtype_ == DType::f64)
      f(1.0);
    else
      f(1.0F);
  }

  DType dtype_ = DType::f32;
  std::byte* at_ = nullptr;
};

}  // namespace tutti
