// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>

#include <tutti/engine/host_backend.hpp>
#include <tutti/engine/kernel_table.hpp>
#include <tutti/engine/reference/channels.hpp>
#include <tutti/engine/reference/conv.hpp>
#include <tutti/engine/reference/elementwise.hpp>
#include <tutti/engine/reference/loss.hpp>
#include <tutti/engine/reference/norm.hpp>
#include <tutti/engine/reference/pool.hpp>

namespace tutti {

// Every op as simple loops over all rows of the call: the definition of the ops. F64: also in f64.
template <bool F64>
class ReferenceLoops {
 public:
  static void run(const op::Normalize& o, Call& c) {
    float_type<F64>(c.out[0].dtype, [&](auto t) { reference::normalize<decltype(t)>(o, c.in[0], c.out[0]); });
  }
  static void run(const op::Conv2d& o, Call& c) {
    float_type<F64>(c.out[0].dtype,
                    [&](auto t) { reference::conv2d<decltype(t)>(o, c.in[0], c.in[1], c.out[0], o.groups); });
  }
  static void run(const op::Conv2dBackwardData& o, Call& c) {
    float_type<F64>(c.out[0].dtype, [&](auto t) {
      reference::conv2d_backward_data<decltype(t)>(o, c.in[0], c.in[1], c.out[0], o.groups);
    });
  }
  static void run(const op::Conv2dBackwardWeights& o, Call& c) {
    types(c.in[0], c.out[0], [&](auto t, auto m) {
      reference::conv2d_backward_weights<decltype(t), decltype(m)>(o, c.in[0], c.in[1], c.out[0], o.groups);
    });
  }
  static void run(const op::BatchNorm& o, Call& c) {
    types(c.in[0], c.in[1], [&](auto t, auto m) { reference::batch_norm<decltype(t), decltype(m)>(o, c); });
  }
  static void run(const op::BatchNormInference& o, Call& c) {
    types(c.in[0], c.in[1], [&](auto t, auto m) { reference::batch_norm_inference<decltype(t), decltype(m)>(o, c); });
  }
  static void run(const op::BatchNormBackward& o, Call& c) {
    types(c.out[0], c.out[1], [&](auto t, auto m) { reference::batch_norm_backward<decltype(t), decltype(m)>(o, c); });
  }
  static void run(const op::Relu&, Call& c) {
    float_type<F64>(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      const auto x = c.in[0].view<T>();
      const auto y = c.out[0].view<T>();
      for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] < T(0.0F) ? T(0.0F) : x[i];
    });
  }
  static void run(const op::ReluBackward&, Call& c) {
    float_type<F64>(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      const auto dy = c.in[0].view<T>(), y = c.in[1].view<T>();
      const auto dx = c.out[0].view<T>();
      for (std::size_t i = 0; i < dy.size(); ++i) dx[i] = y[i] > T(0.0F) ? dy[i] : T(0.0F);
    });
  }
  static void run(const op::Activation& o, Call& c) {
    float_type<F64>(c.out[0].dtype, [&](auto t) { reference::activation<decltype(t)>(o.kind, c.in[0], c.out[0]); });
  }
  static void run(const op::ActivationBackward& o, Call& c) {
    float_type<F64>(c.out[0].dtype,
                    [&](auto t) { reference::activation_backward<decltype(t)>(o.kind, c.in[0], c.in[1], c.out[0]); });
  }
  static void run(const op::Add&, Call& c) {
    float_type<F64>(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      const auto a = c.in[0].view<T>(), b = c.in[1].view<T>();
      const auto y = c.out[0].view<T>();
      for (std::size_t i = 0; i < a.size(); ++i) y[i] = T(a[i] + b[i]);
    });
  }
  static void run(const op::Bias&, Call& c) {
    types(c.out[0], c.in[1], [&](auto t, auto m) {
      using T = decltype(t);
      const auto x = c.in[0].view<T>();
      const auto b = c.in[1].template view<decltype(m)>();
      const auto y = c.out[0].view<T>();
      for (std::size_t i = 0; i < x.size(); ++i)
        y[i] = static_cast<T>(static_cast<double>(x[i]) + static_cast<double>(b[i % b.size()]));
    });
  }
  static void run(const op::BiasBackward&, Call& c) {
    types(c.in[0], c.out[0], [&](auto t, auto m) {
      using M = decltype(m);
      const auto dy = c.in[0].view<decltype(t)>();
      const auto db = c.out[0].template view<M>();
      for (std::size_t k = 0; k < db.size(); ++k) {
        double sum = 0;
        for (std::size_t i = k; i < dy.size(); i += db.size()) sum += static_cast<double>(dy[i]);
        db[k] = static_cast<M>(sum);
      }
    });
  }
  static void run(const op::Multiply&, Call& c) { reference::multiply(c); }
  static void run(const op::MultiplyBackward&, Call& c) { reference::multiply_backward(c); }
  static void run(const op::Concat&, Call& c) { reference::concat(c); }
  static void run(const op::ConcatBackward& o, Call& c) { reference::copy_channels(c.in[0], o.first, c.out[0], 0); }
  static void run(const op::LayerNorm& o, Call& c) { reference::layer_norm(o, c); }
  static void run(const op::LayerNormBackward& o, Call& c) { reference::layer_norm_backward(o, c); }
  static void run(const op::Dropout& o, Call& c) { reference::dropout(o, c); }
  static void run(const op::MaxPool& o, Call& c) {
    float_type<F64>(c.out[0].dtype, [&](auto t) { reference::max_pool<decltype(t)>(o, c.in[0], c.out[0], c.out[1]); });
  }
  static void run(const op::MaxPoolBackward& o, Call& c) {
    float_type<F64>(c.out[0].dtype,
                    [&](auto t) { reference::max_pool_backward<decltype(t)>(o, c.in[0], c.in[1], c.out[0]); });
  }
  static void run(const op::AvgPool& o, Call& c) {
    float_type<F64>(c.out[0].dtype, [&](auto t) { reference::avg_pool<decltype(t)>(o, c.in[0], c.out[0]); });
  }
  static void run(const op::AvgPoolBackward& o, Call& c) {
    float_type<F64>(c.out[0].dtype, [&](auto t) { reference::avg_pool_backward<decltype(t)>(o, c.in[0], c.out[0]); });
  }
  static void run(const op::Linear&, Call& c) {
    types(c.out[0], c.in[2],
          [&](auto t, auto m) { reference::linear<decltype(t), decltype(m)>(c.in[0], c.in[1], c.in[2], c.out[0]); });
  }
  static void run(const op::LinearBackwardData&, Call& c) {
    float_type<F64>(c.out[0].dtype,
                    [&](auto t) { reference::linear_backward_data<decltype(t)>(c.in[0], c.in[1], c.out[0]); });
  }
  static void run(const op::LinearBackwardWeights&, Call& c) {
    types(c.in[0], c.out[0], [&](auto t, auto m) {
      reference::linear_backward_weights<decltype(t), decltype(m)>(c.in[0], c.in[1], c.out[0], c.out[1]);
    });
  }
  static void run(const op::SoftmaxCrossEntropy& o, Call& c) {
    auto* metrics = c.out[0].as<double>();
    for (int i = 0; i < 4; ++i) metrics[i] = 0;
    float_type<F64>(c.in[0].dtype, [&](auto t) {
      reference::softmax_cross_entropy<decltype(t)>(o, c.in[0], c.in[1], metrics, o.backward ? &c.out[1] : nullptr,
                                                    *c.scalars);
    });
  }
  // Calls f(T{}, M{}) for the types of activations and of master weights. Master weights are f64 for f64 activations
  // and f32 for all others.
  template <class F>
  static void types(const TensorRef& activation, const TensorRef& master, F&& f) {
    if ((activation.dtype == DType::f64) != (master.dtype == DType::f64))
      fail("reference", "f64 master weights only together with f64 activations", name_of(master.dtype));
    float_type<F64>(activation.dtype, [&](auto t) {
      using T = decltype(t);
      f(t, std::conditional_t<std::is_same_v<T, double>, double, float>{});
    });
  }
};

// Runs an op by its loop: as a whole, on one thread.
template <bool F64>
class LoopKernel final : public HostKernel<F64> {
 public:
  using Run = void (*)(const Op& op, Call& c);
  LoopKernel(const Op& op, const NodeDesc& d, Run loop) : HostKernel<F64>(d), op_(op), loop_(loop) {}
  void run(Call& c) override { loop_(op_, c); }
  [[nodiscard]] bool is_fallback() const override { return true; }

 private:
  const Op& op_;
  Run loop_;
};

// Returns the kernel of any op that has a loop, except ops for which Table has a kernel and those in Except. Returns
// null for these and for custom ops.
template <bool F64, class Table = KernelTable<>, class... Except>
[[nodiscard]] std::unique_ptr<Kernel> reference_kernel(const Op& op, const NodeDesc& d) {
  typename LoopKernel<F64>::Run loop = nullptr;
  Ops::visit(op, [&]<class O>(const O&) {
    constexpr bool other = Table::template has<O> || (std::is_same_v<O, Except> || ...);
    if constexpr (!other && requires(Call & c) { ReferenceLoops<F64>::run(O{}, c); })
      loop = [](const Op& any, Call& c) { ReferenceLoops<F64>::run(*std::get_if<O>(&any), c); };
  });
  return loop != nullptr ? std::make_unique<LoopKernel<F64>>(op, d, loop) : nullptr;
}

}  // namespace tutti
