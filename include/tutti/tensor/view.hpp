// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <tutti/core/dtype.hpp>
#include <tutti/core/error.hpp>
#include <tutti/core/shape.hpp>

namespace tutti {

// Consecutive elements in any memory space. Sizes and positions are in elements, not in bytes.
template <class T>
using View = std::span<T>;

// Shape and type of a tensor, without its location.
struct TensorDesc {
  Shape shape;
  DType dtype = DType::f32;

  [[nodiscard]] std::size_t bytes() const noexcept { return static_cast<std::size_t>(shape.numel()) * size_of(dtype); }
  [[nodiscard]] std::size_t row_bytes() const noexcept {
    return static_cast<std::size_t>(shape.row_numel()) * size_of(dtype);
  }
};

// A tensor of a type that is known only at run time. Kernels of ops read and write these.
struct TensorRef {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  template <class T>
  [[nodiscard]] T* as() const {
    if (dtype != dtype_of<T>)
      fail("TensorRef", name_of(dtype_of<T>), name_of(dtype), "the kernel was called for another type");
    return static_cast<T*>(data);
  }
  template <class T>
  [[nodiscard]] View<T> view() const {
    return {as<T>(), static_cast<std::size_t>(shape.numel())};
  }
};

}  // namespace tutti
