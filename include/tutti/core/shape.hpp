// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>

#include <tutti/core/error.hpp>
#include <tutti/core/text_part.hpp>

namespace tutti {

// Up to five extents, stored in place. Activations are logical NCHW, convolution weights OIHW, linear weights OI.
class Shape {
 public:
  static constexpr int max_rank = 5;
  static constexpr std::int64_t max_elements = std::int64_t{1} << 48;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> dims) : Shape(std::span(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const std::int64_t> dims) {
    if (dims.size() > max_rank) fail<ShapeError>("Shape", "at most 5 dimensions", dims.size());
    for (auto d : dims) {
      if (d < 0) fail<ShapeError>("Shape", "extents of 0 or more", d);
      dims_[static_cast<std::size_t>(rank_++)] = d;
    }
    // numel(), and sizes computed from it, must not overflow. No memory holds 2^48 elements.
    std::int64_t n = 1;
    for (auto d : dims) {
      if (d > max_elements / n) fail<ShapeError>("Shape", "at most 2^48 elements", "a larger product");
      n *= d > 0 ? d : 1;
    }
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] std::int64_t operator[](int i) const noexcept { return dims_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] std::int64_t& operator[](int i) noexcept { return dims_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] std::int64_t numel() const noexcept {
    std::int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= (*this)[i];
    return n;
  }
  // Returns the elements of one row: the product of all extents but the first.
  [[nodiscard]] std::int64_t row_numel() const noexcept {
    std::int64_t n = 1;
    for (int i = 1; i < rank_; ++i) n *= (*this)[i];
    return n;
  }
  // Returns the same shape with `n` as its first extent.
  [[nodiscard]] Shape with_rows(std::int64_t n) const noexcept {
    Shape s = *this;
    s[0] = n;
    return s;
  }
  [[nodiscard]] std::span<const std::int64_t> dims() const noexcept {
    return {dims_.data(), static_cast<std::size_t>(rank_)};
  }

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, max_rank> dims_{};
  int rank_ = 0;
};

[[nodiscard]] inline std::string to_string(const Shape& s) {  // "[2, 3]"
  std::string r = "[";
  for (int i = 0; i < s.rank(); ++i) r += concat({i > 0 ? ", " : "", s[i]});
  return r += "]";
}
// A template, so that <ostream> is needed only where a shape is printed.
template <class Traits>
std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, const Shape& s) {
  return out << to_string(s);
}

}  // namespace tutti
