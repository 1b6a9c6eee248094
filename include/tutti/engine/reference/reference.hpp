// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <variant>

#include <tutti/core/separate.hpp>
#include <tutti/engine/host_backend.hpp>
#include <tutti/optim/update.hpp>
#if TUTTI_CORE_DEFINITIONS
#include <tutti/engine/reference/loops.hpp>
#include <tutti/engine/reference/update.hpp>
#endif

namespace tutti {

// Every op by its loop (loops.hpp), in f32, bf16 and f64: the oracle of the tests. A template, so that a file that
// includes it without using it compiles no loops.
template <class = void>
class BasicReferenceBackend : public HostBackend {
 public:
  [[nodiscard]] std::string name() const override { return "reference"; }
  [[nodiscard]] std::string description() const override { return "simple loops"; }
  [[nodiscard]] bool computes_in(DType t) const override { return t == DType::f64 || HostBackend::computes_in(t); }
  [[nodiscard]] std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override;
  void update(const UpdateOp& op, const UpdateCall& u) override;
  [[nodiscard]] bool divides_muon() const override { return true; }
  [[nodiscard]] SquaredNorms squared_norms(const UpdateCall& u) override;
  void average(DType t, void* to, const void* from, std::size_t n, double decay) override;
  void accumulate(DType t, void* to, const void* from, std::size_t n) override;
};
using ReferenceBackend = BasicReferenceBackend<>;

#if TUTTI_CORE_DEFINITIONS
template <class X>
std::unique_ptr<Kernel> BasicReferenceBackend<X>::kernel(const Op& op, const NodeDesc& desc) {
  if (auto k = custom_kernel(op)) return k;
  return reference_kernel<true>(op, desc);
}
template <class X>
void BasicReferenceBackend<X>::update(const UpdateOp& any, const UpdateCall& u) {
  std::visit([&](const auto& o) { float_type<true>(u.dtype, [&](auto m) { reference::update<decltype(m)>(o, u); }); },
             any);
}
template <class X>
SquaredNorms BasicReferenceBackend<X>::squared_norms(const UpdateCall& u) {
  return float_type<true>(u.dtype, [&](auto m) { return reference::squared_norms<decltype(m)>(u); });
}
template <class X>
void BasicReferenceBackend<X>::average(DType t, void* to, const void* from, std::size_t n, double decay) {
  float_type<true>(t, [&](auto m) {
    using M = decltype(m);
    for (std::size_t i = 0; i < n; ++i) {
      M& e = static_cast<M*>(to)[i];
      e = static_cast<M>(decay * static_cast<double>(e) +
                         (1 - decay) * static_cast<double>(static_cast<const M*>(from)[i]));
    }
  });
}
template <class X>
void BasicReferenceBackend<X>::accumulate(DType t, void* to, const void* from, std::size_t n) {
  float_type<true>(t, [&](auto m) {
    using M = decltype(m);
    for (std::size_t i = 0; i < n; ++i) {
      M& e = static_cast<M*>(to)[i];
      e = static_cast<M>(e + static_cast<const M*>(from)[i]);
    }
  });
}
#endif

TUTTI_CORE_INSTANCE(template class BasicReferenceBackend<>);

}  // namespace tutti
