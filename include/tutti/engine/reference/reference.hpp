// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include <tutti/core/separate.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/op_kernel.hpp>
#include <tutti/engine/reference/reference_conv.hpp>
#include <tutti/engine/reference/reference_misc.hpp>
#include <tutti/engine/reference/reference_norm.hpp>
#include <tutti/graph/custom.hpp>

namespace tutti {

// Every op with obvious loops: the living definition of the ops and what a new backend on the host inherits from. An op
// that it has no kernel for runs whole, on one thread. F64: also in f64; the fast backends leave it out, since every
// program that includes them would compile it.
template <bool F64>
class ReferenceOps : public Backend, public HostMemory {
 public:
  [[nodiscard]] Memory& memory() noexcept override { return *this; }
  [[nodiscard]] bool computes_in(DType t) const override {
    return t == DType::f32 || t == DType::bf16 || (F64 && t == DType::f64);
  }

  template <class O>
  requires(!detail::is_probe<O>) [[nodiscard]] Partition partition(const O&, const NodeDesc&) const { return {}; }
  template <class O>
  [[nodiscard]] std::shared_ptr<void> prepare(const O&, const PrepareInfo&) {
    return {};
  }

  // Weights in the compute type; nothing to do where the master weights already are.
  [[nodiscard]] std::size_t pack_bytes(const Op&, const NodeDesc& d) const {
    return d.compute == d.in[1].dtype ? 0 : static_cast<std::size_t>(d.in[1].shape.numel()) * size_of(d.compute);
  }
  void pack(const Op&, const NodeDesc& d, const TensorRef& w, void* to) const {
    const auto n = static_cast<std::size_t>(w.shape.numel());
    float_type(d.compute, [&](auto t) {
      float_type(w.dtype, [&](auto m) {
        using T = decltype(t);
        const auto* from = static_cast<const decltype(m)*>(w.data);
        for (std::size_t i = 0; i < n; ++i) static_cast<T*>(to)[i] = static_cast<T>(from[i]);
      });
    });
  }

  void run(const op::Normalize& o, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) { reference::normalize<decltype(t)>(o, c.in[0], c.out[0]); });
  }
  void run(const op::Conv2d& o, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) { reference::conv2d<decltype(t)>(o, c.in[0], c.in[1], c.out[0]); });
  }
  void run(const op::Conv2dBackwardData& o, Call& c) {
    float_type(c.out[0].dtype,
               [&](auto t) { reference::conv2d_backward_data<decltype(t)>(o, c.in[0], c.in[1], c.out[0]); });
  }
  void run(const op::Conv2dBackwardWeights& o, Call& c) {
    types(c.in[0], c.out[0], [&](auto t, auto m) {
      reference::conv2d_backward_weights<decltype(t), decltype(m)>(o, c.in[0], c.in[1], c.out[0]);
    });
  }
  void run(const op::BatchNorm& o, Call& c) {
    types(c.in[0], c.in[1], [&](auto t, auto m) { reference::batch_norm<decltype(t), decltype(m)>(o, c); });
  }
  void run(const op::BatchNormInference& o, Call& c) {
    types(c.in[0], c.in[1], [&](auto t, auto m) { reference::batch_norm_inference<decltype(t), decltype(m)>(o, c); });
  }
  void run(const op::BatchNormBackward& o, Call& c) {
    types(c.out[0], c.out[1], [&](auto t, auto m) { reference::batch_norm_backward<decltype(t), decltype(m)>(o, c); });
  }
  void run(const op::Relu&, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      const auto x = c.in[0].view<T>();
      const auto y = c.out[0].view<T>();
      for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] < T(0.0F) ? T(0.0F) : x[i];
    });
  }
  void run(const op::ReluBackward&, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      const auto dy = c.in[0].view<T>(), y = c.in[1].view<T>();
      const auto dx = c.out[0].view<T>();
      for (std::size_t i = 0; i < dy.size(); ++i) dx[i] = y[i] > T(0.0F) ? dy[i] : T(0.0F);
    });
  }
  void run(const op::Gelu&, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) { reference::gelu<decltype(t)>(c.in[0], c.out[0]); });
  }
  void run(const op::GeluBackward&, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) { reference::gelu_backward<decltype(t)>(c.in[0], c.in[1], c.out[0]); });
  }
  void run(const op::Add&, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) {
      using T = decltype(t);
      const auto a = c.in[0].view<T>(), b = c.in[1].view<T>();
      const auto y = c.out[0].view<T>();
      for (std::size_t i = 0; i < a.size(); ++i) y[i] = T(a[i] + b[i]);
    });
  }
  void run(const op::Bias&, Call& c) {
    types(c.out[0], c.in[1], [&](auto t, auto m) {
      using T = decltype(t);
      const auto x = c.in[0].view<T>();
      const auto b = c.in[1].template view<decltype(m)>();
      const auto y = c.out[0].view<T>();
      for (std::size_t i = 0; i < x.size(); ++i)
        y[i] = static_cast<T>(static_cast<double>(x[i]) + static_cast<double>(b[i % b.size()]));
    });
  }
  void run(const op::BiasBackward&, Call& c) {
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
  void run(const op::MaxPool& o, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) { reference::max_pool<decltype(t)>(o, c.in[0], c.out[0], c.out[1]); });
  }
  void run(const op::MaxPoolBackward& o, Call& c) {
    float_type(c.out[0].dtype,
               [&](auto t) { reference::max_pool_backward<decltype(t)>(o, c.in[0], c.in[1], c.out[0]); });
  }
  void run(const op::GlobalAvgPool&, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) { reference::global_avg_pool<decltype(t)>(c.in[0], c.out[0]); });
  }
  void run(const op::GlobalAvgPoolBackward&, Call& c) {
    float_type(c.out[0].dtype, [&](auto t) { reference::global_avg_pool_backward<decltype(t)>(c.in[0], c.out[0]); });
  }
  void run(const op::Linear&, Call& c) {
    types(c.out[0], c.in[2],
          [&](auto t, auto m) { reference::linear<decltype(t), decltype(m)>(c.in[0], c.in[1], c.in[2], c.out[0]); });
  }
  void run(const op::LinearBackwardData&, Call& c) {
    float_type(c.out[0].dtype,
               [&](auto t) { reference::linear_backward_data<decltype(t)>(c.in[0], c.in[1], c.out[0]); });
  }
  void run(const op::LinearBackwardWeights&, Call& c) {
    types(c.in[0], c.out[0], [&](auto t, auto m) {
      reference::linear_backward_weights<decltype(t), decltype(m)>(c.in[0], c.in[1], c.out[0], c.out[1]);
    });
  }
  void run(const op::SoftmaxCrossEntropy& o, Call& c) {
    auto* metrics = c.out[0].as<double>();
    for (int i = 0; i < 4; ++i) metrics[i] = 0;
    float_type(c.in[0].dtype, [&](auto t) {
      reference::softmax_cross_entropy<decltype(t)>(o, c.in[0], c.in[1], metrics, o.backward ? &c.out[1] : nullptr,
                                                    *c.scalars);
    });
  }
  void update(const UpdateOp& any, const UpdateCall& u) override {
    std::visit([&](const auto& o) { float_type(u.dtype, [&](auto m) { reference::update<decltype(m)>(o, u); }); }, any);
  }
  [[nodiscard]] SquaredNorms squared_norms(const UpdateCall& u) override {
    return float_type(u.dtype, [&](auto m) { return reference::squared_norms<decltype(m)>(u); });
  }
  void average(DType t, void* to, const void* from, std::size_t n, double decay) override {
    float_type(t, [&](auto m) {
      using M = decltype(m);
      for (std::size_t i = 0; i < n; ++i) {
        M& e = static_cast<M*>(to)[i];
        e = static_cast<M>(decay * static_cast<double>(e) +
                           (1 - decay) * static_cast<double>(static_cast<const M*>(from)[i]));
      }
    });
  }
  void accumulate(DType t, void* to, const void* from, std::size_t n) override {
    float_type(t, [&](auto m) {
      using M = decltype(m);
      for (std::size_t i = 0; i < n; ++i) {
        M& e = static_cast<M*>(to)[i];
        e = static_cast<M>(e + static_cast<const M*>(from)[i]);
      }
    });
  }

 protected:
  template <class F>
  static decltype(auto) float_type(DType t, F&& f) {
    if constexpr (F64)
      if (t == DType::f64) return f(double{});
    if (t == DType::bf16) return f(bf16{});
    if (t != DType::f32)
      fail<UsageError>("backend", F64 ? "f32, bf16 or f64" : "f32 or bf16", std::string(name_of(t)),
                       "f64 runs on the reference backend alone");
    return f(float{});
  }
  template <class F>
  static void types(const TensorRef& activation, const TensorRef& master, F&& f) {
    // Master weights are f64 beside f64 activations and f32 beside all others.
    if ((activation.dtype == DType::f64) != (master.dtype == DType::f64))
      fail("Reference", "f64 master weights beside f64 activations only", std::string(name_of(master.dtype)));
    float_type(activation.dtype, [&](auto t) {
      using T = decltype(t);
      f(t, std::conditional_t<std::is_same_v<T, double>, double, float>{});
    });
  }

  // A custom op's code for this backend, or for any on the host.
  [[nodiscard]] std::unique_ptr<Kernel> custom_kernel(const Op& op) const {
    const std::string own = name();
    const CustomOp::Kernel* code = custom_code(op, std::array<std::string_view, 2>{own, "host"});
    return code != nullptr ? std::make_unique<CustomKernel>(*code) : nullptr;
  }
};

// The oracle of the tests. A template, so that who includes it without using it compiles no loops.
template <class = void>
class ReferenceBackend : public ReferenceOps<true> {
 public:
  [[nodiscard]] std::string name() const override { return "reference"; }
  [[nodiscard]] std::string description() const override { return "obvious loops"; }
  [[nodiscard]] std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override {
    if (auto k = custom_kernel(op)) return k;
    return kernel_of(*this, op, desc);
  }
};
using Reference = ReferenceBackend<>;

TUTTI_CORE_INSTANCE(template class ReferenceBackend<>);

}  // namespace tutti
