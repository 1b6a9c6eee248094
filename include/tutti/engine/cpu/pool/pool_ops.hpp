// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include <tutti/engine/cpu/native_kernel.hpp>
#include <tutti/engine/cpu/pool/avg_pool_kernels.hpp>
#include <tutti/engine/cpu/pool/pool_kernels.hpp>
#include <tutti/engine/cpu/row_kernels.hpp>

// Pooling.
namespace tutti::cpu {

template <class T>
[[nodiscard]] MaxPoolArgs<T> pool_args(const op::Window& o, const TensorRef& x, const TensorRef& y,
                                       const TensorRef& which) {
  return {o,
          x.shape[0],
          x.shape[1],
          x.shape[2],
          x.shape[3],
          y.shape[2],
          y.shape[3],
          static_cast<T*>(x.data),
          static_cast<T*>(y.data),
          which.as<std::uint8_t>()};
}

class MaxPool final : public RowKernelOf<op::MaxPool> {
 public:
  MaxPool(const Op& op, Shared& b, const NodeDesc& d)
      : RowKernelOf(op, b, d), tasks_(band_tasks(d.parts, d.rows, d.out[0].shape[2])) {}
  [[nodiscard]] Partition cut() override {
    return parts_ > 1 ? Partition{Division::whole, tasks_} : RowKernelOf::cut();
  }
  void run(Call& c) override {
    float_type(c.in[0].dtype, [&](auto t) {
      using T = decltype(t);
      MaxPoolArgs<T> a = pool_args<T>(o_, c.in[0], c.out[0], c.out[1]);
      if (parts_ > 1) {
        const Band b = band_of(c.task, c.tasks, a.rows, a.out_h);
        const std::int64_t at = (b.image * a.out_h + b.first) * a.out_w * a.channels;
        a.x += b.image * a.h * a.w * a.channels;
        a.y += at;
        a.which += at;
        a.rows = 1;
        a.first_h = b.first;
        a.out_h = b.end;
      }
      cpu::max_pool<T>(isa_, a);
    });
  }

 private:
  int tasks_;
};
class MaxPoolBackward final : public RowKernelOf<op::MaxPoolBackward> {
 public:
  using RowKernelOf::RowKernelOf;
  void run(Call& c) override {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      cpu::max_pool_backward<T>(isa_, pool_args<T>(o_, c.out[0], c.in[0], c.in[1]));
    });
  }
};
template <class T>
[[nodiscard]] AvgPoolArgs<T> avg_pool_args(const op::AvgWindow& o, const TensorRef& x, const TensorRef& y) {
  return {o.window,
          o.count_padding,
          x.shape[0],
          x.shape[1],
          x.shape[2],
          x.shape[3],
          y.shape[2],
          y.shape[3],
          static_cast<T*>(x.data),
          static_cast<T*>(y.data)};
}
class AvgPool final : public RowKernelOf<op::AvgPool> {
 public:
  using RowKernelOf::RowKernelOf;
  void run(Call& c) override {
    const Shape& s = c.in[0].shape;
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      if (!o_.global()) return cpu::avg_pool<T>(isa_, avg_pool_args<T>(o_, c.in[0], c.out[0]));
      cpu::global_avg_pool<T>(isa_, static_cast<const T*>(c.in[0].data), static_cast<T*>(c.out[0].data), s[0],
                              s[2] * s[3], s[1]);
    });
  }
};
class AvgPoolBackward final : public RowKernelOf<op::AvgPoolBackward> {
 public:
  using RowKernelOf::RowKernelOf;
  void run(Call& c) override {
    const Shape& s = c.out[0].shape;
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      if (!o_.global()) return cpu::avg_pool_backward<T>(isa_, avg_pool_args<T>(o_, c.out[0], c.in[0]));
      cpu::global_avg_pool_backward<T>(isa_, static_cast<const T*>(c.in[0].data), static_cast<T*>(c.out[0].data), s[0],
                                       s[2] * s[3], s[1]);
    });
  }
};

}  // namespace tutti::cpu
