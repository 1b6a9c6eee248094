// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include <tutti/core/error.hpp>
#include <tutti/tensor/tensor.hpp>

using namespace tutti;

TEST_CASE("a tensor owns its values and gives views of them") {
  Tensor<float> t(Shape{2, 3}, 1.5F);
  CHECK(t.shape() == Shape{2, 3});
  CHECK(t.size() == 6);
  CHECK(Tensor<float>::dtype == DType::f32);
  std::iota(t.begin(), t.end(), 0.F);
  CHECK(t(1, 0) == 3);
  t(1, 2) = 7;
  CHECK(t.view()[5] == 7);
  CHECK(t.row(1)[2] == 7);
  const Tensor<float> copy = t;
  t(0, 0) = -1;
  CHECK(copy(0, 0) == 0);
  CHECK(copy != t);
  CHECK(copy_of<float>(t.ref()) == t);
  CHECK(Tensor<double>().empty());
  CHECK(Tensor<double>().shape() == Shape{0});
  CHECK(Tensor<std::int32_t>(Shape{}, 4)() == 4);
}

TEST_CASE("the error for a wrong index or shape names the index or shape") {
  Tensor<float> t(Shape{2, 3});
  const auto& c = t;
  CHECK_THROWS_WITH_AS((void)t(2, 0), doctest::Contains("[Tensor] expected an element of [2, 3], got (2, 0)"),
                       ShapeError);
  CHECK_THROWS_WITH_AS((void)c(0, -1), doctest::Contains("got (0, -1)"), ShapeError);
  CHECK_THROWS_WITH_AS((void)t(0), doctest::Contains("got (0)"), ShapeError);
  CHECK_THROWS_WITH_AS((void)t(0, 0, 0), doctest::Contains("got (0, 0, 0)"), ShapeError);
  CHECK_THROWS_WITH_AS((void)t.row(2), doctest::Contains("a row of [2, 3]"), ShapeError);
  CHECK_THROWS_WITH_AS(Tensor<float>(Shape{2, 2}, std::vector<float>(3)),
                       doctest::Contains("4 values for [2, 2], got 3"), ShapeError);
  CHECK_THROWS_WITH_AS((void)copy_of<double>(t.ref()), doctest::Contains("expected f64, got f32"), Error);
}
