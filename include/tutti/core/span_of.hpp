// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <vector>

namespace tutti {

// Returns the elements of a vector. std::span's own conversion uses the concepts of <ranges>, which take as long to
// compile as the vector's own type.
template <class T>
[[nodiscard]] std::span<T> span_of(std::vector<T>& v) noexcept {
  return {v.data(), v.size()};
}
template <class T>
[[nodiscard]] std::span<const T> span_of(const std::vector<T>& v) noexcept {  // all of it
  return {v.data(), v.size()};
}

}  // namespace tutti
