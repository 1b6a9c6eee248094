// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/separate.hpp>

namespace tutti {

// How values of several ranks are combined.
enum class ReduceOp : std::uint8_t { sum, max };

namespace detail {

constexpr std::size_t combine_block = 64;  // elements

// Sixteen bytes of values, which every processor of this architecture can add at once. bf16 is added value by value.
template <class T>
struct Vector16 {
  using type [[gnu::vector_size(16), gnu::may_alias]] = T;
};

template <ReduceOp C, class A>
[[gnu::always_inline]] inline A combined(A s, A v) noexcept {
  if constexpr (C == ReduceOp::sum && std::is_integral_v<A>)
    return static_cast<A>(static_cast<std::make_unsigned_t<A>>(s) + static_cast<std::make_unsigned_t<A>>(v));  // wraps
  else if constexpr (C == ReduceOp::sum)
    return static_cast<A>(s + v);
  else
    return ((v > s) | (v != v)) ? v : s;  // keeps a NaN
}

// Combines a cache line of every array in registers: everything is read before anything is written.
template <class T, ReduceOp C>
[[gnu::always_inline]] inline void combine_line(std::span<std::byte* const> arrays, std::span<std::byte* const> to,
                                                std::size_t at) {
  using V = typename Vector16<T>::type;
  const auto load = [at](const std::byte* p, std::size_t i) {
    V v;
    std::memcpy(&v, p + at + i * sizeof(V), sizeof(V));
    return v;
  };
  V a = load(arrays[0], 0), b = load(arrays[0], 1), c = load(arrays[0], 2), d = load(arrays[0], 3);
  for (std::size_t r = 1; r < arrays.size(); ++r) {
    const std::byte* const p = arrays[r];
    a = combined<C>(a, load(p, 0));
    b = combined<C>(b, load(p, 1));
    c = combined<C>(c, load(p, 2));
    d = combined<C>(d, load(p, 3));
  }
  for (std::byte* const t : to) {
    std::memcpy(t + at, &a, sizeof(V));
    std::memcpy(t + at + sizeof(V), &b, sizeof(V));
    std::memcpy(t + at + 2 * sizeof(V), &c, sizeof(V));
    std::memcpy(t + at + 3 * sizeof(V), &d, sizeof(V));
  }
}

// Combines value by value.
template <class T, class Accumulator, ReduceOp C, class N>
inline void combine_some(std::span<std::byte* const> arrays, std::span<std::byte* const> to, std::size_t at, N n) {
  Accumulator sum[combine_block];
  const T* first = reinterpret_cast<const T*>(arrays[0]) + at;
  for (std::size_t j = 0; j < n; ++j) sum[j] = static_cast<Accumulator>(first[j]);
  for (std::size_t r = 1; r < arrays.size(); ++r) {
    const T* a = reinterpret_cast<const T*>(arrays[r]) + at;
    for (std::size_t j = 0; j < n; ++j) sum[j] = combined<C>(sum[j], static_cast<Accumulator>(a[j]));
  }
  for (std::byte* const t : to) {
    T* const out = reinterpret_cast<T*>(t) + at;
    for (std::size_t j = 0; j < n; ++j) out[j] = static_cast<T>(sum[j]);
  }
}

template <class T, class Accumulator, ReduceOp C>
void combine_range(std::span<std::byte* const> arrays, std::span<std::byte* const> to, std::size_t begin,
                   std::size_t end) {
  std::size_t i = begin;
  if constexpr (std::is_same_v<T, Accumulator>) {
    constexpr std::size_t line = 64 / sizeof(T);
    for (; i + line <= end; i += line) combine_line<T, C>(arrays, to, i * sizeof(T));
  } else {
    for (; i + combine_block <= end; i += combine_block)
      combine_some<T, Accumulator, C>(arrays, to, i, std::integral_constant<std::size_t, combine_block>{});
  }
  for (; i < end; i += combine_block) combine_some<T, Accumulator, C>(arrays, to, i, std::min(combine_block, end - i));
}

}  // namespace detail

// Combines elements [begin, end) of arrays 0, 1, ... in this order and writes the result to every array of `to`, which
// may be the same arrays. bf16 is summed in f32 and rounded once.
TUTTI_CORE_FUNCTION void combine(DType t, ReduceOp c, std::span<std::byte* const> arrays,
                                 std::span<std::byte* const> to, std::size_t begin, std::size_t end);

// The part of n elements on which rank r of `size` works, cut at multiples of a cache line.
struct RankShare {
  std::size_t begin, end;
};
[[nodiscard]] inline RankShare share_of(std::size_t n, std::size_t element_bytes, int size, int r) noexcept {
  const std::size_t line = 64 / element_bytes, lines = (n + line - 1) / line;
  const auto cut = [&](int i) {
    return std::min(n, lines * static_cast<std::size_t>(i) / static_cast<std::size_t>(size) * line);
  };
  return {cut(r), cut(r + 1)};
}

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void combine(DType t, ReduceOp c, std::span<std::byte* const> arrays,
                                 std::span<std::byte* const> to, std::size_t begin, std::size_t end) {
  const auto run = [&]<class T, class A>(T, A) {
    if (c == ReduceOp::sum)
      detail::combine_range<T, A, ReduceOp::sum>(arrays, to, begin, end);
    else
      detail::combine_range<T, A, ReduceOp::max>(arrays, to, begin, end);
  };
  switch (t) {
    case DType::f32:
      return run(float{}, float{});
    case DType::f64:
      return run(double{}, double{});
    case DType::bf16:
      return run(bf16{}, float{});
    case DType::f16:
      return run(f16{}, float{});
    case DType::i64:
      return run(std::int64_t{}, std::int64_t{});
    case DType::i32:
      return run(std::int32_t{}, std::int32_t{});
    case DType::u8:
      return run(std::uint8_t{}, std::uint8_t{});
  }
  fail("combine", "a known element type", static_cast<int>(t));
}
#endif

}  // namespace tutti
