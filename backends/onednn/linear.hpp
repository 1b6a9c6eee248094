// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <tutti/backends/onednn/primitive.hpp>
#include <tutti/backends/onednn/shim.hpp>
#include <tutti/core/error.hpp>

// Fully connected layers as matrix products of whole batches. Each task computes some columns of the result. So the
// weights, which are most of the data, are read once.
namespace tutti::onednn {

// One matrix product: [rows, inner] x [inner, columns of the task].
struct Product {
  std::int64_t rows, inner, columns;
  std::int64_t weight_inner, weight_column;  // strides of the weights
  std::int64_t result_row;                   // stride of the result
  bool bias, bf16;
};

inline std::unique_ptr<Primitive> make_product(const dnnl::engine& e, const Product& p, int workers) {
  const OneOmpThread guard;
  using M = dnnl::memory;
  const auto type = p.bf16 ? M::data_type::bf16 : M::data_type::f32;
  const Desc a({p.rows, p.inner}, type, M::dims{p.inner, 1});
  const Desc b({p.inner, p.columns}, type, M::dims{p.weight_inner, p.weight_column});
  const Desc c({p.rows, p.columns}, type, M::dims{p.result_row, 1});
  const Desc bias = p.bias ? Desc({1, p.columns}, M::data_type::f32, M::dims{p.columns, 1}) : Desc();
  const auto pd = matmul_desc(e, a, b, c, p.bias ? &bias : nullptr);
  Operands operands{{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}};
  if (p.bias) operands.emplace_back(DNNL_ARG_BIAS, bias);
  return std::make_unique<Primitive>(pd, operands, e, workers);
}

}  // namespace tutti::onednn
