// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>
#include <utility>

#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/cpu_ops.hpp>

namespace tutti {

// tutti's own kernels only; convolutions and products use the reference loops. A template, so that a file that includes
// it without using it compiles no kernels.
template <class = void>
class BasicCpuBackend : public CpuOps {
 public:
  explicit BasicCpuBackend(CpuOptions o = {}) : CpuOps(std::move(o)) {}
  [[nodiscard]] std::string name() const override { return "cpu"; }
  [[nodiscard]] std::string description() const override { return "own kernels " + std::string(cpu::name_of(isa())); }
  [[nodiscard]] std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override;
};
using CpuBackend = BasicCpuBackend<>;

#if TUTTI_CORE_DEFINITIONS
template <class X>
std::unique_ptr<Kernel> BasicCpuBackend<X>::kernel(const Op& op, const NodeDesc& desc) {
  const auto any = [&](const NodeDesc& d) {
    auto k = KernelTable<cpu::RowLoop<op::Linear>, cpu::RowLoop<op::LinearBackwardData>>::make(op, shared(), d);
    if (!k) k = CpuOps::kernel(op, d);
    return k ? std::move(k) : reference_kernel<false>(op, d);
  };
  return convolution_kernel(op, desc, any);
}
#endif

TUTTI_CORE_INSTANCE(template class BasicCpuBackend<>);

}  // namespace tutti
