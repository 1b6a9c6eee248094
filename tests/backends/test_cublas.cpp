// SPDX-License-Identifier: MIT
// Tests matrix products of fully connected layers: how rows become cuBLAS's columns, and the descriptions for cuBLASLt.
#include <tutti/backends/cuda/cublas/gemm.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/core/error.hpp>

using namespace tutti;
using namespace tutti::cuda;

namespace {

constexpr std::array passes{LinearPass::forward, LinearPass::backward_data, LinearPass::backward_weights};

// Returns what cuBLAS computes for a layout: column by column.
std::vector<double> product(const GemmLayout& g, const std::vector<double>& a, const std::vector<double>& b) {
  const auto at = [](const GemmMatrix& m, std::int64_t row, std::int64_t column) {
    REQUIRE(row < m.rows);
    REQUIRE(column < m.columns);
    return static_cast<std::size_t>(column * m.step + row);
  };
  std::vector<double> d(static_cast<std::size_t>(g.d.columns * g.d.step));
  for (std::int64_t i = 0; i < g.m; ++i)
    for (std::int64_t j = 0; j < g.n; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < g.k; ++k)
        sum += a[g.transpose_a ? at(g.a, k, i) : at(g.a, i, k)] * b[g.transpose_b ? at(g.b, j, k) : at(g.b, k, j)];
      d[at(g.d, i, j)] = sum;
    }
  return d;
}

std::vector<double> numbers(std::int64_t n, int seed) {
  std::vector<double> v;
  for (std::int64_t i = 0; i < n; ++i) v.push_back(static_cast<double>((i * 7 + seed) % 11) - 5);
  return v;
}

}  // namespace

TEST_CASE("GEMM layouts compute a linear layer") {
  const LinearProblem p{3, 5, 4, DType::f32};
  const auto x = numbers(p.rows * p.inputs, 1), w = numbers(p.outputs * p.inputs, 2),
             dy = numbers(p.rows * p.outputs, 3);
  const auto at = [](const std::vector<double>& v, std::int64_t row, std::int64_t columns, std::int64_t column) {
    return v[static_cast<std::size_t>(row * columns + column)];
  };
  for (const auto pass : passes) {
    INFO(to_string(pass));
    const GemmLayout g = gemm_layout(pass, p);
    const auto& first = pass == LinearPass::backward_data ? dy : x;
    const auto& second = pass == LinearPass::backward_weights ? dy : w;
    const auto got = g.swapped ? product(g, second, first) : product(g, first, second);
    std::vector<double> want;
    if (pass == LinearPass::forward)
      for (std::int64_t n = 0; n < p.rows; ++n)
        for (std::int64_t o = 0; o < p.outputs; ++o) {
          double s = 0;
          for (std::int64_t i = 0; i < p.inputs; ++i) s += at(x, n, p.inputs, i) * at(w, o, p.inputs, i);
          want.push_back(s);
        }
    if (pass == LinearPass::backward_data)
      for (std::int64_t n = 0; n < p.rows; ++n)
        for (std::int64_t i = 0; i < p.inputs; ++i) {
          double s = 0;
          for (std::int64_t o = 0; o < p.outputs; ++o) s += at(dy, n, p.outputs, o) * at(w, o, p.inputs, i);
          want.push_back(s);
        }
    if (pass == LinearPass::backward_weights)
      for (std::int64_t o = 0; o < p.outputs; ++o)
        for (std::int64_t i = 0; i < p.inputs; ++i) {
          double s = 0;
          for (std::int64_t n = 0; n < p.rows; ++n) s += at(dy, n, p.outputs, o) * at(x, n, p.inputs, i);
          want.push_back(s);
        }
    CHECK(got == want);
  }
  // In the forward pass the bias has a value for each row of D. In the pass for the weights' gradient, the sums of dy
  // have a value for each column of D.
  CHECK(gemm_layout(LinearPass::forward, p).d.rows == p.outputs);
  CHECK(gemm_layout(LinearPass::backward_weights, p).d.columns == p.outputs);
}

TEST_CASE("cuBLASLt accepts the descriptions of every type and pass") {
  for (const DType t : {DType::f32, DType::bf16, DType::f16})
    for (const auto pass : passes)
      for (const bool bias : {false, true})
        for (const bool tf32 : {false, true}) {
          GemmDescription d(pass, {128, 2048, 10, t, pass == LinearPass::forward && t != DType::f32}, bias, tf32);
          CHECK(d.desc() != nullptr);
          CHECK(d.a() != nullptr);
          CHECK(d.b() != nullptr);
          CHECK(d.d() != nullptr);
          int here = 0;
          if (bias && pass != LinearPass::backward_data) CHECK_NOTHROW(d.set_bias(&here));
        }
}

TEST_CASE("invalid problems are refused") {
  for (const auto pass : passes) {
    CHECK_THROWS_AS((void)gemm_layout(pass, {0, 5, 4, DType::f32}), ShapeError);
    CHECK_THROWS_WITH_AS((void)gemm_layout(pass, {3, -5, 4, DType::f32}), doctest::Contains("3x-5 to 4"), ShapeError);
    CHECK_THROWS_AS(GemmDescription(pass, {3, 5, 4, DType::i32}, false, false), UsageError);
  }
  CHECK_THROWS_WITH_AS(check_cublas(CUBLAS_STATUS_NOT_SUPPORTED, "forward", "a kernel"),
                       doctest::Contains("[cublas forward] expected a kernel, got CUBLAS_STATUS_NOT_SUPPORTED"),
                       DeviceError);
}
