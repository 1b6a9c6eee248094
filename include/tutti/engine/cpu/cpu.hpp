// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <string>

#include <tutti/core/separate.hpp>
#include <tutti/engine/cpu/cpu_ops.hpp>

namespace tutti {

// Our own kernels alone: convolutions and products run by the reference loops. A template, so that who includes it
// without using it compiles no kernels.
template <class = void>
class BasicCpuBackend : public CpuOps {
 public:
  explicit BasicCpuBackend(CpuOptions o = {}) : CpuOps(o) {}
  [[nodiscard]] std::string name() const override { return "cpu"; }
  [[nodiscard]] std::string description() const override { return "own kernels " + std::string(cpu::name_of(isa())); }
  [[nodiscard]] std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override;
};
using CpuBackend = BasicCpuBackend<>;

#if TUTTI_CORE_DEFINITIONS
template <class X>
std::unique_ptr<Kernel> BasicCpuBackend<X>::kernel(const Op& op, const NodeDesc& desc) {
  if (auto k = convolution_kernel(op, desc)) return k;
  if (auto k = KernelTable<cpu::RowLoop<op::Linear>, cpu::RowLoop<op::LinearBackwardData>>::make(op, shared(), desc))
    return k;
  if (auto k = CpuOps::kernel(op, desc)) return k;
  return reference_kernel<false>(op, desc);
}
#endif

TUTTI_CORE_INSTANCE(template class BasicCpuBackend<>);

}  // namespace tutti
