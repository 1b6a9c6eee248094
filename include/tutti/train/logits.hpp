// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <tutti/core/dtype.hpp>
#include <tutti/core/f16.hpp>
#include <tutti/core/span_of.hpp>
#include <tutti/engine/executor.hpp>

namespace tutti::detail {

// Adds weight times `count` values of type t to sums.
template <class Sum>
void add_values(DType t, const std::byte* from, std::size_t count, double weight, Sum* sums) {
  const auto add = [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t i = 0; i < count; ++i) {
      T v;
      std::memcpy(&v, from + i * sizeof v, sizeof v);
      sums[i] += static_cast<Sum>(weight * static_cast<double>(v));
    }
  };
  if (t == DType::f16)
    add(f16{});
  else
    with_float_type(t, add);
}

// What a model says of the batch that was run last, in f32 on the host.
class LogitsOnHost {
 public:
  explicit LogitsOnHost(Executor& e) : e_(e) {}

  // [rows, classes], until it is asked again. Waits for the run.
  [[nodiscard]] std::span<const float> of_last_run(std::int64_t rows) {
    const Graph& g = e_.graph();
    const TensorRef z = e_.value(g.logits);
    const auto count = static_cast<std::size_t>(rows * g[g.logits].shape.row_numel());
    raw_.resize(count * size_of(z.dtype));
    e_.backend().memory().copy_out(raw_.data(), z.data, raw_.size());
    values_.assign(count, 0.F);
    add_values(z.dtype, raw_.data(), count, 1, values_.data());
    return span_of(values_);
  }

 private:
  Executor& e_;
  std::vector<std::byte> raw_;
  std::vector<float> values_;
};

}  // namespace tutti::detail
