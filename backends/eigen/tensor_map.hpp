// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>

#include <tutti/tensor/tensor.hpp>

// Views of tensors as Eigen's own types, without a copy. A map refers to the tensor's memory and must not outlive it.
namespace tutti {

template <class T>
using MatrixMap = Eigen::Map<Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <class T>
using ConstMatrixMap = Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <class T>
using ArrayMap = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;
template <class T>
using ConstArrayMap = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;

namespace detail {
// Returns the number of rows of the matrix. A scalar is one row with one element.
inline Eigen::Index matrix_rows(const Shape& s) { return s.rank() == 0 ? 1 : static_cast<Eigen::Index>(s[0]); }
}  // namespace detail

// Returns the tensor as a matrix: rows are the first dimension, columns all other dimensions. Examples: logits [rows,
// classes] are a matrix of this size, and weights [out, in, h, w] have one output in each row.
template <class T>
[[nodiscard]] MatrixMap<T> map_matrix(Tensor<T>& t) {
  return {t.data(), detail::matrix_rows(t.shape()), static_cast<Eigen::Index>(t.shape().row_numel())};
}
template <class T>
[[nodiscard]] ConstMatrixMap<T> map_matrix(const Tensor<T>& t) {
  return {t.data(), detail::matrix_rows(t.shape()), static_cast<Eigen::Index>(t.shape().row_numel())};
}

// Returns all values as one row, for element-wise arithmetic.
template <class T>
[[nodiscard]] ArrayMap<T> map_array(Tensor<T>& t) {
  return {t.data(), static_cast<Eigen::Index>(t.size())};
}
template <class T>
[[nodiscard]] ConstArrayMap<T> map_array(const Tensor<T>& t) {
  return {t.data(), static_cast<Eigen::Index>(t.size())};
}

}  // namespace tutti
