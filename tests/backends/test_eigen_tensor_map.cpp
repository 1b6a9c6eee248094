// SPDX-License-Identifier: MIT
// Tests tensors viewed as Eigen's matrices.
#include <doctest/doctest.h>

#include <numeric>

#include <tutti/backends/eigen/tensor_map.hpp>

using namespace tutti;

TEST_CASE("a tensor is viewed as a matrix and as an array without a copy") {
  Tensor<float> t(Shape{2, 3, 2});
  std::iota(t.begin(), t.end(), 0.F);
  auto m = map_matrix(t);
  CHECK(m.rows() == 2);
  CHECK(m.cols() == 6);
  CHECK(m(1, 2) == t(1, 1, 0));
  m.row(0).setConstant(5);
  CHECK(t(0, 2, 1) == 5);
  map_array(t) *= 2;
  CHECK(t(1, 0, 0) == 12);
  const Tensor<float>& c = t;
  CHECK(map_array(c).sum() == doctest::Approx(map_matrix(c).sum()));
  CHECK(map_matrix(c).row(0).dot(map_matrix(c).row(0)) == 600);
  const Tensor<double> scalar(Shape{}, 3.0);
  CHECK(map_matrix(scalar)(0, 0) == 3);
}
