// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/core/float/bf16.hpp>
#include <tutti/core/float/f16.hpp>

namespace tutti {

// Element types. f16 is a compute type on CUDA only.
enum class DType : std::uint8_t { f32, bf16, f64, u8, i32, i64, f16 };

[[nodiscard]] constexpr std::size_t size_of(DType t) noexcept {  // Returns the bytes of an element.
  switch (t) {
    case DType::u8:
      return 1;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f64:
    case DType::i64:
      return 8;
  }
  return 0;
}

[[nodiscard]] constexpr std::string_view name_of(DType t) noexcept {  // Returns "f32" and so on.
  switch (t) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f64:
      return "f64";
    case DType::u8:
      return "u8";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::f16:
      return "f16";
  }
  return "?";
}

template <class T>
struct dtype_of_t;
template <>
struct dtype_of_t<float> {  // DType::f32
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of_t<bf16> {  // DType::bf16
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of_t<f16> {  // DType::f16
  static constexpr DType value = DType::f16;
};
template <>
struct dtype_of_t<double> {  // DType::f64
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of_t<std::uint8_t> {  // DType::u8
  static constexpr DType value = DType::u8;
};
template <>
struct dtype_of_t<std::int32_t> {  // DType::i32
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of_t<std::int64_t> {  // DType::i64
  static constexpr DType value = DType::i64;
};

template <class T>
inline constexpr DType dtype_of = dtype_of_t<T>::value;

// Calls f with a value of the floating-point type for `t`. Throws UsageError for other types.
template <class F>
decltype(auto) with_float_type(DType t, F&& f) {
  switch (t) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::f64:
      return f(double{});
    default:
      break;
  }
  fail<UsageError>("dtype", "f32, bf16 or f64", name_of(t));
}

}  // namespace tutti
