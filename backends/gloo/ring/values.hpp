// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

#include <tutti/core/float/bf16.hpp>
#include <tutti/core/isa.hpp>

// The loops of sums of f32 that are sent as bf16.
namespace tutti::detail {

template <cpu::Isa, class...>
TUTTI_INLINE void pack_bf16_body(const float* from, bf16* to, std::size_t n) {
  TUTTI_INDEPENDENT
  for (std::size_t i = 0; i < n; ++i) to[i] = bf16(from[i]);
}
template <cpu::Isa, class...>
TUTTI_INLINE void unpack_bf16_body(const bf16* from, float* to, std::size_t n) {
  TUTTI_INDEPENDENT
  for (std::size_t i = 0; i < n; ++i) to[i] = from[i];
}
// Rounds both addends and the sum.
template <cpu::Isa, class...>
TUTTI_INLINE void add_bf16_body(const bf16* from, float* to, std::size_t n) {
  TUTTI_INDEPENDENT
  for (std::size_t i = 0; i < n; ++i) to[i] = bf16(static_cast<float>(bf16(to[i])) + static_cast<float>(from[i]));
}
TUTTI_DEFINE_READER_DISPATCH(pack_bf16, pack_bf16_body);
TUTTI_DEFINE_READER_DISPATCH(unpack_bf16, unpack_bf16_body);
TUTTI_DEFINE_READER_DISPATCH(add_bf16, add_bf16_body);

}  // namespace tutti::detail
