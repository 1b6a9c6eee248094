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
class PlainCpu : public CpuOps {
 public:
  explicit PlainCpu(CpuOptions o = {}) : CpuOps(o) {}
  [[nodiscard]] std::string name() const override { return "cpu"; }
  [[nodiscard]] std::string description() const override { return "own kernels " + std::string(cpu::name_of(isa())); }
  [[nodiscard]] std::unique_ptr<Kernel> kernel(const Op& op, const NodeDesc& desc) override {
    if (auto k = kernel_among<op::Conv2d, op::Conv2dBackwardData, op::Conv2dBackwardWeights, op::Linear,
                              op::LinearBackwardData>(*this, op, desc))
      return k;
    return CpuOps::kernel(op, desc);
  }
};
using Cpu = PlainCpu<>;

TUTTI_CORE_INSTANCE(template class PlainCpu<>);

}  // namespace tutti
