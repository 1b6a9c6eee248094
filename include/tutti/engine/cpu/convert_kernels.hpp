// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/simd.hpp>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace tutti::cpu {

// Converts n values between f32 and bf16.
template <Isa I, class To, class From>
TUTTI_INLINE void convert_body(const From* from, To* to, std::int64_t n) {
  constexpr int width = lanes_of<I>;
  std::int64_t i = 0;
  F<I> v;
  for (; i + width <= n; i += width) {
    load<I>(v, from + i);
    store<I>(to + i, v);
  }
  for (; i < n; ++i) to[i] = To(static_cast<float>(from[i]));
}
TUTTI_DEFINE_DISPATCH(convert, convert_body);
TUTTI_CORE_INSTANCE(template void convert<float, bf16>(Isa, const bf16*, float*, std::int64_t));
TUTTI_CORE_INSTANCE(template void convert<bf16, float>(Isa, const float*, bf16*, std::int64_t));

}  // namespace tutti::cpu

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
