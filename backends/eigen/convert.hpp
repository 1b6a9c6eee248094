// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/engine/cpu/simd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

// Copies rows between f32 or bf16 tensors and the f32 values with which the kernels compute.
namespace tutti::eigen {

// Copies `rows` rows of n elements. Fills each row of the target with zeros up to `padded` elements.
template <cpu::Isa I, class From, class To>
TUTTI_INLINE void copy_rows_body(const From* from, std::int64_t from_stride, To* to, std::int64_t to_stride,
                                 std::int64_t rows, std::int64_t n, std::int64_t padded) {
  if (from_stride == n && to_stride == n) {
    n *= rows;
    padded = n;
    rows = 1;
  }
  constexpr int width = cpu::lanes_of<I>;
  for (std::int64_t r = 0; r < rows; ++r, from += from_stride, to += to_stride) {
    std::int64_t i = 0;
    for (; i + width <= n; i += width) {
      cpu::F<I> v;
      cpu::load<I>(v, from + i);
      cpu::store<I>(to + i, v);
    }
    for (; i < n; ++i) to[i] = To(static_cast<float>(from[i]));
    for (; i < padded; ++i) to[i] = To(0.0F);
  }
}
TUTTI_DEFINE_DISPATCH(copy_rows, copy_rows_body);

}  // namespace tutti::eigen

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
