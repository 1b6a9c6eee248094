// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <tutti/core/dtype.hpp>
#include <tutti/core/shape.hpp>

namespace tutti::io {

// An element type of the safetensors format, and the matching tutti type, if any.
struct SafetensorsType {
  std::string_view name;
  std::size_t bytes;
  std::optional<DType> dtype;
};

inline constexpr SafetensorsType safetensors_types[] = {
    {"F64", 8, DType::f64}, {"F32", 4, DType::f32},    {"F16", 2, std::nullopt}, {"BF16", 2, DType::bf16},
    {"I64", 8, DType::i64}, {"I32", 4, DType::i32},    {"I16", 2, std::nullopt}, {"I8", 1, std::nullopt},
    {"U8", 1, DType::u8},   {"BOOL", 1, std::nullopt},
};

// Returns the type with this name, or nullptr for an unknown name.
[[nodiscard]] constexpr const SafetensorsType* safetensors_type(std::string_view name) noexcept {
  for (const auto& t : safetensors_types)
    if (t.name == name) return &t;
  return nullptr;
}
[[nodiscard]] constexpr const SafetensorsType& safetensors_type(DType dtype) noexcept {  // for a type that tutti has
  for (const auto& t : safetensors_types)
    if (t.dtype == dtype) return t;
  return safetensors_types[0];
}

// Returns the number of bytes of a tensor, or no value if an extent is negative or there are more elements than a Shape
// can have. If an extent is 0, the other ones are checked too, because a Shape multiplies them.
[[nodiscard]] inline std::optional<std::uint64_t> safetensors_bytes(const SafetensorsType& type,
                                                                    std::span<const std::int64_t> shape) noexcept {
  std::int64_t elements = 1;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    empty = empty || extent == 0;
    if (extent > Shape::max_elements / elements) return std::nullopt;
    elements *= std::max<std::int64_t>(extent, 1);
  }
  return empty ? 0 : static_cast<std::uint64_t>(elements) * type.bytes;
}

}  // namespace tutti::io
