// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <tutti/core/error.hpp>
#include <tutti/core/float/bf16.hpp>
#include <tutti/core/separate.hpp>
#include <tutti/engine/backend.hpp>
#include <tutti/engine/custom_kernel.hpp>
#include <tutti/tensor/memory.hpp>
#if TUTTI_CORE_DEFINITIONS
#include <tutti/engine/reference/integer_loops.hpp>
#endif

namespace tutti {

// Calls f(T{}) for the type T of the data. F64: also for f64. The fast backends omit it, because every program that
// includes them would compile it.
template <bool F64 = false, class F>
decltype(auto) float_type(DType t, F&& f) {
  if constexpr (F64)
    if (t == DType::f64) return f(double{});
  if (t == DType::bf16) return f(bf16{});
  if (t != DType::f32)
    fail<UsageError>("backend", F64 ? "f32, bf16 or f64" : "f32 or bf16", name_of(t),
                     "only the reference backend supports f64");
  return f(float{});
}

// A backend on the CPU: its memory is the host's.
class HostBackend : public Backend, public HostMemory {
 public:
  [[nodiscard]] Memory& memory() noexcept override { return *this; }
  [[nodiscard]] bool computes_in(DType t) const override { return t == DType::f32 || t == DType::bf16; }
  // Simple loops.
  TUTTI_CORE_FUNCTION void to_integers(const ToIntegers& c) override;
  TUTTI_CORE_FUNCTION void from_integers(const FromIntegers& c) override;
  TUTTI_CORE_FUNCTION void piece_to_integers(const ToIntegers& c) override;

 protected:
  // Returns a custom op's code for this backend, or for any backend on the host.
  [[nodiscard]] std::unique_ptr<Kernel> custom_kernel(const Op& op) const {
    const std::string own = name();
    const CustomOp::Kernel* code = custom_code(op, std::array<std::string_view, 2>{own, "host"});
    return code != nullptr ? std::make_unique<CustomKernel>(*code) : nullptr;
  }
};

#if TUTTI_CORE_DEFINITIONS
TUTTI_CORE_FUNCTION void HostBackend::to_integers(const ToIntegers& c) { reference::to_integers(c); }
TUTTI_CORE_FUNCTION void HostBackend::from_integers(const FromIntegers& c) { reference::from_integers(c); }
TUTTI_CORE_FUNCTION void HostBackend::piece_to_integers(const ToIntegers& c) { reference::to_integers(c); }
#endif

// A kernel that reads its weights, if it has any, in the compute type. Does not pack if the master weights already have
// that type.
template <bool F64 = false>
class HostKernel : public Kernel {
 public:
  explicit HostKernel(const NodeDesc& d) : compute_(d.compute) {
    if (d.in.size() > 1 && d.in[1].dtype != d.compute)
      bytes_ = static_cast<std::size_t>(d.in[1].shape.numel()) * size_of(d.compute);
  }

  [[nodiscard]] std::size_t packed_bytes() override { return bytes_; }
  void pack(const TensorRef& w, void* to) override {
    const auto n = static_cast<std::size_t>(w.shape.numel());
    float_type<F64>(compute_, [&](auto t) {
      float_type<F64>(w.dtype, [&](auto m) {
        using T = decltype(t);
        const auto* from = static_cast<const decltype(m)*>(w.data);
        for (std::size_t i = 0; i < n; ++i) static_cast<T*>(to)[i] = static_cast<T>(from[i]);
      });
    });
  }

 private:
  DType compute_;
  std::size_t bytes_ = 0;
};

}  // namespace tutti
