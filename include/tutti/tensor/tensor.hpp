// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/shape.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/tensor/view.hpp>

namespace tutti {

// A tensor that owns its values, on the host, in row-major order (neighbours in memory differ in the last index).
// Indexing is checked; use view() for loops without checks.
template <class T>
class Tensor {
  static_assert(std::is_same_v<T, std::remove_cv_t<T>> && !std::is_same_v<T, bool>);

 public:
  using value_type = T;
  static constexpr DType dtype = dtype_of<T>;

  // Makes a tensor without elements, of shape [0].
  Tensor() = default;
  explicit Tensor(const Shape& shape, T value = T{})
      : shape_(shape), values_(static_cast<std::size_t>(shape.numel()), value) {}
  // Throws ShapeError if the number of values does not match the shape.
  Tensor(const Shape& shape, std::vector<T> values) : shape_(shape), values_(std::move(values)) {
    if (static_cast<std::size_t>(shape.numel()) != values_.size())
      fail<ShapeError>("Tensor", {shape.numel(), " values for ", to_string(shape)}, values_.size());
  }

  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }
  [[nodiscard]] bool empty() const noexcept { return values_.empty(); }

  [[nodiscard]] T* data() noexcept { return values_.data(); }
  [[nodiscard]] const T* data() const noexcept { return values_.data(); }
  [[nodiscard]] View<T> view() noexcept { return span_of(values_); }
  [[nodiscard]] View<const T> view() const noexcept { return span_of(values_); }
  [[nodiscard]] auto begin() noexcept { return values_.begin(); }
  [[nodiscard]] auto end() noexcept { return values_.end(); }
  [[nodiscard]] auto begin() const noexcept { return values_.begin(); }
  [[nodiscard]] auto end() const noexcept { return values_.end(); }

  // Returns one element. Throws ShapeError unless there is one index for each dimension, within its extent.
  template <std::integral... I>
  [[nodiscard]] T& operator()(I... index) {
    return values_[offset(std::array<std::int64_t, sizeof...(I)>{static_cast<std::int64_t>(index)...})];
  }
  template <std::integral... I>
  [[nodiscard]] const T& operator()(I... index) const {
    return values_[offset(std::array<std::int64_t, sizeof...(I)>{static_cast<std::int64_t>(index)...})];
  }
  // Returns all elements with index i in the first dimension.
  [[nodiscard]] View<T> row(std::int64_t i) { return view().subspan(row_offset(i), row_size()); }
  [[nodiscard]] View<const T> row(std::int64_t i) const { return view().subspan(row_offset(i), row_size()); }

  // Returns the tensor in the form that kernels take.
  [[nodiscard]] TensorRef ref() noexcept { return {values_.data(), dtype, shape_}; }

  friend bool operator==(const Tensor&, const Tensor&) = default;

 private:
  [[nodiscard]] std::size_t row_size() const noexcept { return static_cast<std::size_t>(shape_.row_numel()); }

  [[nodiscard]] std::size_t row_offset(std::int64_t i) const {
    if (shape_.rank() == 0 || i < 0 || i >= shape_[0]) fail<ShapeError>("Tensor", {"a row of ", to_string(shape_)}, i);
    return static_cast<std::size_t>(i) * row_size();
  }
  template <std::size_t N>
  [[nodiscard]] std::size_t offset(const std::array<std::int64_t, N>& index) const {
    bool inside = static_cast<int>(N) == shape_.rank();
    std::int64_t at = 0;
    for (int d = 0; inside && d < shape_.rank(); ++d) {
      const std::int64_t i = index[static_cast<std::size_t>(d)];
      inside = i >= 0 && i < shape_[d];
      at = at * shape_[d] + i;
    }
    if (!inside) complain({index.begin(), index.end()});
    return static_cast<std::size_t>(at);
  }
  [[noreturn]] void complain(const std::vector<std::int64_t>& index) const {
    std::string text;
    for (const std::int64_t i : index) text += (text.empty() ? "" : ", ") + std::to_string(i);
    fail<ShapeError>("Tensor", {"an element of ", to_string(shape_)}, {"(", text, ")"});
  }

  Shape shape_{0};
  std::vector<T> values_;
};

// Returns a copy of a tensor on the host. Throws an error if the type of the tensor is not T.
template <class T>
[[nodiscard]] Tensor<T> copy_of(const TensorRef& from) {
  const View<const T> values = from.view<T>();
  return Tensor<T>(from.shape, std::vector<T>(values.begin(), values.end()));
}

}  // namespace tutti
