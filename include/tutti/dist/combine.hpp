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

namespace tutti {

// How values of several ranks become one.
enum class Combine : std::uint8_t { sum, max };

namespace detail {

constexpr std::size_t combine_block = 128;  // elements

// N is a number known to the compiler where that lets it use vectors, else the length of the rest.
template <class T, class Accumulator, Combine C, class N>
inline void combine_some(std::span<std::byte* const> arrays, std::span<std::byte* const> to, std::size_t at, N n) {
  Accumulator sum[combine_block];
  T result[combine_block];
  const T* first = reinterpret_cast<const T*>(arrays[0]) + at;
  for (std::size_t j = 0; j < n; ++j) sum[j] = static_cast<Accumulator>(first[j]);
  for (std::size_t r = 1; r < arrays.size(); ++r) {
    const T* a = reinterpret_cast<const T*>(arrays[r]) + at;
    for (std::size_t j = 0; j < n; ++j) {
      const auto v = static_cast<Accumulator>(a[j]);
      if constexpr (C == Combine::sum)
        sum[j] += v;
      else
        sum[j] = v > sum[j] || v != v ? v : sum[j];  // a NaN is not lost
    }
  }
  for (std::size_t j = 0; j < n; ++j) result[j] = static_cast<T>(sum[j]);
  for (std::byte* t : to) std::memcpy(reinterpret_cast<T*>(t) + at, result, n * sizeof(T));
}

template <class T, class Accumulator, Combine C>
void combine_range(std::span<std::byte* const> arrays, std::span<std::byte* const> to, std::size_t begin,
                   std::size_t end) {
  std::size_t i = begin;
  for (; i + combine_block <= end; i += combine_block)
    combine_some<T, Accumulator, C>(arrays, to, i, std::integral_constant<std::size_t, combine_block>{});
  if (i < end) combine_some<T, Accumulator, C>(arrays, to, i, end - i);
}

}  // namespace detail

// Elements [begin, end) of arrays 0, 1, ... combined in this order, written to every array of `to`, which may be the
// same ones. bf16 is summed in f32 and rounded once.
inline void combine(DType t, Combine c, std::span<std::byte* const> arrays, std::span<std::byte* const> to,
                    std::size_t begin, std::size_t end) {
  const auto run = [&]<class T, class A>(T, A) {
    if (c == Combine::sum)
      detail::combine_range<T, A, Combine::sum>(arrays, to, begin, end);
    else
      detail::combine_range<T, A, Combine::max>(arrays, to, begin, end);
  };
  switch (t) {
    case DType::f32:
      return run(float{}, float{});
    case DType::f64:
      return run(double{}, double{});
    case DType::bf16:
      return run(bf16{}, float{});
    case DType::i64:
      return run(std::int64_t{}, std::int64_t{});
    case DType::i32:
      return run(std::int32_t{}, std::int32_t{});
    case DType::u8:
      return run(std::uint8_t{}, std::uint8_t{});
  }
  fail("combine", "a type of tutti", std::to_string(static_cast<int>(t)));
}

// The part of n elements that rank r of `size` works on; cut at multiples of a cache line.
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

}  // namespace tutti
